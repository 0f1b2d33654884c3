"""What a run ran on: interpreter, packages, machine, and the environment variables that change results."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from itertools import islice

from determinism.relocation import original_path

_PACKAGES = (
    "torch", "torchvision", "tensorflow", "keras", "jax", "jaxlib", "numpy", "scipy", "scikit-learn", "pandas",
    "transformers", "lightning", "accelerate", "datasets", "triton", "determinism",
)  # fmt: skip
_VARIABLE_PREFIXES = (
    "PYTHONHASHSEED", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "NVIDIA_", "NVTE_",
    "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TF_", "XLA_", "JAX_", "HOROVOD_", "ATEN_", "GLIBC_TUNABLES", "MALLOC_",
)  # fmt: skip


def processor_name() -> str:
    """The model of the processor, as far as the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            named = next((line for line in islice(file, 16) if line.startswith("model name")), "")
    except OSError:
        named = ""
    return named.partition(":")[2].strip() or platform.processor() or platform.machine()


def describe() -> dict[str, str]:
    """Name and value of everything that may make two runs differ, as flat text."""
    facts = {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processor": processor_name(),
        "processors": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
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
