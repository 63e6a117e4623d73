"""The relay: the only scheduler; nothing runs that it did not admit."""
