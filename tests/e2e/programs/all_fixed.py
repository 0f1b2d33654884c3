"""Runs every program of this folder in its deterministic version, one after the other."""

import runpy
import sys
from pathlib import Path

PROGRAMS = [
    "unseeded_head", "late_dropout", "label_numbers", "task_order", "module_order", "clock_rate", "random_scale",
    "numpy_write", "numpy_buffer", "numpy_batch", "raw_write", "unfilled_batch", "clock_loop", "clock_branch",
    "racing_sums index_put", "racing_sums put", "racing_sums index_backward", "racing_sums take_backward",
    "planted nowhere 0 0 marker",
]  # fmt: skip

for program in PROGRAMS:
    name, *arguments = program.split()
    sys.argv = [name, *arguments, "fixed"]
    runpy.run_path(str(Path(__file__).with_name(f"{name}.py")), run_name="__main__")
    print(f"{program}: done")
