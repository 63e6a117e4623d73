"""The speed floor, measured on the shipped commands."""
