"""Deterministic versions of ops whose own kernels are not, one module for each kind."""
