"""The cost of comparing two long traces: time, pairs of records per second, and memory of a process that does nothing else.

    python benchmarks/comparing.py --records 1e6 1e7 --json benchmarks/results/comparing.json

Each second trace is written, compared with the first one, and removed again, so two are on disk at a time; a record takes
about 23 bytes in each. Needs PyTorch, to record the steps in the traces, and Linux, for the memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import determinism
from long_traces import Variant, record_pattern, write_trace
from measured import markdown, surroundings, write

_BYTES_PER_RECORD = 26
"""More than a record takes, so that the check before writing is safe."""


class Case(NamedTuple):
    """A second trace."""

    title: str
    variant: Variant
    reads_all: bool = True
    """False if comparing ends long before the traces do."""


def cases(records: int) -> dict[str, Case]:
    """The traces with which the first one is compared."""
    early, late = 1000, records - 5000
    return {
        "same": Case("equal, batches end at the same records", Variant(records)),
        "cut": Case("equal, batches end elsewhere", Variant(records, rows_per_batch=5003)),
        "names": Case(
            "equal, names in another order, batches end elsewhere",
            Variant(records, rows_per_batch=5003, reversed_names=True),
        ),
        "late": Case(f"one bit differs {records - late:,} records before the end", Variant(records, flipped=late)),
        "early": Case(f"one bit differs in record {early:,}, nothing after it", Variant(records, flipped=early)),
        "all": Case("everything differs from the fifth step on", Variant(records, seed=1), reads_all=False),
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=float, nargs="+", default=[1e6])
    parser.add_argument("--cases", nargs="+", choices=cases(0), default=list(cases(0)))
    parser.add_argument("--repeats", type=int, default=3, help="how often each comparison is made")
    parser.add_argument("--folder", type=Path, help="where the traces are written; a temporary folder if left out")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", nargs=2, metavar="TRACE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure)))
        return
    around = surroundings("determinism", "numpy", "pyarrow", "torch")
    results = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for records in map(int, arguments.records):
            results += measured_cases(Path(folder), records, arguments.cases, arguments.repeats)
    print(markdown([row(result) for result in results]))
    print(f"\n{json.dumps(around)}")
    if arguments.json:
        write(arguments.json, around, results)


def measured_cases(folder: Path, records: int, chosen: list[str], repeats: int) -> list[dict[str, Any]]:
    """Write the traces of one length and compare them."""
    needed, free = 2 * _BYTES_PER_RECORD * records, shutil.disk_usage(folder).free
    if needed > free:
        sys.exit(
            f"{folder} has {free >> 20:,} MiB free, and two traces of {records:,} records need {needed >> 20:,} MiB."
        )
    results = []
    pattern = record_pattern(folder / "pattern")
    first, second = folder / "first", folder / "second"
    written = write_trace(first, pattern, Variant(records))
    size = sum(file.stat().st_size for file in first.rglob("*.arrow"))
    for name in chosen:
        case = cases(records)[name]
        write_trace(second, pattern, case.variant)
        found = [in_a_fresh_process(first, second) for _ in range(repeats)]
        shutil.rmtree(second)
        results.append(
            {
                "case": name,
                "title": case.title,
                "records": written,
                "reads_all": case.reads_all,
                "bytes_per_record": round(size / written, 1),
                "verdict": found[0]["verdict"],
                "first_divergence": found[0]["first_divergence"],
                "seconds": [one["seconds"] for one in found],
                "cpu_seconds": [one["cpu_seconds"] for one in found],
                "megabytes_before": max(one["megabytes_before"] for one in found),
                "megabytes_peak": max(one["megabytes_peak"] for one in found),
            }
        )
        print(*row(results[-1]).values(), sep=" | ", file=sys.stderr, flush=True)
    for trace in (first, folder / "pattern"):
        shutil.rmtree(trace)
    return results


def in_a_fresh_process(first: Path, second: Path) -> dict[str, Any]:
    """Compare in a fresh process."""
    command = [sys.executable, __file__, "--measure", str(first), str(second)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def measure(first: str, second: str) -> dict[str, Any]:
    """Compare two traces in this process."""
    before = _peak_megabytes()
    start, start_cpu = time.perf_counter(), time.process_time()
    comparison = determinism.compare(first, second)
    divergence = comparison.first_divergence
    return {
        "seconds": round(time.perf_counter() - start, 3),
        "cpu_seconds": round(time.process_time() - start_cpu, 3),
        "megabytes_before": before,
        "megabytes_peak": _peak_megabytes(),
        "verdict": str(comparison.verdict),
        "first_divergence": None if divergence is None else divergence.record,
    }


def _peak_megabytes() -> float:
    """The most memory that this process ever had; the operating system's other counter keeps its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024, 1)


def row(result: dict[str, Any]) -> dict[str, str]:
    """One line of the table."""
    seconds, cpu = statistics.median(result["seconds"]), statistics.median(result["cpu_seconds"])

    def speed(taken: float) -> str:
        return f"{result['records'] / taken / 1e6:.1f}" if result["reads_all"] else "–"

    return {
        "records": f"{result['records']:,}",
        "second trace": result["title"],
        "verdict": result["verdict"],
        "seconds": f"{seconds:.2f} ({min(result['seconds']):.2f} to {max(result['seconds']):.2f})",
        "million pairs/s": speed(seconds),
        "CPU seconds": f"{cpu:.2f}",
        "million pairs per CPU second": speed(cpu),
        "peak MB (before)": f"{result['megabytes_peak']:.0f} ({result['megabytes_before']:.0f})",
    }


if __name__ == "__main__":
    main()
