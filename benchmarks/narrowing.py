"""The cost of narrowing a divergence planted deep in a long run to its op, line and cause.

    python benchmarks/narrowing.py --steps 100000 --planted 61803 --json benchmarks/results/narrowing.json

A small network is trained for many steps, one of which uses an unseeded random number. The program is run plainly, then
narrowed: from the beginning, and from a checkpoint, since it can save and resume. `--width` decides how long a step takes.
Needs PyTorch, and Linux or macOS.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measured import markdown, surroundings, write

PROGRAM = textwrap.dedent("""
    import argparse, random
    import torch
    from torch import nn

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--planted", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--save", default="")
    parser.add_argument("--load", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width = arguments.width
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    first = 0
    if arguments.load:
        state = torch.load(arguments.load)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["generator"])
        first = state["steps"]
    for step in range(first, arguments.steps):
        inputs = torch.randn(32, width)
        if step == arguments.planted:
            inputs = inputs * (1 + random.random() / 1000)
        loss = (model(inputs) - inputs.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.9g}")
    if arguments.save:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "generator": torch.get_rng_state(),
                    "steps": arguments.steps}, arguments.save)
""")
PLANTED_LINE = "random.random() / 1000"


def main() -> None:
    """Measure, show a table, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--planted", type=int, default=61_803)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--how", nargs="+", choices=("beginning", "checkpoint"), default=["checkpoint", "beginning"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    around = surroundings("torch", "determinism")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "train.py"
        program.write_text(PROGRAM)
        words = [sys.executable, str(program), "--planted", str(arguments.planted), "--width", str(arguments.width)]
        plain = timed([*words, "--steps", str(arguments.steps)], folder, 0)
        ledger = timed(
            [*DETERMINISM, "record", "--level", "step", "-o", "ledger", "--", *words, "--steps", str(arguments.steps)],
            folder,
            0,
        )
        size = sum(path.stat().st_size for path in Path(folder, "ledger").rglob("*") if path.is_file())
        results = [
            {"what": "plain run", **plain},
            {"what": "run with a ledger, level step", **ledger, "bytes_per_step": size / arguments.steps},
        ]
        results += [narrowed(how, words, arguments.steps, arguments.planted, folder) for how in arguments.how]
    for result in results:
        result["times_plain_seconds"] = round(result["seconds"] / plain["seconds"], 2)
        result["times_plain_cpu"] = round(result["cpu_seconds"] / plain["cpu_seconds"], 2)
    print(markdown([row(result) for result in results]))
    if arguments.json:
        write(
            arguments.json,
            {**around, "steps": arguments.steps, "planted": arguments.planted, "width": arguments.width},
            results,
        )


DETERMINISM = [sys.executable, "-m", "determinism"]


def timed(command: Sequence[str], folder: str, exit_status: int) -> dict[str, float]:
    """Wall-clock and CPU seconds of a command and all processes that it starts."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != exit_status:
        sys.exit(f"{done.stdout}\n{command[:4]} ended with exit status {done.returncode}.")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}


def narrowed(how: str, words: Sequence[str], steps: int, planted: int, folder: str) -> dict[str, Any]:
    """Narrow the program, and check that the step, the line and the cause are those that were planted."""
    options = ["--json", "report.json", "--no-fix"]
    if how == "checkpoint":
        command = [
            *options,
            "--steps",
            str(steps),
            "--",
            *words,
            "--steps",
            "{steps}",
            "--save",
            "{save}",
            "--load",
            "{load}",
        ]
    else:
        command = [*options, "--", *words, "--steps", str(steps)]
    spent = timed([*DETERMINISM, "narrow", *command], folder, 1)
    report = json.loads(Path(folder, "report.json").read_text())
    first, causes, narrowing = report["first_divergence"], report["causes"], report["narrowing"]
    lines = [site["code"] for cause in causes for site in cause["sites"]]
    if first["step"] != planted or not any(PLANTED_LINE in line for line in lines) or not narrowing["pinned"]:
        sys.exit(
            f"Not pinned: step {first['step']}, causes {[(cause['id'], cause['status']) for cause in causes]}, {lines}"
        )
    windows = narrowing["windows"]
    return {
        "what": f"narrowed from {'a checkpoint' if how == 'checkpoint' else 'the beginning'}",
        **spent,
        "step": first["step"],
        "op": first["op"],
        "causes": [[cause["id"], cause["status"]] for cause in causes],
        "windows": [[window["first"], window["last"]] for window in windows],
    }


def row(result: dict[str, Any]) -> dict[str, str]:
    """A line of the table."""
    return {
        "what": result["what"],
        "seconds": f"{result['seconds']:,.0f}",
        "CPU seconds": f"{result['cpu_seconds']:,.0f}",
        "times a plain run": f"{result['times_plain_seconds']:.1f}",
        "times its CPU time": f"{result['times_plain_cpu']:.2f}",
        "cause": ", ".join(f"{name} ({status})" for name, status in result.get("causes", ())) or "–",
    }


if __name__ == "__main__":
    main()
