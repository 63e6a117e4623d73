"""The speed floor, as multiples of what this machine's disk and PostgreSQL can do at all."""
