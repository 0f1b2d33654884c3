"""The effects of `determinism.patch` for PyTorch, op by op: whether it raises or varies, its error, time and memory.

    python benchmarks/patches.py --json benchmarks/results/patches-cuda.json

Each op is called as stock, and with the replacement in PyTorch's deterministic mode. On a GPU, sizes are those of real models.
Without one, the code for GPUs is bound to the CPU's kernels, in small sizes: that shows whether it is correct and whether it
varies, but its times say nothing about a GPU. Only ops that are also replaced on the CPU are timed there, with that replacement.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

import determinism
from determinism.frameworks.torch.device_digests import Ring, open_ring
from determinism.frameworks.torch.patches.catalogue import ALERTS, PATCHES
from determinism.frameworks.torch.patches.patch import alerts_on_cpu, bind
from measured import markdown, surroundings, write
from patched_kernels import capturing, error, in_float64, patched_cpu
from patched_ops import CASES, Call, OpCase

ALERT = "does not have a deterministic implementation"
ALSO_ON_CPU = [one.identity for one in PATCHES if one.varies_on_cpu or alerts_on_cpu(one)]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="small sizes on a GPU too")
    parser.add_argument("--ops", default="", help="only cases whose title contains this")
    parser.add_argument("--repeats", type=int, default=200, help="how many results of each are compared")
    parser.add_argument("--json", type=Path, help="keep the results in a file")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device(asked.device)
    small = asked.small or device.type == "cpu"
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    threads = torch.get_num_threads()
    around = surroundings("torch", "triton") | {"device": device.type, "device_name": name, "threads": threads}
    results = []
    for case in [one for one in CASES if asked.ops in one.title]:
        sizes = case.crowded or case.small if device.type == "cpu" else case.small if small else case.model
        print(case.title, sizes, file=sys.stderr, flush=True)
        results.append(measured_case(case, sizes, device, asked.repeats))
        if asked.json:
            # Now, not at the end: this takes minutes, and the measurements must not be lost.
            write(asked.json, around, results)
    if device.type == "cpu":
        print(
            "Measured on a CPU: the code for GPUs was bound to its kernels. Times are those of what is replaced on the CPU.\n"
        )
    print(markdown([row(one) for one in results]))


def measured_case(case: OpCase, sizes: tuple[int, ...], device: torch.device, repeats: int) -> dict[str, Any]:
    """The results of one case."""
    call = case.call(sizes, torch.float32, device)
    found: dict[str, Any] = {"op": case.title, "patch": case.patch, "sizes": sizes, "repeats": repeats}
    found["alert"] = ALERTS.get(case.patch)
    found["stock_distinct"] = distinct(call, repeats)
    found["raises"] = raised_in_deterministic_mode(case, sizes, device)
    stock_ms, stock_bytes = cost(call, device)
    mode_ms = None if found["raises"] else deterministic_cost(case, sizes, device)
    calls: list[Any] = []
    with bound(device, calls), deterministic_mode():
        patched = case.call(sizes, torch.float32, device)
        patched()
        ran = [one for one in calls if one[0].identity == case.patch]
        calls.clear()
        found["runs"] = bool(ran)
        found["distinct"] = distinct(patched, repeats, calls.clear)
    found |= errors(ran)
    if device.type == "cuda" or case.patch in ALSO_ON_CPU:
        with determinism.patch():
            patched_ms, patched_bytes = cost(case.call(sizes, torch.float32, device), device)
        found |= {"stock_ms": stock_ms, "deterministic_ms": mode_ms, "patched_ms": patched_ms}
        found |= {"stock_bytes": stock_bytes, "patched_bytes": patched_bytes}
    return found


def errors(ran: list[Any]) -> dict[str, float | None]:
    """The distances of the replacement, and of the stock op on the same arguments, from the stock op in float64."""
    ours, stock = [], []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one thread decides what stock leaves open between threads
    for patch, (given, named), left in ran:
        try:
            reference = in_float64(patch, given, named)
            again = in_float64(patch, given, named, wider=False)
        except (RuntimeError, torch.cuda.OutOfMemoryError):
            continue
        ours.append(error(left, reference))
        stock.append(error(again, reference))
    torch.set_num_threads(threads)
    return {"error": max(ours, default=None), "stock_error": max(stock, default=None)}


@contextmanager
def bound(device: torch.device, calls: list[Any]) -> Iterator[None]:
    """Replacements that note their calls."""
    noting = capturing(PATCHES, calls)
    if device.type == "cpu":
        with patched_cpu([one for one in noting if not one.identity.endswith("cudnn")]):
            yield
        return
    _, restore = bind(noting, "gpu")
    try:
        yield
    finally:
        restore()


@contextmanager
def deterministic_mode() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def raised_in_deterministic_mode(case: OpCase, sizes: tuple[int, ...], device: torch.device) -> bool:
    """Whether stock raises for the op, forward or backward."""
    with deterministic_mode():
        try:
            case.call(sizes, torch.float32, device)()
        except RuntimeError as refusal:
            return ALERT in str(refusal)
    return False


def deterministic_cost(case: OpCase, sizes: tuple[int, ...], device: torch.device) -> float:
    with deterministic_mode():
        # Prepared in the mode: some functions call different ops in it.
        return cost(case.call(sizes, torch.float32, device), device)[0]


def distinct(call: Call, repeats: int, after_each: Callable[[], None] = lambda: None) -> int:
    """How many bitwise different results the repeats gave."""
    digests = set()
    for _ in range(repeats):
        digests.add(_digest([result.detach() for result in call()]))
        after_each()
    return len(digests)


def _digest(results: list[torch.Tensor]) -> bytes:
    if results[0].is_cuda:
        return b"".join(ticket.wait() for ticket in _ring(results[0].device).ask(results))
    digest = hashlib.sha256()
    for result in results:
        digest.update(result.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


@cache
def _ring(device: torch.device) -> Ring:
    return open_ring(device)


def cost(call: Call, device: torch.device, blocks: int = 7) -> tuple[float, int | None]:
    """Milliseconds of one call, the fastest of several blocks, since others may use the machine; and on a GPU the largest memory that it took beyond what was there."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)  # with more, the time is that of waiting for threads that others keep from running
    call()
    _wait(device)
    began = time.perf_counter()
    call()
    _wait(device)
    per_block = max(1, int(0.05 / max(time.perf_counter() - began, 1e-6)))
    seconds = [_seconds(call, per_block, device) for _ in range(blocks)]
    torch.set_num_threads(threads)
    return min(seconds) * 1000, _memory(call, device)


