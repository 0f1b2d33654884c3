"""Measures ops in a process of its own: `determinism audit` starts it, hands it a request, and reads a line per result."""

from __future__ import annotations

import warnings
from functools import partial

import torch

from determinism.frameworks.op_audit.process import about_machine, answer, read_request, with_device
from determinism.frameworks.torch import patches
from determinism.frameworks.torch.op_audit import database_cases
from determinism.frameworks.torch.op_audit.cases import all_cases
from determinism.frameworks.torch.op_audit.measuring import measure

_PASSED_ON = ("device", "seed", "runs", "seconds", "deterministic_mode", "patched")


def main() -> int:
    """Read the request on standard input, and write what was found on standard output, line by line."""
    request = read_request()
    # Some ops say that they are new or old; that is not what is asked for.
    warnings.simplefilter("ignore")
    if request["threads"] is not None:
        torch.set_num_threads(request["threads"])
    # Replacements last as long as this is held on to.
    replaced = patches.apply() if request["patched"] else None
    accelerators = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    about = with_device(about_machine(torch.__version__), request["device"], accelerators)
    cases = database_cases.cases() if request["database"] else all_cases()
    answer(request, about, cases, partial(measure, **{name: request[name] for name in _PASSED_ON}))
    if replaced is not None:
        replaced.restore()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
