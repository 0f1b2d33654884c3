"""Starts a program under recording, N times, and wakes up inside it."""
