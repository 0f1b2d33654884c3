"""Runs ops again and again on equal inputs that provoke them, and counts the results."""
