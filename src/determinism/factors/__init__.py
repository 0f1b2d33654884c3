"""Fixes or perturbs one factor in a run of the program, to see whether the difference disappears or appears."""
