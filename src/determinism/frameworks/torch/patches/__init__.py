"""Deterministic implementations of PyTorch's ops that have none, or vary although they claim one."""