def _seconds(call: Callable[[], Any], times: int, device: torch.device) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    _wait(device)
    return (time.perf_counter() - began) / times


def _memory(call: Callable[[], Any], device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    _wait(device)
    return torch.cuda.max_memory_allocated() - before


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def row(found: dict[str, Any]) -> dict[str, str]:
    """A line of the table."""

    def ratio(over: str, under: str) -> str:
        return f"{found[over] / found[under]:.2f}" if found.get(over) and found.get(under) else "–"

    def small(value: float | None) -> str:
        return "–" if value is None else f"{value:.1e}"

    of = f" of {found['repeats']}"
    return {
        "op": found["op"],
        "sizes": " × ".join(map(str, found["sizes"])),
        "stock in deterministic mode": "raises" if found["raises"] else "runs",
        "stock, distinct": f"{found['stock_distinct']}{of}",
        "patched": "runs" if found["runs"] else "not called",
        "patched, distinct": f"{found['distinct']}{of}",
        "stock, error": small(found["stock_error"]),
        "patched, error": small(found["error"]),
        "time": ratio("patched_ms", "stock_ms"),
        "time to deterministic stock": ratio("patched_ms", "deterministic_ms"),
        "memory": ratio("patched_bytes", "stock_bytes"),
    }


if __name__ == "__main__":
    main()
