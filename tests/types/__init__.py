"""What a type checker must accept and refuse."""
