"""The cost of recording a JAX program: CPU time of training steps, under one `jax.jit` and op by op.

    python benchmarks/jax_overhead.py --json benchmarks/results/jax-overhead.json

Plain and recorded steps alternate in one process, in which XLA has one thread.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measured import markdown, surroundings, write

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

SIZES = {"MLP, 0.3 M parameters": (256, 256, 3), "MLP, 4.2 M parameters": (1024, 1024, 4)}
WAYS = {"one jax.jit": True, "op by op": False}
BATCH = 128


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=6, help="how often plain and recorded steps take turns")
    parser.add_argument("--steps", type=int, default=20, help="how many of each per turn")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    around = surroundings("determinism", "jax", "jaxlib")
    results = []
    for size in SIZES:
        for way in WAYS:
            results.append(measure(size, way, arguments.blocks, arguments.steps))
            print(*row(results[-1]).values(), sep=" | ", file=sys.stderr, flush=True)
    print(markdown([row(result) for result in results]))
    print(f"\n{json.dumps(around)}")
    if arguments.json:
        write(arguments.json, around, results)


def row(result: dict[str, Any]) -> dict[str, str]:
    """One line of the table."""
    return {
        "model": result["size"],
        "steps run": result["way"],
        "ratio": f"{result['ratio']:.2f}",
        "plain ms": f"{result['plain_ms']:.1f}",
        "recorded ms": f"{result['recorded_ms']:.1f}",
        "records per step": f"{result['records']:,.0f}",
    }


def measure(size: str, way: str, blocks: int, steps: int) -> dict[str, Any]:
    """Time plain and recorded steps in this process.

    Args:
        size: One of `SIZES`.
        way: One of `WAYS`.
        blocks: How often they alternate.
        steps: How many of each.
    """
    import determinism

    step = trainer(size, is_compiled=WAYS[way])
    plain: list[float] = []
    recorded: list[float] = []
    records = 0
    with tempfile.TemporaryDirectory() as folder:
        for block in range(blocks):
            plain += timed(step, steps)
            with determinism.record(Path(folder) / str(block)) as session:
                timed(step, 1)
                before = session.num_records  # type: ignore[attr-defined]
                recorded += timed(step, steps, warm=0)
                records += session.num_records - before  # type: ignore[attr-defined]
    medians = [statistics.median(times) * 1e3 for times in (plain, recorded)]
    return {
        "size": size, "way": way, "ratio": medians[1] / medians[0], "plain_ms": medians[0], "recorded_ms": medians[1],
        "records": records / (blocks * steps),
    }  # fmt: skip


def trainer(size: str, *, is_compiled: bool) -> Callable[[], None]:
    """One step of training a small model on one batch.

    Args:
        size: One of `SIZES`.
        is_compiled: Whether the whole step is one compiled program.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    width, inner, layers = SIZES[size]
    keys = jax.random.split(jax.random.key(1), layers + 1)
    widths = [width, *[inner] * layers, 10]
    held = [jax.random.normal(key, pair) * 0.05 for key, pair in zip(keys, itertools.pairwise(widths), strict=True)]
    generator = np.random.default_rng(0)
    examples = generator.normal(size=(BATCH, width)).astype("float32")
    labels = generator.integers(0, 10, BATCH)

    def loss_of(weights: Any) -> Any:
        x = examples
        for weight in weights[:-1]:
            x = jax.nn.relu(x @ weight)
        return -jnp.mean(jax.nn.log_softmax(x @ weights[-1])[jnp.arange(BATCH), labels])

    def update(weights: Any) -> Any:
        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, jax.grad(loss_of)(weights))

    run = jax.jit(update) if is_compiled else update

    def step() -> None:
        held[:] = jax.block_until_ready(run(held))

    return step


def timed(step: Callable[[], None], count: int, warm: int = 3) -> list[float]:
    """CPU seconds of this process for each step.

    Args:
        step: Makes one step.
        count: How many are timed.
        warm: How many are made before.
    """
    for _ in range(warm):
        step()
    times = []
    for _ in range(count):
        began = time.process_time()
        step()
        times.append(time.process_time() - began)
    return times


if __name__ == "__main__":
    main()
