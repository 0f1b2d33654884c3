"""Goldens: the digests of each step of a program, small enough to commit, and checking against them."""
