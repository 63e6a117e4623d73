"""One file a revision, ids ascending, so that "newer than this code" can be told without knowing it."""
