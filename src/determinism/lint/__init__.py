"""`determinism lint`: what will make runs differ, read from the code before anything runs."""
