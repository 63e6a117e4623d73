"""Writing intent: jobs are submitted in the caller's own transaction, so they commit or vanish with its rows."""
