"""Writing intent: a submit runs in the caller's own transaction, and commits or vanishes with its rows."""
