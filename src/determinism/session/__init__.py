"""Recording and checking from inside a program."""
