"""The cost of a check that finds a cause: CPU seconds of a plain run, of `check --no-explain` and of `check`, for ten programs.

    python benchmarks/search_cost.py --json benchmarks/results/search-cost.json

Each program trains a small network for a few seconds and differs from run to run for a different reason. The CPU time is that of
all processes, as the kernel counts it, with one thread for each; for a plain run it is the median of three, before, between and
after the checks. "Beyond start-up" subtracts from both sides what the program takes without any step, mostly imports: from the
check as often as the program was started. Needs PyTorch, and Linux or macOS.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measured import markdown, surroundings, write

_IMPORTS = "import os, random, threading, queue, time, numpy as np, torch\nfrom torch import nn\n"

_PROGRAM = textwrap.dedent("""
    open(os.environ["STARTS"], "a").write("x")
    {seeds}
    {before}
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 24 * 24, {width}), nn.ReLU(), nn.Linear({width}, 10)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range({steps}):
        images, labels = torch.randn(16, 1, 28, 28), torch.randint(10, (16,))
        {step}
        loss = nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())
""")

_SEEDED = "random.seed(0); np.random.seed(0); torch.manual_seed(0)"
_QUEUE = """
scales = queue.Queue()
def put(worker):
    for number in range(6):
        values = torch.linspace(0, 1, 20000)
        for _ in range(20):
            values = torch.sin(values * 1.1)
        scales.put(1 + (6 * worker + number) / 48)
workers = [threading.Thread(target=put, args=(worker,)) for worker in range(3)]
for worker in workers: worker.start()
for worker in workers: worker.join()
order = [scales.get() for _ in range(18)]
"""

_CASES: dict[str, dict[str, str]] = {
    "seed-missing-torch": {"seeds": "random.seed(0); np.random.seed(0)"},
    "seed-missing-numpy": {
        "seeds": "random.seed(0); torch.manual_seed(0)",
        "step": "images += torch.from_numpy(np.random.normal(0, 0.1, images.shape)).float()",
    },
    "seed-missing-python": {
        "seeds": "np.random.seed(0); torch.manual_seed(0)",
        "step": "images *= random.choice([0.9, 1.0, 1.1])",
    },
    "unseeded-generator": {
        "before": "noise = np.random.default_rng()",
        "step": "images += torch.from_numpy(noise.normal(0, 0.1, images.shape)).float()",
    },
    "hash-order": {
        "before": "vocabulary = {word: i for i, word in enumerate({f'word{i}' for i in range(64)})}",
        "step": "images[:, :, 0, 0] += vocabulary['word1'] / 64",
    },
    "hash-value": {"step": "images[:, :, 0, 0] += hash(f'row{step}') % 100 / 100"},
    "clock": {"before": "began = time.time()", "step": "images[:, :, 0, 0] += (time.time() - began) / 100"},
    "outside-entropy": {"step": "images[:, :, 0, 0] += os.urandom(1)[0] / 255"},
    "queue-order": {"before": _QUEUE, "step": "images[:, :, 0, 0] += order[step % 18]"},
    "late difference": {"step": "images[:, :, 0, 0] += hash('x') % 100 / 100 if step > 300 else 0"},
}


def program(case: dict[str, str], *, steps: int, width: int) -> str:
    """The text of one program."""
    parts = {"seeds": _SEEDED, "before": "", "step": ""} | case
    step = parts["step"].replace("\n", "\n    ")
    return _IMPORTS + _PROGRAM.format(seeds=parts["seeds"], before=parts["before"], step=step, steps=steps, width=width)


def cpu_seconds(command: Sequence[str], folder: Path) -> tuple[float, int, str]:
    """CPU seconds of a command with all its processes, how often it started the program, and what it printed."""
    starts = folder / "starts"
    starts.write_text("")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    environment |= {"STARTS": str(starts), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, len(starts.read_text()), done.stdout


def plain_seconds(name: str, run: Sequence[str], folder: Path) -> float:
    """CPU seconds of a plain run, which must not fail."""
    seconds, _, printed = cpu_seconds(run, folder)
    if "Traceback" in printed:
        raise SystemExit(f"{name} does not run:\n{printed}")
    return seconds


def measure(name: str, case: dict[str, str], folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one program plainly, under a check, and under a check that searches."""
    script = folder / "train.py"
    run = [sys.executable, str(script)]
    script.write_text(program(case, steps=0, width=arguments.width))
    startup = statistics.median(cpu_seconds(run, folder)[0] for _ in range(3))
    script.write_text(program(case, steps=arguments.steps, width=arguments.width))
    check = [sys.executable, "-m", "determinism", "check"]
    report = folder / "report.json"
    plain_runs = [plain_seconds(name, run, folder)]
    checked, check_runs, _ = cpu_seconds([*check, "--no-explain", "--", *run], folder)
    plain_runs.append(plain_seconds(name, run, folder))
    searched, runs, _ = cpu_seconds([*check, "--json", str(report), "--", *run], folder)
    plain_runs.append(plain_seconds(name, run, folder))
    plain = statistics.median(plain_runs)
    document = json.loads(report.read_text())
    beyond = (searched - runs * startup) / (plain - startup)
    return {
        "program": name,
        "cause": ", ".join(f"{cause['id']} ({cause['status']})" for cause in document["causes"][:1]),
        "verified": any(fix["verified"] for fix in document["fixes"]),
        "startup_seconds": round(startup, 2),
        "plain_seconds": round(plain, 2),
        "check_seconds": round(checked, 2),
        "check_runs": check_runs,
        "search_seconds": round(searched, 2),
        "runs": runs,
        "beyond_startup": round(beyond, 2),
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--only", nargs="+", choices=_CASES, default=list(_CASES))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    around = surroundings("determinism", "torch", "numpy")
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in arguments.only:
            results.append(measure(case, _CASES[case], folder, arguments))
            print(results[-1], file=sys.stderr, flush=True)
    print(markdown([row(result) for result in results]))
    if arguments.json is not None:
        write(arguments.json, around, results)


def row(result: dict[str, Any]) -> dict[str, str]:
    """One line of the table."""
    plain = result["plain_seconds"]
    return {
        "differs by": result["program"],
        "cause": result["cause"] + (", fix verified" if result["verified"] else ""),
        "plain": f"{plain:.1f} s",
        "check": f"{result['check_seconds']:.1f} s ({result['check_seconds'] / plain:.1f}×)",
        "with search": f"{result['search_seconds']:.1f} s ({result['search_seconds'] / plain:.1f}×)",
        "runs": str(result["runs"]),
        "beyond start-up": f"{result['beyond_startup']:.1f}×",
    }


if __name__ == "__main__":
    main()
