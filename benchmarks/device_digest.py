"""The speed of digesting tensors on a GPU, compared with copying them, and with the copy to the host that it replaces.

    python benchmarks/device_digest.py --json benchmarks/results/device-digest.json

Needs a GPU and Triton; without them it says so and exits with status 2. Each row is for tensors of one size, digested one by
one and many at once. The goal is at least 90 % of the rate at which a copy reads, for tensors of 64 MiB and more.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from determinism.frameworks.torch.device_digests import Ring, open_ring
from determinism.frameworks.torch.tensor_bytes import digest_tensor
from measured import markdown, surroundings, write

SIZES = (256, 16 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30)
SMALL = 1 << 20
"""Up to this size, many tensors are also digested by one launch."""


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=9, help="how often each is timed")
    parser.add_argument("--json", type=Path, help="keep the results in a file")
    asked = parser.parse_args()
    device = require_gpu()
    ring = open_ring(device)
    results = [measured(ring, device, size, asked.blocks) for size in SIZES]
    print(markdown([row(one) for one in results]))
    if asked.json:
        around = surroundings("determinism", "torch", "triton")
        write(asked.json, around | {"device_name": torch.cuda.get_device_name()}, results)


def require_gpu() -> torch.device:
    """The GPU; ends the program if there is none."""
    if not torch.cuda.is_available():
        print(
            f"PyTorch {torch.__version__} finds no GPU here, so nothing was measured. Run this on a machine that has one.",
            file=sys.stderr,
        )
        sys.exit(2)
    return torch.device("cuda", torch.cuda.current_device())


def measured(ring: Ring, device: torch.device, size: int, blocks: int) -> dict[str, Any]:
    """Seconds for one size."""
    tensor = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
    other = torch.empty_like(tensor)
    shifted = torch.randint(0, 256, (size + 4,), dtype=torch.uint8, device=device)[4:]
    found = {
        "bytes": size,
        "digest": gpu_seconds(lambda: ring.ask([tensor]), size, blocks),
        "digest_shifted_by_4": gpu_seconds(lambda: ring.ask([shifted]), size, blocks),
        "copy": gpu_seconds(lambda: other.copy_(tensor), size, blocks),
        "queueing": host_seconds(lambda: ring.ask([tensor]), blocks),
        "on_the_host": host_seconds(lambda: digest_tensor(tensor), blocks, times=3),
    }
    if size <= SMALL:
        many = [tensor.clone() for _ in range(128)]
        found["digest_of_128"] = gpu_seconds(lambda: ring.ask(many), size * 128, blocks)
        found["queueing_128"] = host_seconds(lambda: ring.ask(many), blocks)
    return found


def gpu_seconds(call: Callable[[], Any], size: int, blocks: int) -> float:
    """Seconds that the GPU needs for one call when many are queued."""
    times = max(3, min(200, (4 << 30) // size))
    call()
    seconds = []
    for _ in range(blocks):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        # Work that is queued while the GPU is busy with this runs without gaps.
        torch.cuda._sleep(20_000_000)
        begin.record()
        for _ in range(times):
            call()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1000 / times)
    return statistics.median(seconds)


def host_seconds(call: Callable[[], Any], blocks: int, times: int = 50) -> float:
    """Seconds until a call returns."""
    call()
    seconds = []
    for _ in range(blocks):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times):
            call()
        seconds.append((time.perf_counter() - began) / times)
    return statistics.median(seconds)


def row(found: dict[str, Any]) -> dict[str, str]:
    """A line of the table; a copy reads as many bytes as it writes, so its reading takes half of the bandwidth."""

    def rate(name: str, size: int) -> str:
        return f"{size / found[name] / 1e9:,.1f}" if name in found else "–"

    def microseconds(name: str) -> str:
        return f"{found[name] * 1e6:,.1f}" if name in found else "–"

    size = found["bytes"]
    return {
        "bytes": f"{size:,}",
        "digest GB/s": rate("digest", size),
        "shifted by 4 bytes GB/s": rate("digest_shifted_by_4", size),
        "128 at once GB/s": rate("digest_of_128", 128 * size),
        "copy, read and written GB/s": rate("copy", 2 * size),
        "digest to copy": f"{found['copy'] / 2 / found['digest']:.2f}",
        "queueing µs": microseconds("queueing"),
        "queueing 128 µs": microseconds("queueing_128"),
        "copied to the host and digested µs": microseconds("on_the_host"),
    }


if __name__ == "__main__":
    main()
