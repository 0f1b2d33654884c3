"""The environment of a run: interpreter, packages, machine, and the environment variables that affect results."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from importlib import metadata
from itertools import takewhile
from pathlib import Path

from determinism.compile_caches import COMPILE_CACHES, compile_cache_facts
from determinism.redaction import redacted_text
from determinism.source_files import original_path

_PACKAGES = (
    "torch", "torchvision", "tensorflow", "keras", "jax", "jaxlib", "numpy", "scipy", "scikit-learn", "pandas",
    "transformers", "lightning", "accelerate", "datasets", "triton", "pytorch-triton", "pytorch-triton-rocm", "determinism",
)  # fmt: skip
_PACKAGES_OF_NVIDIA = tuple(
    f"nvidia-{name}{version}"
    for name in ("cublas", "cudnn", "cuda-nvcc", "cuda-nvrtc", "cusolver", "cusparse", "cusparselt", "nccl")
    for version in ("", "-cu11", "-cu12", "-cu13")
)
"""Names of the CUDA libraries on PyPI: cuBLASLt is part of cuBLAS, and ptxas of cuda-nvcc."""
_VARIABLES = frozenset(
    (
        "PYTHONHASHSEED", "OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_DYNAMIC", "OMP_SCHEDULE", "OMP_PROC_BIND", "OMP_PLACES",
        "OMP_NESTED", "OMP_MAX_ACTIVE_LEVELS", "OMP_WAIT_POLICY", "OMP_STACKSIZE", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT",
        "GOMP_STACKSIZE", "KMP_AFFINITY", "KMP_BLOCKTIME", "KMP_HW_SUBSET", "KMP_DETERMINISTIC_REDUCTION", "KMP_FORCE_REDUCTION",
        "KMP_LIBRARY", "KMP_SETTINGS", "MKL_NUM_THREADS", "MKL_DYNAMIC", "MKL_DOMAIN_NUM_THREADS", "MKL_CBWR",
        "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "MKL_INTERFACE_LAYER", "MKL_THREADING_LAYER", "OPENBLAS_NUM_THREADS",
        "OPENBLAS_CORETYPE", "BLIS_NUM_THREADS", "BLIS_ARCH_TYPE", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS",
        "NUMEXPR_MAX_THREADS", "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
        "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "CUDA_FORCE_PTX_JIT", "CUDA_DISABLE_PTX_JIT",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_HOME", "CUDA_PATH", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE",
        "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", "NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_PYTORCH_VERSION", "NVIDIA_TENSORFLOW_VERSION", "NVIDIA_JAX_VERSION", "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
        "NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN", "NVTE_FUSED_ATTN_BACKEND", "NVTE_TORCH_COMPILE",
        "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "PYTORCH_ENABLE_MPS_FALLBACK", "PYTORCH_JIT", "PYTORCH_TUNABLEOP_ENABLED", "PYTORCH_TUNABLEOP_TUNING",
        "PYTORCH_TUNABLEOP_FILENAME", "TORCH_CUDNN_V8_API_DISABLED", "TORCH_CUDNN_USE_HEURISTIC_MODE_B", "TORCH_BLAS_PREFER_CUBLASLT",
        "TORCH_BLAS_PREFER_HIPBLASLT", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_LINALG_PREFER_CUSOLVER", "TORCH_COMPILE_DISABLE",
        "TORCHDYNAMO_DISABLE", "TORCH_CUDA_ARCH_LIST", "TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCHINDUCTOR_DETERMINISTIC",
        "TORCHINDUCTOR_BATCH_INVARIANT", "TORCHINDUCTOR_SPLIT_REDUCTIONS", "TORCHINDUCTOR_WRITE_ARE_DETERMINISTIC_ALGORITHMS_ENABLED",
        "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_MAX_AUTOTUNE",
        "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM", "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS", "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE", "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING",
        "TORCHINDUCTOR_FREEZING", "TORCHINDUCTOR_CPP_WRAPPER", "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_EMULATE_PRECISION_CASTS",
        "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "ONEDNN_CPU_ISA_HINTS", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_MAX_CPU_ISA",
        "DNNL_CPU_ISA_HINTS", "DNNL_DEFAULT_FPMATH_MODE", "TF_DETERMINISTIC_OPS", "TF_CUDNN_DETERMINISTIC", "TF_CUDNN_USE_AUTOTUNE",
        "TF_CUDNN_USE_FRONTEND", "TF_CUDNN_USE_RUNTIME_FUSION", "TF_CUDNN_RNN_USE_AUTOTUNE", "TF_CUDNN_WORKSPACE_LIMIT_IN_MB",
        "TF_USE_DEFAULT_CONV_ALGO", "TF_USE_CUBLASLT", "TF_USE_DETERMINISTIC_SEGMENT_REDUCTIONS", "TF_USE_CUDNN_AUTOTUNE",
        "TF_MATMUL_AUTOTUNE_MAX_ALGORITHMS", "TF_AUTOTUNE_THRESHOLD", "TF_DETERMINISTIC_ORDER", "TF_DETERMINISTIC_ALLOCATOR",
        "TF_DISABLE_SEGMENT_REDUCTION_OP_DETERMINISM_EXCEPTIONS", "TF_DISABLE_SCATTER_OP_DETERMINISM",
        "TF_DISABLE_DEPTHWISE_CONV_DETERMINISM_EXCEPTIONS", "TF_DISABLE_SPARSE_SOFTMAX_XENT_WITH_LOGITS_OP_DETERMINISM_EXCEPTIONS",
        "TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_GPU_THREAD_MODE", "TF_GPU_THREAD_COUNT",
        "TF_GPU_ALLOCATOR", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_XLA_FLAGS", "TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_AUTO_MIXED_PRECISION",
        "TF_ENABLE_CUBLAS_TENSOR_OP_MATH_FP32", "TF_ENABLE_CUDNN_TENSOR_OP_MATH_FP32", "TF_ENABLE_CUDNN_RNN_TENSOR_OP_MATH_FP32",
        "TF_DISABLE_CUDNN_TENSOR_OP_MATH", "TF_FP16_CONV_USE_FP32_COMPUTE", "TF_FP16_MATMUL_USE_FP32_COMPUTE", "TF_USE_LEGACY_KERAS",
        "KERAS_BACKEND", "XLA_FLAGS", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_ALLOCATOR",
        "LIBTPU_INIT_ARGS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_DEFAULT_PRNG_IMPL", "JAX_THREEFRY_PARTITIONABLE",
        "JAX_DISABLE_JIT", "JAX_PLATFORMS", "JAX_PLATFORM_NAME", "JAX_NUM_CPU_DEVICES", "JAX_ENABLE_CUSTOM_PRNG",
        "JAX_NUMPY_DTYPE_PROMOTION", "JAX_NUMPY_RANK_PROMOTION", "JAX_DEBUG_NANS", "JAX_DEFAULT_DTYPE_BITS",
        "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE", "JAX_CPU_ENABLE_ASYNC_DISPATCH", "HOROVOD_FUSION_THRESHOLD",
        "HOROVOD_CYCLE_TIME", "HOROVOD_DISABLE_GROUP_FUSION", "HOROVOD_SIZE", "HOROVOD_RANK", "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE", "HOROVOD_AUTOTUNE", "HOROVOD_CACHE_CAPACITY", "HOROVOD_HIERARCHICAL_ALLREDUCE",
        "HOROVOD_HIERARCHICAL_ALLGATHER", "HOROVOD_CPU_OPERATIONS", "GLIBC_TUNABLES", "MALLOC_PERTURB_", "MALLOC_ARENA_MAX",
        "MALLOC_CONF", "MALLOC_CHECK_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_",
        "LD_PRELOAD", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "MIOPEN_FIND_MODE",
        "MIOPEN_FIND_ENFORCE", "ROCBLAS_DEFAULT_ATOMICS_MODE", "TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_CACHE_AUTOTUNING",
        "TRITON_ALWAYS_COMPILE", "TRITON_PTXAS_PATH", "TRITON_INTERPRET", "TRITON_F32_DEFAULT", "CUDA_CACHE_PATH", "CUDA_CACHE_DISABLE",
        "CUPY_CACHE_DIR", "TILELANG_CACHE_DIR", "DG_JIT_CACHE_DIR", "MIOPEN_USER_DB_PATH", "CUPY_SEED", "CUPY_TF32", "CUPY_ACCELERATORS", "CAUSAL_CONV1D_DETERMINISTIC", "MAMBA_DETERMINISTIC",
        "FLASH_ATTENTION_DETERMINISTIC", "TOKENIZERS_PARALLELISM", "PL_GLOBAL_SEED", "PL_SEED_WORKERS",
    )
)  # fmt: skip
# Danger: values are stored and shown. A prefix such as NVIDIA_ or TF_ would include keys and passwords.
"""Names of the environment variables that are recorded: known to matter and never secret. No other value is stored."""
_VARIABLES_OF_NCCL = "NCCL_"
"""All variables that NCCL reads are recorded: they affect its reductions, and none is secret."""
CHOICE_OF_KERNEL = "kernel chosen for "
"""Prefix of facts that say which of several kernels a compiler chose by timing them."""
_INSTRUCTION_SETS = ("avx", "amx", "fma", "sse4", "asimd", "sve", "bf16", "i8mm")
"""Prefixes of the processor flags, as named by the Linux kernel, by which libraries choose their kernels."""
_NVIDIA = Path("/proc/driver/nvidia")


def _processor() -> dict[str, str]:
    """Return the system's description of the first processor; empty if there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            fields = [line.partition(":") for line in takewhile(str.strip, file)]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in fields}


