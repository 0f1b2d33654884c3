"""Checks planted programs and their twins, one after the other, and prints the errors in each report.

    python -m tests.e2e.planted_causes --only queues "arrivals/a running mean" --reports reports

The exit status is 1 if any report is wrong.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.planted_causes import CLASSES
from tests.e2e.planted_causes.checking import checked, faults
from tests.e2e.planted_causes.planted import Planted

_TRIES = 4
"""A program that varies only with some probability is checked again until it does, at most this many times."""


def _chosen(names: list[str]) -> Iterator[tuple[str, Planted]]:
    for kind, programs in CLASSES.items():
        for program in programs:
            path = f"{kind}/{program.name}"
            if kind in names or path in names:
                yield path, program


def _described(program: Planted, twin: bool, options: list[str], report_file: Path | None) -> tuple[bool, str]:
    tries = 1 if twin else _TRIES
    for _ in range(tries):
        with tempfile.TemporaryDirectory(prefix="planted-") as folder:
            try:
                report = checked(program, Path(folder), *options, twin=twin)
            except Exception as error:
                return False, f"{type(error).__name__}: {error}"[-600:]
        if report_file is not None:
            report_file.write_text(json.dumps(report, indent=1), encoding="utf-8")
        if report["verdict"] == "different":
            break
    if twin:
        is_right = report["verdict"] == "same"
        return is_right, report["verdict"] + ("" if is_right else f" {report['first_divergence']}")
    wrong = faults(program, report)
    first = report["first_divergence"] or {"kind": "-"}
    causes = [(one["id"], one["status"], [s["code"] for s in one["sites"][:2]]) for one in report["causes"]]
    fixes = [(one["verified"], one["code"]) for one in report["fixes"]]
    made = sum(one["runs"] for one in report["experiments"]) if "experiments" in report else "?"
    return not wrong, f"{first['kind']} {causes} {fixes} runs={made} {wrong or 'right'}"


def main() -> int:
    """Run the checks and print their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CLASSES), metavar="NAME", help="classes, or programs of them")
    parser.add_argument("--twins", action="store_true", help="check the twins instead")
    parser.add_argument("--option", action="append", default=[], help="for `determinism check`")
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="where the reports are kept")
    options = parser.parse_args()
    if options.reports is not None:
        options.reports.mkdir(parents=True, exist_ok=True)
    results = []
    for path, program in _chosen(options.only):
        began = time.monotonic()
        file = None if options.reports is None else options.reports / f"{path.replace('/', '-')}.json"
        is_right, text = _described(program, options.twins, options.option, file)
        results.append(is_right)
        print(f"{'right' if is_right else 'WRONG'} {path} ({time.monotonic() - began:.0f} s): {text}", flush=True)
    print(f"Of {len(results)}: {sum(results)} right")
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
