"""The cost of recording a Keras model, compared with TensorFlow's own dump of debug information: CPU time of training steps.

    python benchmarks/tensorflow_overhead.py --json benchmarks/results/tensorflow-overhead.json

Each way is measured in a separate process, since TensorFlow includes its debug callbacks in every function that is traced. Plain
and recorded steps alternate in one process: the recorded form replaces a function when it is called. The dump cannot be undone,
so its plain steps come first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measured import markdown, surroundings, write

WAYS = ("determinism, level op", "determinism, level step", "CONCISE_HEALTH", "FULL_TENSOR")
SIZES = {"MLP, 0.3 M parameters": (256, 256, 3), "MLP, 4.2 M parameters": (1024, 1024, 4)}
BATCH = 128


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=4, help="how often plain and watched steps take turns")
    parser.add_argument("--steps", type=int, default=10, help="how many of each per turn")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", nargs=3, metavar=("WAY", "SIZE", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        way, size, file = arguments.measure
        Path(file).write_text(json.dumps(measure(way, size, arguments.blocks, arguments.steps)))
        return
    around = surroundings("determinism", "tensorflow_cpu", "keras")
    results = []
    for size in SIZES:
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                file = os.path.join(folder, "result.json")
                command = [sys.executable, __file__, "--measure", way, size, file]
                subprocess.run([*command, f"--blocks={arguments.blocks}", f"--steps={arguments.steps}"], check=True)
                results.append(json.loads(Path(file).read_text()))
            print(*row(results[-1]).values(), sep=" | ", file=sys.stderr, flush=True)
    print(markdown([row(result) for result in results]))
    print(f"\n{json.dumps(around)}")
    if arguments.json:
        write(arguments.json, around, results)


def row(result: dict[str, Any]) -> dict[str, str]:
    """One line of the table."""
    return {
        "model": result["size"],
        "watched by": result["way"],
        "ratio": f"{result['ratio']:.2f}",
        "plain ms": f"{result['plain_ms']:.1f}",
        "watched ms": f"{result['watched_ms']:.1f}",
        "records per step": f"{result['records']:,.0f}" if result["records"] else "–",
    }


def measure(way: str, size: str, blocks: int, steps: int) -> dict[str, Any]:
    """Time plain and watched steps in this process.

    Args:
        way: One of `WAYS`.
        size: One of `SIZES`.
        blocks: How often they alternate.
        steps: How many of each per turn.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if way.startswith("determinism"):
            plain, watched, records = _recorded(size, way.rpartition(" ")[2], Path(folder), blocks, steps)
        else:
            plain = timed(trainer(size), blocks * steps)
            tf.debugging.experimental.enable_dump_debug_info(folder, tensor_debug_mode=way, circular_buffer_size=-1)
            watched = timed(trainer(size), blocks * steps)
            tf.debugging.experimental.disable_dump_debug_info()
            records = 0.0
    medians = [statistics.median(times) * 1e3 for times in (plain, watched)]
    return {
        "way": way, "size": size, "ratio": medians[1] / medians[0], "plain_ms": medians[0], "watched_ms": medians[1],
        "records": records,
    }  # fmt: skip


def _recorded(size: str, level: str, folder: Path, blocks: int, steps: int) -> tuple[list[float], list[float], float]:
    import determinism

    step = trainer(size)
    plain: list[float] = []
    watched: list[float] = []
    records = 0
    for block in range(blocks):
        plain += timed(step, steps)
        with determinism.record(folder / str(block), level=level) as session:
            step()
            before = session.num_records  # type: ignore[attr-defined]
            watched += timed(step, steps, warm=1)
            records += session.num_records - before  # type: ignore[attr-defined]
    return plain, watched, records / (blocks * (steps + 1))


def trainer(size: str) -> Callable[[], Any]:
    """One step of training a small Keras model on one batch."""
    import keras
    import numpy as np

    width, inner, layers = SIZES[size]
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((width,))])
    for _ in range(layers):
        model.add(keras.layers.Dense(inner, activation="relu"))
    model.add(keras.layers.Dense(10))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    generator = np.random.default_rng(0)
    examples = generator.normal(size=(BATCH, width)).astype("float32")
    labels = generator.integers(0, 10, BATCH)
    return lambda: model.train_on_batch(examples, labels)


def timed(step: Callable[[], Any], count: int, warm: int = 3) -> list[float]:
    """CPU seconds of this process for each step.

    Args:
        step: Makes one step.
        count: How many are timed.
        warm: How many are made before.
    """
    for _ in range(warm):
        step()
    found = []
    for _ in range(count):
        begin = time.process_time()
        step()
        found.append(time.process_time() - begin)
    return found


if __name__ == "__main__":
    main()
