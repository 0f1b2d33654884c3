"""Holds one thing still in a run of the program, or stirs it, to see whether the runs' difference goes or comes."""
