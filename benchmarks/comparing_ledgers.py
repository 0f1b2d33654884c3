"""The cost of comparing the ledgers of two long runs.

    python benchmarks/comparing_ledgers.py --steps 1000000 --json benchmarks/results/comparing-ledgers.json

Two ledgers with this many steps are written, which differ from a step near the end on, and compared in a separate process; also
with differences only in the states of random generators, which must be examined step by step. Needs no framework; Linux or
macOS, for the memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

from determinism.digest import digest_bytes
from determinism.trace.ledger import ROW_BYTES, LedgerWriter
from measured import markdown, surroundings, write

_GROUPS = ("batches", "loss", "gradients", "optimizer", "parameters", "buffers")
_COMPARE = textwrap.dedent("""
    import json, resource, sys, time
    from pathlib import Path
    from determinism.trace.ledger import first_parting, read_ledger
    began, cpu = time.monotonic(), time.process_time()
    parting = first_parting(*(read_ledger(Path(folder)) for folder in sys.argv[1:]))
    print(json.dumps({"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu,
                      "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                      "step": None if parting is None else parting.step}))
""")


def main() -> None:
    """Measure, show a table, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    around, steps = surroundings("numpy", "determinism"), arguments.steps
    late = steps - steps // 100
    with tempfile.TemporaryDirectory() as folder:
        first, seconds = written(Path(folder) / "first", steps)
        parted, _ = written(Path(folder) / "parted", steps, parts_at=late)
        drawn, _ = written(Path(folder) / "drawn", steps, generator=b"another")
        cases = (("differ late", parted, late), ("equal", first, None), ("only generators differ", drawn, None))
        results = []
        for what, other, step in cases:
            found = compared(first, other)
            if found["step"] != step:
                sys.exit(f"{what}: step {found['step']} was found instead of {step}.")
            results.append({"what": what, "steps": steps, **found})
    print(f"A row has {ROW_BYTES} bytes and takes {1e6 * seconds / steps:.1f} µs to write.")
    print(markdown([row(result) for result in results]))
    if arguments.json:
        write(
            arguments.json,
            {**around, "row_bytes": ROW_BYTES, "row_microseconds": round(1e6 * seconds / steps, 2)},
            results,
        )


def written(
    folder: Path, steps: int, *, parts_at: int | None = None, generator: bytes = b"python"
) -> tuple[Path, float]:
    """Write a ledger; return its folder, and how long that took."""
    folder.mkdir()
    writer, began = LedgerWriter(folder), time.monotonic()
    states = [digest_bytes(b"torch"), digest_bytes(generator)]
    for step in range(steps):
        value = digest_bytes(step.to_bytes(8, "little") + (b"x" if parts_at is not None and step >= parts_at else b""))
        writer.add(step, dict.fromkeys(_GROUPS, value), states, 1.0)
    writer.close()
    return folder, time.monotonic() - began


def compared(first: Path, second: Path) -> dict[str, Any]:
    """Compare in a process that does nothing else."""
    done = subprocess.run(
        [sys.executable, "-c", _COMPARE, str(first), str(second)], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(result: dict[str, Any]) -> dict[str, str]:
    """A line of the table."""
    return {
        "two ledgers": result["what"],
        "steps": f"{result['steps']:,}",
        "seconds": f"{result['seconds']:.2f}",
        "CPU seconds": f"{result['cpu_seconds']:.2f}",
        "MB of memory": f"{result['megabytes']:.0f}",
    }


if __name__ == "__main__":
    main()
