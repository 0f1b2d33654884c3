"""The libraries that PyTorch computes with."""

from __future__ import annotations

import re

import torch

_LINES = {
    "library MKL": r"Math Kernel Library Version ([\d.]+)",
    "library oneDNN": r"MKL-DNN v(\S+)",
    "library OpenMP": r"^OpenMP (\d+)",
    "library of threads": r"^ATen parallel backend: (.+)$",
}
"""By the names under which they are recorded: where their versions stand in what PyTorch says of itself."""


def libraries() -> dict[str, str]:
    """Name and version of each library, as far as it can be told without touching a GPU."""
    # `torch.__config__.show()` says more, and asks the driver for GPUs: then children can no longer be forked.
    text = torch.__config__.parallel_info()
    found = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in _LINES.items()}
    return {
        "library instruction set": str(torch.backends.cpu.get_cpu_capability()),
        **{name: "none" if match is None else match[1].strip() for name, match in found.items()},
        "library source of torch": str(torch.version.git_version)[:12],
        "library CUDA": str(torch.version.cuda or "none"),
        "library ROCm": str(torch.version.hip or "none"),
    }


def gpu_facts() -> dict[str, str]:
    """What is known of the GPUs that the program used; nothing where it used none."""
    if not torch.cuda.is_initialized():
        return {}
    devices = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    facts = {
        f"gpu {number}": f"{device.name}, capability {device.major}.{device.minor}"
        for number, device in enumerate(devices)
    }
    return {**facts, "library cuDNN": str(torch.backends.cudnn.version())}
