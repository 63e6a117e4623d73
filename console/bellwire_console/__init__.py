"""What operators touch: the command `bellwire`, and later the console."""
