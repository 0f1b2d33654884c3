"""Finds out what PyTorch computes otherwise while a program is recorded.

Each sample of PyTorch's own test suite, and some that it lacks, runs plainly, under a dispatch mode that does nothing,
and under the recorder. `python -m determinism.frameworks.torch.formula_audit` prints what differs; with `--write` it becomes the
data that the recorder uses for this version of PyTorch.
"""
