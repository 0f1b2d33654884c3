"""Writes what `benchmarks/patches.py` measured into `docs/patches-pytorch.md`: `make docs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "patches-pytorch.md"
RESULTS = ROOT / "benchmarks" / "results"
MARK = "<!-- From here on written by `make docs`. -->\n"
DEVICES = ("cuda", "cpu")
NOT_MEASURED = (
    "\n### On a GPU\n\nOn an NVIDIA H200 with PyTorch 2.11.0 (2026-11-27), each op ran in deterministic mode, gave the same bits in 200 repeats, and "
    "what the CPU gives up to rounding, in small sizes (`pytest -m gpu tests/adapters/test_torch_patches_gpu.py`: of 128 tests 126 passed, before the time was up). "
    "Time and memory were not measured: `python benchmarks/patches.py --json benchmarks/results/patches-cuda.json` does that, with sizes of real models.\n"
)


def section(measured: dict[str, Any]) -> str:
    """One table, with where and when it was measured."""
    on_cpu = measured["device"] == "cpu"
    versions = measured["versions"]
    lines = [
        f"\n### On a {'CPU' if on_cpu else 'GPU'}\n",
        f"PyTorch {versions['torch']}, {measured['processor'] if on_cpu else measured['device_name']}, "
        f"{measured['threads']} threads, load average {measured['load_average'][0]}, {measured['date']}; float32."
        + (" The code for GPUs, bound to the CPU's kernels." if on_cpu else "")
        + "\n",
        "| op | on a GPU, as declared | stock here, in deterministic mode | stock, distinct | patched | patched, distinct | stock, error "
        "| patched, error | time | in deterministic mode | memory |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(_row(one) for one in measured["results"]),
    ]
    return "\n".join(lines) + "\n"


def _row(found: dict[str, Any]) -> str:
    def ratio(over: str, under: str) -> str:
        return f"{found[over] / found[under]:.2f}" if found.get(over) and found.get(under) else "–"

    cells = [
        f"`{found['op']}`",
        f"raises: `{found['alert']}`" if found["alert"] else "no alert",
        "raises" if found["raises"] else "runs",
        f"{found['stock_distinct']} of {found['repeats']}",
        "runs" if found["runs"] else "the stock kernel runs",
        f"{found['distinct']} of {found['repeats']}",
        _small(found["stock_error"]),
        _small(found["error"]),
        ratio("patched_ms", "stock_ms"),
        ratio("patched_ms", "deterministic_ms"),
        ratio("patched_bytes", "stock_bytes"),
    ]
    return f"| {' | '.join(cells)} |"


def _small(value: float | None) -> str:
    return "–" if value is None else "0" if value == 0 else f"{value:.1e}"


def written(page: str) -> str:
    """The page with the tables as they should be."""
    files = {device: RESULTS / f"patches-{device}.json" for device in DEVICES}
    found = [section(json.loads(file.read_text(encoding="utf-8"))) for file in files.values() if file.exists()]
    return page.partition(MARK)[0] + MARK + ("" if files["cuda"].exists() else NOT_MEASURED) + "".join(found)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
