"""Runs the audit and prints what it found: `python -m determinism.frameworks.torch.formula_audit`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch

from determinism.frameworks.torch.formula_audit import data_file
from determinism.frameworks.torch.formula_audit.cases import cases_of, database
from determinism.frameworks.torch.formula_audit.examine import Findings, examine
from determinism.frameworks.torch.formula_audit.made_cases import made_cases


def main() -> int:
    """Run the audit; the exit status is 1 if recording disturbs a case without a blind spot."""
    arguments = _arguments()
    dtypes = [getattr(torch, name) for name in arguments.dtypes]
    infos = [info for info in database() if not arguments.ops or info.name in arguments.ops]
    torch.set_warn_always(True)
    findings, examined, start = Findings(), 0, time.monotonic()
    groups = [cases_of(info, dtype, arguments.samples) for info in infos for dtype in dtypes]
    with _quiet_profiler():
        for cases in groups if arguments.ops else (made_cases(), *groups):
            found, number = examine(cases)
            findings.merge(found)
            examined += number
    findings.settle()
    print(f"PyTorch {torch.__version__}, CPU: {examined} cases in {time.monotonic() - start:.0f} s")
    for group, names in vars(findings).items():
        print(f"\n{group}:")
        for name in sorted(names):
            print(f"  {name}: {', '.join(sorted(names[name]))}")
    if arguments.write:
        facts = {
            "torch": torch.__version__.partition("+")[0],
            "device": "cpu",
            "cases": examined,
            "dtypes": arguments.dtypes,
        }
        data_file.write(findings, facts)
    return 1 if findings.disturbed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m determinism.frameworks.torch.formula_audit", description=__doc__)
    parser.add_argument("ops", nargs="*", help="names of ops, as PyTorch's test suite has them; all without any")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64", "complex64", "int64", "bfloat16"])
    parser.add_argument("--samples", type=int, default=6, help="the most samples per op and dtype")
    parser.add_argument("--write", action="store_true", help="write what was found into the package")
    return parser.parse_args()


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """The profiler writes a line for each start and end to the standard error, from C++."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


if __name__ == "__main__":
    raise SystemExit(main())
