"""Tells whether a report of `train.py` names what it has to name; `make demo` ends with it."""

import json
import sys
from pathlib import Path

EXPECTED = ("different", "op")
OPS = {"native": "aten::_index_put_impl_", "python": "aten::index_put"}
"""What the gradient runs: PyTorch takes another formula while the Python recorder is active."""


def main() -> None:
    report = json.loads(Path(sys.argv[1]).read_text())
    first = report["first_divergence"] or {}
    (recorder,) = report["recorded"]["recorders"]
    expected = (*EXPECTED, OPS[recorder["name"]])
    found = (report["verdict"], first.get("kind"), first.get("op"))
    if found != expected:
        sys.exit(f"This was expected of the example: {expected}. The report says: {found}.")
    because = f", since {recorder['reason']}" if recorder["reason"] else ""
    print(f"The {recorder['name']} recorder recorded the runs{because}.")
    print(
        "This is the expected result: the gradient of `brightness[levels]` is summed up by several threads, in the order "
        "in which they come.\nWith deterministic algorithms the runs are the same:\n"
        "  .venv/bin/determinism check -- .venv/bin/python examples/digits/train.py --deterministic"
    )


if __name__ == "__main__":
    main()
