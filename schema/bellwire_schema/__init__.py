"""The truth about rows: states, tables, transitions and errors; nobody else writes a state."""
