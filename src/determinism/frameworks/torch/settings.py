"""PyTorch's settings that change results."""

from __future__ import annotations

from operator import attrgetter

import torch

_READ = (
    "are_deterministic_algorithms_enabled()", "get_num_threads()", "get_num_interop_threads()",
    "get_float32_matmul_precision()", "get_default_dtype()", "backends.cudnn.deterministic", "backends.cudnn.benchmark",
    "backends.cuda.matmul.allow_tf32", "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction", "backends.cudnn.allow_tf32",
    "backends.cuda.matmul.fp32_precision", "backends.cudnn.conv.fp32_precision", "backends.mkldnn.matmul.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
)  # fmt: skip
"""Below `torch`; older versions lack some."""


def settings() -> dict[str, str]:
    """Name and value of each setting, as text."""
    values = {"torch.backends.mkldnn.enabled": str(torch.backends.mkldnn.is_available())}
    for name in _READ:
        try:
            value = attrgetter(name.removesuffix("()"))(torch)
            values[f"torch.{name}"] = str(value() if name.endswith("()") else value)
        except AttributeError:
            continue
        except RuntimeError:
            # Of precision there is an older and a newer way to set it; once both were used, some cannot be read.
            values[f"torch.{name}"] = "not readable"
    return values


def computing_settings() -> dict[str, bool | int | str]:
    """What decides how an op computes, as plain values."""
    return {
        "num_threads": torch.get_num_threads(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_deterministic": bool(torch.backends.cudnn.deterministic),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
    }
