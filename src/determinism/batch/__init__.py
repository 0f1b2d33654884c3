"""Checks whether results depend on the batch: what `determinism check-batch` adds to the core."""
