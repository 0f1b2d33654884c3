"""The cost of recording: CPU time of watched and plain training steps, which alternate in one process, with one thread.

    python benchmarks/overhead.py --size 1M --level op op-python module step --peers empty,debugmode,msprobe

Each row is measured in a separate process, since some tools change PyTorch as soon as they are imported. `debugmode` is part of
PyTorch; `msprobe` is the package mindstudio-probe, which has many dependencies, so install it in its own environment and run
the benchmark there:

    python -m venv .venv/peers
    .venv/peers/bin/pip install --editable . torch==2.13.0 mindstudio-probe
    .venv/peers/bin/python benchmarks/overhead.py --peers empty,debugmode,msprobe

The models `ppo` and `sac` need stable-baselines3, in the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from contenders import CONTENDERS, OURS, PEERS, timed
from gpt import SIZES, Trainer
from measured import markdown, surroundings, write
from other_models import OTHERS


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=[*SIZES, *OTHERS], nargs="+", default=["1M"])
    parser.add_argument("--level", choices=OURS, nargs="*", default=["op"])
    parser.add_argument("--peers", default="", help=f"some of {','.join(PEERS)}")
    parser.add_argument("--blocks", type=int, default=8, help="how often plain and watched steps take turns")
    parser.add_argument("--steps", type=int, default=10, help="how many of each per turn")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", nargs=2, metavar=("CONTENDER", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, file = arguments.measure
        Path(file).write_text(json.dumps(measure(name, arguments.size[0], arguments.blocks, arguments.steps)))
        return
    around = surroundings("determinism", "torch", "mindstudio-probe")
    results = []
    for size in arguments.size:
        for name in chosen(arguments.level, arguments.peers):
            results.append(in_a_fresh_process(name, size, arguments.blocks, arguments.steps))
            print(*row(results[-1]).values(), sep=" | ", file=sys.stderr, flush=True)
    print(markdown([row(result) for result in results]))
    print(f"\n{json.dumps(around)}")
    if arguments.json:
        write(arguments.json, around, results)


def chosen(levels: list[str], peers: str) -> list[str]:
    """Names of contenders; ends the program if a requested one is not available."""
    names = list(levels)
    for peer in filter(None, peers.split(",")):
        if peer not in PEERS:
            sys.exit(f"There is no peer {peer!r}; give some of {', '.join(PEERS)}.")
        names += PEERS[peer]
    for name in names:
        missing = CONTENDERS[name]().missing()
        if missing is not None:
            sys.exit(
                f"{missing} {sys.executable} does not have it, so nothing was measured. See --help on how to install it."
            )
    return names


def in_a_fresh_process(name: str, size: str, blocks: int, steps: int) -> dict[str, Any]:
    """Measure one contender in a process that has imported nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        counts = ["--size", size, "--blocks", str(blocks), "--steps", str(steps)]
        command = [sys.executable, __file__, *counts, "--measure", name, str(file)]
        # Some tools print a lot; only errors are of interest.
        done = subprocess.run(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{done.stdout}\nMeasuring {name} ended with exit status {done.returncode}.")
        result: dict[str, Any] = json.loads(file.read_text())
        return result


def measure(name: str, size: str, blocks: int, steps: int) -> dict[str, Any]:
    """Alternate plain steps and steps under a contender."""
    torch.set_num_threads(1)
    contender = CONTENDERS[name]()
    trainer: Any = OTHERS[size]() if size in OTHERS else Trainer(SIZES[size])
    timed(trainer, 3)
    ratios, plain_all, watched_all = [], [], []
    for _ in range(blocks):
        plain = timed(trainer, steps)
        block = contender.block(trainer, steps)
        ratios.append(contender.typical(block.seconds) / contender.typical(plain))
        plain_all += plain
        watched_all += block.seconds
    return {
        "contender": name,
        "title": contender.title,
        "size": size,
        "model": getattr(trainer, "title", "GPT"),
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "plain_milliseconds": round(1000 * statistics.median(plain_all), 2),
        "watched_milliseconds": round(1000 * statistics.median(watched_all), 2),
        "records_per_step": block.records,
        "disk_bytes_per_step": block.disk_bytes,
    }


def row(result: dict[str, Any]) -> dict[str, str]:
    """One line of the table."""
    ratios = result["ratios"]
    records, size = result["records_per_step"], result["disk_bytes_per_step"]
    return {
        "model": f"{result['model']}, {_count(result['parameters'])} parameters",
        "watched by": result["title"],
        "ratio": f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        "plain ms": f"{result['plain_milliseconds']:.1f}",
        "watched ms": f"{result['watched_milliseconds']:.1f}",
        "records per step": f"{records:,}" if records else "–",
        "bytes per record on disk": f"{size / records:.1f}" if size and records else "–",
    }


def _count(parameters: int) -> str:
    return f"{parameters / 1e6:.1f} M" if parameters >= 1e5 else f"{parameters:,}"


if __name__ == "__main__":
    main()
