"""Fixes one thing in a run of the program, or perturbs it, to see whether the runs' difference goes or comes."""
