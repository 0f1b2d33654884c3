"""Compares traces and names the first divergence. Works without any framework."""
