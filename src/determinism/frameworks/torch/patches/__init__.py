"""Deterministic implementations for PyTorch ops that lack one, or that vary although they claim to have one."""