def _hardware() -> Iterator[tuple[str, str]]:
    """Yield facts about processor and GPUs. The driver lists the GPUs: asking the framework would initialize them."""
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
    """Return name and value of everything that may make two runs differ, as plain text."""
    facts = {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "platform": platform.platform(),
        "machine": platform.machine(),
        **dict(_hardware()),
        "hash randomization": str(bool(sys.flags.hash_randomization)),
        "working directory": original_path(os.getcwd()),
    }
    for package in (*_PACKAGES, *_PACKAGES_OF_NVIDIA):
        try:
            facts[f"package {package}"] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    facts |= compile_cache_facts(os.environ)
    for name, value in sorted(os.environ.items()):
        if name in _VARIABLES or name.startswith(_VARIABLES_OF_NCCL):
            facts[f"variable {name}"] = redacted_text(value)
    return facts


# How much each part of the environment affects numbers.


EnvironmentDifference = tuple[str, str, str]
"""Name and both values."""


class Part(StrEnum):
    """A part of the environment, in the order of its effect on numbers."""

    HARDWARE = "hardware"
    THREADS = "threads"
    LIBRARIES = "libraries"
    SETTINGS = "settings"
    SYSTEM = "system"
    OTHER = "other"
    """Facts that do not affect numbers, as far as is known."""


