"""What there is around the process that decides which settings matter: devices, packages, versions."""

from __future__ import annotations

import mmap
import platform
import sys
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

_NVIDIA_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
_DISTRIBUTIONS = {
    "torch": ("torch",),
    "tensorflow": (
        "tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tensorflow-rocm", "tf-nightly", "tf_nightly_cpu",
    ),
    "jax": ("jax",),
}  # fmt: skip
_XLA_LIBRARIES = (
    "jaxlib/libjax_common.so", "jaxlib/xla_extension.so", "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
    "jax_plugins/xla_cuda13/xla_cuda_plugin.so", "jax_plugins/xla_rocm7/xla_rocm_plugin.so",
)  # fmt: skip


def has_nvidia() -> bool:
    """Whether this machine has an NVIDIA device that programs can use."""
    return any(Path(path).exists() for path in _NVIDIA_DEVICES)


def may_use_mkl() -> bool:
    """Whether programs may compute with oneMKL here: PyTorch for x86 contains it, NumPy may be linked with the package."""
    return platform.machine() in ("x86_64", "AMD64") and (is_installed("torch") or is_installed("mkl"))


def is_installed(package: str) -> bool:
    """Whether a package can be imported here, without importing it.

    A folder of that name on the path is none, although Python would import it as a package without content.
    """
    module = sys.modules.get(package)
    if module is not None:
        return getattr(module, "__file__", None) is not None
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def is_loaded(package: str) -> bool:
    """Whether the program has imported a package."""
    return package in sys.modules and is_installed(package)


def version_of(framework: str) -> str | None:
    """The version of a framework that a program would get here; None if it is not installed.

    Args:
        framework: "torch", "tensorflow" or "jax".
    """
    module = sys.modules.get(framework)
    version = getattr(module, "__version__", None)
    if version is not None:
        return str(version)
    if not is_installed(framework):
        return None
    for distribution in _DISTRIBUTIONS[framework]:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def condition_holds(condition: str) -> bool:
    """Whether a fact's condition about machine and packages holds.

    Args:
        condition: "nvidia", "mkl" or "package:NAME"; empty holds always.
    """
    if condition.startswith("package:"):
        return is_installed(condition.removeprefix("package:"))
    return {"nvidia": has_nvidia, "mkl": may_use_mkl}.get(condition, lambda: True)()


@cache
def xla_knows(flag: str) -> bool:
    """Whether every XLA that JAX may load here knows a flag; one that does not would end the process.

    A flag is registered under its name as a text of C, between two zero bytes. Names of flags that were removed are still in
    the library, as reserved names of a protocol buffer, which have no zero bytes around them.

    Args:
        flag: Its name, with or without dashes.
    """
    needle = b"\0" + flag.lstrip("-").encode() + b"\0"
    libraries = _xla_libraries()
    return bool(libraries) and all(_contains(library, needle) for library in libraries)


def _xla_libraries() -> list[Path]:
    folders = {Path(entry or ".") for entry in sys.path}
    return [folder / name for folder in sorted(folders) for name in _XLA_LIBRARIES if (folder / name).is_file()]


def _contains(path: Path, needle: bytes) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(needle) >= 0
    except (OSError, ValueError):
        return False
