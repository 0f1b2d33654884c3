"""The cost of recording on a GPU: wall time and peak memory of recorded and plain steps of GPT-2 small and ResNet-50.

    python benchmarks/gpu_overhead.py --json benchmarks/results/gpu-overhead.json

Needs a GPU and Triton; without them it says so and exits with status 2. Plain and recorded steps alternate in one process per
row. `host` is the level `op` with tensors copied to the host to be digested, as happens without Triton.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import determinism
from determinism.frameworks.torch import session
from determinism.frameworks.torch.device_digests import DeviceDigests
from device_digest import require_gpu
from gpu_models import MODELS, Training
from measured import markdown, surroundings, write

WATCHED = ("op", "module", "step", "host")
LEFT_OUT = 2
"""Steps at the beginning of each recording that do not count: tensors made before are still unknown."""
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--level", choices=WATCHED, nargs="+", default=list(WATCHED))
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", default=["bfloat16"])
    parser.add_argument("--blocks", type=int, default=5, help="how often plain and recorded steps take turns")
    parser.add_argument("--steps", type=int, default=10, help="how many of each per turn")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    device = require_gpu()
    if asked.measure:
        (model,), (level,), (precision,) = asked.model, asked.level, asked.precision
        training = MODELS[model](device, PRECISIONS[precision])
        found = measure(training, level, asked.blocks, asked.steps) | {"precision": precision}
        Path(asked.measure).write_text(json.dumps(found))
        return
    results = [
        in_a_fresh_process(["--model", model, "--level", level, "--precision", precision], asked.blocks, asked.steps)
        for model in asked.model
        for precision in asked.precision
        for level in asked.level
    ]
    print(markdown([row(result) for result in results]))
    if asked.json:
        around = surroundings("determinism", "torch", "triton")
        write(asked.json, around | {"device_name": torch.cuda.get_device_name()}, results)


def in_a_fresh_process(chosen: list[str], blocks: int, steps: int) -> dict[str, Any]:
    """Measure one row in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        counts = ["--blocks", str(blocks), "--steps", str(steps), "--measure", str(file)]
        done = subprocess.run([sys.executable, __file__, *chosen, *counts], capture_output=True, text=True)
        if done.returncode:
            sys.exit(
                f"{done.stdout}{done.stderr}\nMeasuring {' '.join(chosen)} ended with exit status {done.returncode}."
            )
        result: dict[str, Any] = json.loads(file.read_text())
        return result


def measure(training: Training, level: str, blocks: int, steps: int) -> dict[str, Any]:
    """Alternate plain and recorded steps."""
    timed(training, LEFT_OUT + 1)
    plain_bytes = peak(training)
    ratios, plain_all, recorded_all, records, recorded_bytes = [], [], [], 0, 0
    for _ in range(blocks):
        plain = timed(training, steps)
        recorded_level = "op" if level == "host" else level
        with (
            tempfile.TemporaryDirectory() as folder,
            digesting(level),
            determinism.record(Path(folder) / "trace", level=recorded_level) as session,
        ):
            timed(training, LEFT_OUT)
            before = session.num_records
            recorded = timed(training, steps)
            records = (session.num_records - before) // steps
            recorded_bytes = max(recorded_bytes, peak(training))
        ratios.append(statistics.median(recorded) / statistics.median(plain))
        plain_all += plain
        recorded_all += recorded
    return {
        "model": training.title,
        "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
        "level": level,
        "ratios": [round(ratio, 3) for ratio in ratios],
        "plain_milliseconds": round(1000 * statistics.median(plain_all), 2),
        "recorded_milliseconds": round(1000 * statistics.median(recorded_all), 2),
        "records_per_step": records,
        "plain_peak_bytes": plain_bytes,
        "recorded_peak_bytes": recorded_bytes,
    }


@contextmanager
def digesting(level: str) -> Iterator[None]:
    """Set how tensors are digested within the block."""
    original = session.DeviceDigests
    if level == "host":
        session.DeviceDigests = lambda: DeviceDigests(_no_kernel)  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        session.DeviceDigests = original  # type: ignore[misc]


def _no_kernel(device: torch.device) -> Any:
    raise RuntimeError("the benchmark asks for copies")


def timed(training: Training, steps: int) -> list[float]:
    """Seconds of each step, until the device is done."""
    seconds = []
    for _ in range(steps):
        synchronize()
        began = time.perf_counter()
        training.step()
        synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds


def peak(training: Training) -> int:
    """The most memory that tensors took during a step; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.reset_peak_memory_stats()
    timed(training, 1)
    return torch.cuda.max_memory_allocated()


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def row(result: dict[str, Any]) -> dict[str, str]:
    """One line of the table."""
    ratios = result["ratios"]
    return {
        "model": f"{result['model']}, {result['parameters'] / 1e6:.0f} M parameters, {result['precision']}",
        "recorded at": result["level"],
        "ratio": f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        "plain ms": f"{result['plain_milliseconds']:.1f}",
        "recorded ms": f"{result['recorded_milliseconds']:.1f}",
        "records per step": f"{result['records_per_step']:,}",
        "peak memory": f"{result['plain_peak_bytes'] / 2**30:.2f} to {result['recorded_peak_bytes'] / 2**30:.2f} GiB",
    }


if __name__ == "__main__":
    main()
