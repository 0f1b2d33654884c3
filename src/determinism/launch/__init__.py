"""Starting a program under recording, N times, and the code that runs inside it."""
