"""Write the measurements of `benchmarks/patches.py` into `docs/patches-pytorch.md`: `make docs`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "patches-pytorch.md"
RESULTS = ROOT / "benchmarks" / "results"
MARK = "<!-- From here on written by `make docs`. -->\n"
DEVICES = ("cuda", "cpu")
TESTED_ON_A_GPU = (
    "On an NVIDIA H200 with PyTorch 2.11.0 (2026-11-27), each op ran in deterministic mode, gave the same bits in 200 repeats, and "
    "what the CPU gives up to rounding, in small sizes (`pytest -m gpu tests/adapters/test_torch_patches_gpu.py`: of 128 tests 126 passed, before the time was up). "
    "The table has sizes of real models; there the mode itself replaces some functions by others, whose time is under *in deterministic mode*. "
    "`ctc-loss` has been computed in another way since, in a fixed number of operations instead of some for each time; that was not run on a GPU."
)


def section(measured: dict[str, Any]) -> str:
    """One table, with the place and date of the measurement."""
    on_cpu = measured["device"] == "cpu"
    versions = measured["versions"]
    lines = [
        f"\n### On a {'CPU' if on_cpu else 'GPU'}\n",
        f"PyTorch {versions['torch']}, {measured['processor'] if on_cpu else measured['device_name']}, "
        f"{measured['threads']} threads, load average {measured['load_average'][0]}, {measured['date']}; float32."
        + (" The code for GPUs, bound to the CPU's kernels." if on_cpu else "")
        + "\n",
        *([] if on_cpu else [TESTED_ON_A_GPU + _left_out(measured) + "\n"]),
        "| op | on a GPU, as declared | stock here, in deterministic mode | stock, distinct | patched | patched, distinct | stock, error "
        "| patched, error | time | in deterministic mode | memory |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(_row(one) for one in measured["results"]),
    ]
    return "\n".join(lines) + "\n"


def _left_out(measured: dict[str, Any]) -> str:
    """The replacements of the benchmark that were not measured."""
    cases = (ROOT / "benchmarks" / "patched_ops.py").read_text(encoding="utf-8")
    patches = dict.fromkeys(re.findall(r'\bOpCase\(\s*"([^"]+)"', cases))
    missing = [f"`{patch}`" for patch in patches if patch not in {found["patch"] for found in measured["results"]}]
    return f" Not measured there: {', '.join(missing)}." if missing else ""


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
    return page.partition(MARK)[0] + MARK + "".join(found)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
