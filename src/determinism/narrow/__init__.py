"""Narrows a divergence of a long run: ledgers find the step, and only a window of steps around it is recorded op by op."""
