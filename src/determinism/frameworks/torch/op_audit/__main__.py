"""Measures ops in a process of its own: `determinism audit` starts it, hands it a request, and reads a line per result."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict

import torch

from determinism import environment
from determinism.frameworks.torch.op_audit import database_cases
from determinism.frameworks.torch.op_audit.cases import all_cases
from determinism.frameworks.torch.op_audit.measuring import measure


def main() -> int:
    """Read the request on standard input, and write what was found on standard output, line by line."""
    request = json.loads(sys.stdin.read())
    # Some ops say that they are new or old; that is not what is asked for.
    warnings.simplefilter("ignore")
    if request["threads"] is not None:
        torch.set_num_threads(request["threads"])
    known = database_cases.cases() if request["database"] else all_cases()
    chosen = [case for case in known if not request["ops"] or case.op in request["ops"]]
    about = _about(request["device"])
    _write({"cases": len(chosen), "about": about})
    if not about["has_device"]:
        return 0
    for case in chosen:
        found = measure(
            case,
            device=request["device"],
            seed=request["seed"],
            runs=request["runs"],
            seconds=request["seconds"],
            deterministic_mode=request["deterministic_mode"],
        )
        _write({"case": case.name, "measured": [asdict(one) for one in found]})
    return 0


def _about(device: str) -> dict[str, object]:
    described = environment.describe()
    has_gpu = torch.cuda.is_available()
    hardware = {"processor": described["processor"], "cores": described["processors"]}
    if device == "cuda" and has_gpu:
        hardware["accelerator"] = torch.cuda.get_device_name()
    kept = {"python", "platform", *(name for name in described if name.startswith("package "))}
    return {
        "version": torch.__version__,
        "has_device": device == "cpu" or (device == "cuda" and has_gpu),
        "hardware": hardware,
        "versions": {name.removeprefix("package "): described[name] for name in sorted(kept)},
    }


def _write(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
