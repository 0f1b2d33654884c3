"""The cost of comparing runs of many ranks: time and memory of a process that does nothing else.

    python benchmarks/many_ranks.py --ranks 100 1000 --jobs 1 2 --json benchmarks/results/many-ranks.json
    python benchmarks/many_ranks.py --ranks 1000 --steps 1430 --cases same --jobs 1 2 --json benchmarks/results/many-long-ranks.json

Two ranks are really recorded, twice with equal runs and twice with the generator of rank 1 reseeded in each run; the other
ranks are copies of rank 0, which share its files on the disk. Needs PyTorch, and Linux, for the memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from measured import markdown, surroundings, write

_PROGRAM = textwrap.dedent("""
    import sys, torch
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    if rank == 1 and "differs" in sys.argv:
        torch.seed()
    for _ in range(int(sys.argv[1])):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    distributed.barrier()
    distributed.destroy_process_group()
""")
_CASES = {"same": "equal", "different": "one rank departed, and all others received it"}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--jobs", type=int, nargs="+", default=[1], help="how many processes compare at once")
    parser.add_argument("--steps", type=int, default=20, help="of the training that is recorded")
    parser.add_argument("--cases", nargs="+", choices=list(_CASES), default=list(_CASES))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    around = surroundings("determinism", "torch")
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recorded = {
            verdict: [record(folder, f"{verdict}-{run}", verdict, arguments.steps) for run in range(2)]
            for verdict in arguments.cases
        }
        for ranks in arguments.ranks:
            for verdict, runs in recorded.items():
                for run in runs:
                    multiply(run, ranks)
                for jobs in arguments.jobs:
                    results.append(
                        {"ranks": ranks, "jobs": jobs, "title": _CASES[verdict], **compare(runs, verdict, jobs)}
                    )
                    print(*row(results[-1]).values(), sep=" | ", file=sys.stderr, flush=True)
    print(markdown([row(result) for result in results]))
    print(f"\n{json.dumps(around)}")
    if arguments.json:
        write(arguments.json, around, results)


def record(folder: Path, name: str, verdict: str, steps: int) -> Path:
    """Record two ranks."""
    program = folder / "train.py"
    program.write_text(_PROGRAM)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    command = [sys.executable, "-m", "determinism", "record", "-o", str(folder / name), "--", *launcher]
    subprocess.run(
        [*command, str(steps), *(["differs"] if verdict == "different" else [])], check=True, capture_output=True
    )
    return folder / name


def multiply(run: Path, ranks: int) -> None:
    """Add copies of rank 0 until there are this many ranks."""
    processes = run / "processes"
    first = processes / "main.rank-2"
    if not first.exists():
        shutil.copytree(processes / "main.rank-0", first)
        rename(first)
    for rank in range(3, ranks):
        if not (copy := processes / f"main.rank-{rank}").exists():
            shutil.copytree(first, copy, copy_function=os.link)


def rename(copy: Path) -> None:
    """Remove the identity of the original from the files of a copy."""
    path = copy / "process.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "process"}))
    for path in copy.glob("*.arrow"):
        with pa.ipc.open_stream(path.read_bytes()) as stream:
            schema, batches = stream.schema, list(stream)
        metadata = {key: value for key, value in (schema.metadata or {}).items() if key != b"process"}
        with pa.ipc.new_stream(
            path, schema.with_metadata(metadata), options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as out:
            for batch in batches:
                out.write_batch(batch)


def compare(runs: list[Path], verdict: str, jobs: int) -> dict[str, Any]:
    """Compare two runs in a separate process, which may have workers."""
    began = time.perf_counter()
    report = runs[0].parent / "report.json"
    command = [sys.executable, "-m", "determinism", "compare", "--jobs", str(jobs), "--json", str(report)]
    command += map(str, runs)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    found = json.loads(report.read_text())
    report.unlink()
    if found["verdict"] != verdict or (
        verdict == "different" and found["first_divergence"]["process"] != "main.rank-1"
    ):
        sys.exit(f"The comparison of {runs[0].name} and {runs[1].name} is wrong: {found['verdict']}.")
    return {
        "records": found["recorded"]["records"],
        "seconds": round(seconds, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_megabytes": round(usage.ru_maxrss / 1024),
    }


def row(result: dict[str, Any]) -> dict[str, str]:
    """A line of the table."""
    return {
        "ranks": f"{result['ranks']:,}",
        "jobs": f"{result['jobs']}",
        "records of a run": f"{result['records']:,}",
        "second run": result["title"],
        "seconds": f"{result['seconds']:.1f}",
        "CPU seconds": f"{result['cpu_seconds']:.1f}",
        "peak MB": f"{result['peak_megabytes']}",
    }


if __name__ == "__main__":
    main()
