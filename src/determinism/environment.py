"""What a run ran on: interpreter, packages, machine, and the environment variables that change results."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from itertools import takewhile
from pathlib import Path

from determinism.relocation import original_path

_PACKAGES = (
    "torch", "torchvision", "tensorflow", "keras", "jax", "jaxlib", "numpy", "scipy", "scikit-learn", "pandas",
    "transformers", "lightning", "accelerate", "datasets", "triton", "determinism",
)  # fmt: skip
_VARIABLE_PREFIXES = (
    "PYTHONHASHSEED", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "NVIDIA_", "NVTE_",
    "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TF_", "XLA_", "JAX_", "HOROVOD_", "ATEN_", "GLIBC_TUNABLES", "MALLOC_",
    "ONEDNN_", "DNNL_", "VECLIB_", "NPY_", "HIP_", "MIOPEN_", "ROCR_", "TRITON_", "LD_PRELOAD",
)  # fmt: skip
_INSTRUCTION_SETS = ("avx", "amx", "fma", "sse4", "asimd", "sve", "bf16", "i8mm")
"""What libraries choose their kernels by, as the names of the kernel's flags begin."""
_NVIDIA = Path("/proc/driver/nvidia")


def _processor() -> dict[str, str]:
    """What the system says of the first processor; nothing where it does not."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            fields = [line.partition(":") for line in takewhile(str.strip, file)]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in fields}


def _hardware() -> Iterator[tuple[str, str]]:
    """Processor and GPUs. GPUs as their driver lists them: to ask the framework would start it on them."""
    found = _processor()
    yield "processor", found.get("model name") or platform.processor() or platform.machine()
    flags = (found.get("flags") or found.get("Features") or "").split()
    yield "instruction sets", " ".join(sorted({flag for flag in flags if flag.startswith(_INSTRUCTION_SETS)})) or "none"
    yield "processors", str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    try:
        gpus = [path.read_text(encoding="utf-8") for path in sorted(_NVIDIA.glob("gpus/*/information"))]
        driver = (_NVIDIA / "version").read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        gpus, driver = [], ""
    models = [line.partition(":")[2].strip() for text in gpus for line in text.splitlines() if line.startswith("Model")]
    yield "gpus", ", ".join(f"{models.count(model)} x {model}" for model in sorted(set(models))) or "none"
    yield "driver of gpus", driver.partition(":")[2].strip() or "none"


def describe() -> dict[str, str]:
    """Name and value of everything that may make two runs differ, as flat text."""
    facts = {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "platform": platform.platform(),
        "machine": platform.machine(),
        **dict(_hardware()),
        "hash randomization": str(bool(sys.flags.hash_randomization)),
        "working directory": original_path(os.getcwd()),
    }
    for package in _PACKAGES:
        try:
            facts[f"package {package}"] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    for name, value in sorted(os.environ.items()):
        if name.startswith(_VARIABLE_PREFIXES):
            facts[f"variable {name}"] = value
    return facts
