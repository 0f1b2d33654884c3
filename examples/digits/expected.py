"""Tells whether a report of `train.py` names what it has to name; `make demo` ends with it."""

import json
import sys
from pathlib import Path

EXPECTED = ("different", "op", "aten::index_put")


def main() -> None:
    report = json.loads(Path(sys.argv[1]).read_text())
    first = report["first_divergence"] or {}
    found = (report["verdict"], first.get("kind"), first.get("op"))
    if found != EXPECTED:
        sys.exit(f"This was expected of the example: {EXPECTED}. The report says: {found}.")
    print(
        "This is the expected result: the gradient of `brightness[levels]` is summed up by several threads, in the order "
        "in which they come.\nWith deterministic algorithms the runs are the same:\n"
        "  .venv/bin/determinism check -- .venv/bin/python examples/digits/train.py --deterministic"
    )


if __name__ == "__main__":
    main()
