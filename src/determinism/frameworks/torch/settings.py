"""PyTorch's settings that change results."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

from determinism.knowledge.settings import Control

# The settings of PyTorch that `determinism.enable` reads and writes.


def has_begun(moment: str) -> bool:
    """Whether it is too late for settings that must be made before a moment.

    Args:
        moment: "device" (CUDA is initialized) or "collectives" (a process group was made).
    """
    if moment == "device":
        return torch.cuda.is_initialized()
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _attribute(path: str) -> Control:
    """Make the control of an attribute of a module within `torch`."""
    parent, _, name = path.rpartition(".")

    def owner() -> Any:
        return attrgetter(parent)(torch)

    return Control(lambda: getattr(owner(), name), lambda value: _set_existing(owner(), name, value))


def _set_existing(owner: Any, name: str, value: Any) -> None:
    # Raises if the attribute is missing: assigning would only make one that nothing reads.
    getattr(owner, name)
    setattr(owner, name, value)


def _read_determinism() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    only_warns = getattr(torch, "is_deterministic_algorithms_warn_only_enabled", lambda: False)
    return "warn" if only_warns() else "error"


def _write_determinism(value: str) -> None:
    if value == "warn":
        torch.use_deterministic_algorithms(True, warn_only=True)
    else:
        torch.use_deterministic_algorithms(value == "error")


def _inductor() -> Any:
    import torch._inductor.config as config

    config.deterministic  # noqa: B018  # raises if it is missing
    return config


def _attention(name: str) -> Control:
    """Make the control of one of the implementations that `scaled_dot_product_attention` chooses from."""

    def read() -> bool:
        return bool(getattr(torch.backends.cuda, f"{name}_enabled")())

    def write(value: bool) -> None:
        function: Callable[[bool], None] = getattr(torch.backends.cuda, f"enable_{name}")
        function(value)

    return Control(read, write)


CONTROLS: dict[str, Control] = {
    "torch._inductor.config.deterministic": Control(
        lambda: _inductor().deterministic, lambda value: setattr(_inductor(), "deterministic", value)
    ),
    "torch.use_deterministic_algorithms": Control(_read_determinism, _write_determinism),
    "torch.set_deterministic": Control(
        lambda: torch.is_deterministic(), lambda value: torch.set_deterministic(value)  # type: ignore[attr-defined]
    ),
    "torch.utils.deterministic.fill_uninitialized_memory": _attribute("utils.deterministic.fill_uninitialized_memory"),
    "torch.backends.cudnn.deterministic": _attribute("backends.cudnn.deterministic"),
    "torch.backends.cudnn.benchmark": _attribute("backends.cudnn.benchmark"),
    "torch.backends.mkldnn.deterministic": _attribute("backends.mkldnn.deterministic"),
    "torch.backends.cuda.cudnn_sdp_enabled": _attention("cudnn_sdp"),
    "torch.backends.cuda.flash_sdp_enabled": _attention("flash_sdp"),
    "torch.backends.cuda.mem_efficient_sdp_enabled": _attention("mem_efficient_sdp"),
    "torch.get_num_threads": Control(lambda: torch.get_num_threads(), lambda value: torch.set_num_threads(value)),
    "torch.get_float32_matmul_precision": Control(
        lambda: torch.get_float32_matmul_precision(), lambda value: torch.set_float32_matmul_precision(value)
    ),
    "torch.backends.cudnn.allow_tf32": _attribute("backends.cudnn.allow_tf32"),
}  # fmt: skip
"""By the names of the facts."""


# The libraries that PyTorch computes with.

_LINES = {
    "library MKL": r"Math Kernel Library Version ([\d.]+)",
    "library oneDNN": r"MKL-DNN v(\S+)",
    "library OpenMP": r"^OpenMP (\d+)",
    "library of threads": r"^ATen parallel backend: (.+)$",
}
"""By the names under which they are recorded: patterns of their versions in PyTorch's own description."""


def libraries() -> dict[str, str]:
    """Return the name and version of each library, if they can be found without touching a GPU."""
    # `torch.__config__.show()` has more, but it queries the GPU driver: after that, the process can no longer fork.
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
    """Describe the GPUs, and the libraries for them; empty if the program has not used any."""
    if not torch.cuda.is_initialized():
        return {}
    devices = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    facts = {
        f"gpu {number}": f"{device.name}, capability {device.major}.{device.minor}"
        for number, device in enumerate(devices)
    }
    return {**facts, "library cuDNN": str(torch.backends.cudnn.version()), **_gpu_libraries()}


def _gpu_libraries() -> dict[str, str]:
    """Return the versions of the GPU libraries that the program has loaded."""
    found = {"library cuBLASLt": cublaslt_version(), "library ptxas": ptxas_version()}
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        version = torch.cuda.nccl.version()
        found["library NCCL"] = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
    return {name: version for name, version in found.items() if version is not None}


def cublaslt_version() -> str | None:
    """Return the version of cuBLASLt; None if it is not loaded."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = {line.split(maxsplit=5)[-1].strip() for line in file if "/libcublasLt.so" in line}
        if not paths:
            return None
        # Danger: without the flag, this would load the library into the recorded program.
        library = ctypes.CDLL(min(paths), mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        return str(library.cublasLtGetVersion())
    except (OSError, AttributeError):
        return None


_PTXAS = re.compile(r"release [\d.]+, V(?P<version>[\d.]+)")


def ptxas_version() -> str | None:
    """Return the version of the ptxas that Triton compiled with; None if it has compiled nothing for an NVIDIA GPU."""
    compiler = sys.modules.get("triton.backends.nvidia.compiler")
    asked = getattr(compiler, "get_ptxas_version", None)
    try:
        if asked is None or not asked.cache_info().currsize:
            return None
        # Triton has called this before for this kind of GPU, and cached the result.
        text = str(asked(int("{}{}".format(*torch.cuda.get_device_capability()))))
    except Exception:
        return None
    match = _PTXAS.search(text)
    return None if match is None else match["version"]


_READ = (
    "are_deterministic_algorithms_enabled()", "get_num_threads()", "get_num_interop_threads()",
    "get_float32_matmul_precision()", "get_default_dtype()", "backends.cudnn.deterministic", "backends.cudnn.benchmark",
    "backends.cuda.matmul.allow_tf32", "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction", "backends.cudnn.allow_tf32",
    "backends.cuda.matmul.fp32_precision", "backends.cudnn.conv.fp32_precision", "backends.mkldnn.matmul.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
)  # fmt: skip
"""Attributes and functions of `torch`; older versions lack some."""


def recorded_settings() -> dict[str, str]:
    """Return the name and value of each setting, as text."""
    values = {"torch.backends.mkldnn.enabled": str(torch.backends.mkldnn.is_available())}
    for name in _READ:
        try:
            value = attrgetter(name.removesuffix("()"))(torch)
            values[f"torch.{name}"] = str(value() if name.endswith("()") else value)
        except AttributeError:
            continue
        except RuntimeError:
            # There are an old and a new API for precision; if both were used, some settings cannot be read.
            values[f"torch.{name}"] = "not readable"
    return values


def computing_settings() -> dict[str, bool | int | str]:
    """Return the settings that determine how an op computes, as plain values."""
    return {
        "num_threads": torch.get_num_threads(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_deterministic": bool(torch.backends.cudnn.deterministic),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
    }
