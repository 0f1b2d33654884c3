"""The cost of recording below a deep Python stack, and in a step with very many parameters, relative to the plain program.

    python benchmarks/deep_and_wide.py --json benchmarks/results/deep-and-wide.json

Each program is run plain and recorded, alternating several times; the least CPU time of each counts. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from measured import markdown, surroundings, write

_DEEP = textwrap.dedent("""
    import sys, time, torch
    sys.setrecursionlimit(10_000)
    torch.set_num_threads(1)
    values = torch.ones(8)

    def deeper(left):
        if left:
            return deeper(left - 1)
        began = time.process_time()
        for _ in range(3000):
            values.add_(1)
        return (time.process_time() - began) / 3000

    print(deeper(int(sys.argv[1])))
""")
_WIDE = textwrap.dedent("""
    import sys, time, torch
    torch.set_num_threads(1)
    layers = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(int(sys.argv[1]) // 2)])
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
    seconds = []
    for _ in range(4):
        began = time.process_time()
        x = torch.ones(1, 2)
        for layer in layers:
            x = layer(x)
        x.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - began)
    print(min(seconds))
""")
_PROGRAMS = {"an op below frames of the user": _DEEP, "a step with parameters": _WIDE}
_SIZES = {"an op below frames of the user": (0, 100, 900), "a step with parameters": (1000, 10_000)}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    around = surroundings("determinism", "torch")
    results = []
    with tempfile.TemporaryDirectory() as name:
        for what, program in _PROGRAMS.items():
            for size in _SIZES[what]:
                results.append({"what": what, "size": size, **measure(Path(name), program, size, arguments.rounds)})
                print(*row(results[-1]).values(), sep=" | ", file=sys.stderr, flush=True)
    print(markdown([row(result) for result in results]))
    print(f"\n{json.dumps(around)}")
    if arguments.json:
        write(arguments.json, around, results)


def measure(folder: Path, program: str, size: int, rounds: int) -> dict[str, Any]:
    """Run a program plain and recorded, alternating."""
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, str(file), str(size)]
    plain, recorded = [], []
    for number in range(rounds):
        trace = folder / f"trace-{size}-{len(program)}-{number}"
        recording = [sys.executable, "-m", "determinism", "record", "-o", str(trace), "--", *command]
        for found, words in ((plain, command), (recorded, recording)):
            ended = subprocess.run(words, check=True, capture_output=True, text=True)
            found.append(float(ended.stdout))
    ratios = [after / before for before, after in zip(plain, recorded, strict=True)]
    return {
        "plain_seconds": min(plain),
        "recorded_seconds": min(recorded),
        "ratio": round(statistics.median(ratios), 2),
    }


def row(result: dict[str, Any]) -> dict[str, str]:
    """A line of the table."""
    return {
        "what": result["what"],
        "how many": f"{result['size']:,}",
        "plain": f"{result['plain_seconds'] * 1e6:,.1f} µs",
        "recorded": f"{result['recorded_seconds'] * 1e6:,.1f} µs",
        "ratio": f"{result['ratio']:.1f}",
    }


if __name__ == "__main__":
    main()