_PARTS = list(Part)


_PART_BY_NAME = {
    "processor": Part.HARDWARE,
    "instruction sets": Part.HARDWARE,
    "machine": Part.HARDWARE,
    "variable CUDA_VISIBLE_DEVICES": Part.HARDWARE,
    "driver of gpus": Part.LIBRARIES,
    "processors": Part.THREADS,
    "python": Part.SYSTEM,
    "platform": Part.SYSTEM,
    "variable LD_PRELOAD": Part.SYSTEM,
    "variable GLIBC_TUNABLES": Part.SYSTEM,
    "package determinism": Part.OTHER,
    **{f"variable {cache.variable}": Part.OTHER for cache in COMPILE_CACHES},
}


_PART_BY_START = (
    ("gpu", Part.HARDWARE),
    ("package ", Part.LIBRARIES),
    ("library ", Part.LIBRARIES),
    (CHOICE_OF_KERNEL, Part.LIBRARIES),
    ("variable PYTHON", Part.OTHER),
    ("variable TF_CLI_", Part.OTHER),
    ("variable TF_CPP_", Part.OTHER),
    ("variable MALLOC_", Part.OTHER),
    ("variable ", Part.SETTINGS),
    ("torch.", Part.SETTINGS),
    ("tf.", Part.SETTINGS),
)


_OF_THREADS = (
    "NUM_THREADS",
    "num_threads",
    "num_interop_threads",
    "parallelism_threads",
    "variable OMP_",
    "variable KMP_",
)


def fixes_hashes(environ: Mapping[str, str]) -> bool:
    """Whether strings have the same hashes in each run started with these variables."""
    return environ.get("PYTHONHASHSEED", "random").isdigit()


def part_of(name: str) -> Part:
    """Return the part of the environment that a recorded fact belongs to.

    Args:
        name: Name of the fact, from `describe` or the frameworks' settings.
    """
    if name in _PART_BY_NAME:
        return _PART_BY_NAME[name]
    if any(word in name for word in _OF_THREADS):
        return Part.THREADS
    return next((part for start, part in _PART_BY_START if name.startswith(start)), Part.OTHER)


def stack_differences(differences: Sequence[EnvironmentDifference]) -> list[EnvironmentDifference]:
    """Return the differences that may change numbers."""
    return [difference for difference in differences if part_of(difference[0]) is not Part.OTHER]


_TELLING = (
    "processor",
    "package torch",
    "package tensorflow",
    "package jax",
    "package numpy",
    "library CUDA",
    "library cuDNN",
)
"""Prefixes of the most informative facts of their part."""


def fact_sort_key(name: str) -> tuple[int, bool, str]:
    """Return the sort key of a fact of the environment, with which the greatest effects on numbers come first."""
    return _PARTS.index(part_of(name)), not name.startswith(_TELLING), name
