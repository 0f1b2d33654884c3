"""What recording costs: CPU time of recorded against plain training steps, which alternate in one process.

    python benchmarks/overhead.py --size 1M --level op

The first two steps of each recorded block are left out: tensors made before the block are unknown to the recorder until
a step has written them, which a program recorded from its start does not have.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

import determinism
from gpt import SIZES, Trainer


def timed(trainer: Trainer, steps: int) -> list[float]:
    """CPU seconds of each step."""
    seconds = []
    for _ in range(steps):
        start = time.process_time()
        trainer.step()
        seconds.append(time.process_time() - start)
    return seconds


def main() -> None:
    """Measure and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="1M")
    parser.add_argument("--level", choices=["op", "module", "step"], default="op")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trainer = Trainer(SIZES[arguments.size])
    timed(trainer, 3)
    ratios, plain_all, recorded_all = [], [], []
    records = size = 0
    for _ in range(arguments.blocks):
        plain = timed(trainer, arguments.steps)
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace"
            with determinism.record(trace, level=arguments.level) as session:
                timed(trainer, 2)
                before = session.writer.num_records
                recorded = timed(trainer, arguments.steps)
                records = (session.writer.num_records - before) // arguments.steps
            size = sum(f.stat().st_size for f in trace.rglob("*.arrow")) // (arguments.steps + 2)
        ratios.append(statistics.median(recorded) / statistics.median(plain))
        plain_all += plain
        recorded_all += recorded
    print(
        f"{arguments.size} {arguments.level}: ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), "
        f"plain {1000 * statistics.median(plain_all):.1f} ms, recorded {1000 * statistics.median(recorded_all):.1f} ms, "
        f"{records} records per step, {size / max(records, 1):.1f} bytes per record"
    )


if __name__ == "__main__":
    main()
