"""The caches in which compilers keep their output, and their choice of the fastest kernel, from run to run.

Such a cache is like any other leftover of an earlier run: a program that finds it filled may use a different kernel
than the run that filled it.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

Environment = Mapping[str, str]

FACT = "compile cache of "
"""Prefix of facts of a run that say whether a cache was filled."""


@dataclass(frozen=True)
class CompileCache:
    """The cache of one compiler."""

    owner: str
    """Name of the compiler."""
    variable: str
    """The environment variable that names its folder."""
    default: Callable[[Environment], str | None]
    """Its folder if the variable is not set; None if there is none."""

    def folder(self, environ: Environment) -> Path | None:
        """Return the folder of the cache; None if nothing is cached."""
        folder = environ.get(self.variable) or self.default(environ)
        return Path(os.path.abspath(folder)) if folder else None


def _home(*parts: str) -> Callable[[Environment], str | None]:
    return lambda environ: os.path.join(environ.get("HOME") or os.path.expanduser("~"), *parts)


def _of_inductor(environ: Environment) -> str | None:
    # As in `torch._inductor.runtime.cache_dir_utils.default_cache_dir`.
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return os.path.join(tempfile.gettempdir(), f"torchinductor_{user}")


def _of_triton(environ: Environment) -> str | None:
    if environ.get("TRITON_HOME"):
        return os.path.join(environ["TRITON_HOME"], ".triton", "cache")
    return _home(".triton", "cache")(environ)


def _nowhere(environ: Environment) -> str | None:
    return None


COMPILE_CACHES = (
    CompileCache("Inductor", "TORCHINDUCTOR_CACHE_DIR", _of_inductor),
    CompileCache("Triton", "TRITON_CACHE_DIR", _of_triton),
    CompileCache("JAX", "JAX_COMPILATION_CACHE_DIR", _nowhere),
    CompileCache("CUDA", "CUDA_CACHE_PATH", _home(".nv", "ComputeCache")),
    CompileCache("CuPy", "CUPY_CACHE_DIR", _home(".cupy", "kernel_cache")),
    CompileCache("TileLang", "TILELANG_CACHE_DIR", _home(".tilelang", "cache")),
    CompileCache("DeepGEMM", "DG_JIT_CACHE_DIR", _home(".deep_gemm")),
    CompileCache("MIOpen", "MIOPEN_USER_DB_PATH", _home(".config", "miopen")),
)
"""Caches whose folder is named by an environment variable, so that a run can be given empty ones."""


def compile_cache_facts(environ: Environment) -> dict[str, str]:
    """Return whether each possible cache is filled: `warm` or `empty`."""
    folders = {cache.owner: cache.folder(environ) for cache in COMPILE_CACHES}
    return {FACT + owner: state_of_cache(folder) for owner, folder in folders.items() if folder is not None}


def state_of_cache(folder: Path) -> str:
    """Return whether a cache is filled: `warm` or `empty`.

    Args:
        folder: Folder of the cache; it need not exist.
    """
    return "warm" if _is_filled(folder) else "empty"


def _is_filled(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(_holds_something(entry) for entry in entries)
    except OSError:
        return False


def _holds_something(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a file or a non-empty folder: folders are created before anything is cached in them."""
    if not entry.is_dir(follow_symlinks=False):
        return True
    try:
        with os.scandir(entry.path) as entries:
            return next(entries, None) is not None
    except OSError:
        return False


def compile_cache_of(file: str, environ: Environment) -> CompileCache | None:
    """Return the cache that contains a file; None if there is none.

    Args:
        file: Absolute path.
        environ: The environment of the program.
    """
    path = Path(file)
    for cache in COMPILE_CACHES:
        folder = cache.folder(environ)
        if folder is not None and (path.is_relative_to(folder) or path.is_relative_to(folder.resolve())):
            return cache
    return None


def own_cache() -> Path:
    """Return the folder in which this tool caches what it compiles: its native recorder and its kernel for GPUs."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(folder) / "determinism"


def empty_caches(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the variables that give a run its own empty caches.

    Args:
        folder: A folder for this run alone, in which each compiler creates its cache.
    """
    for cache in COMPILE_CACHES:
        yield cache.variable, str(folder / cache.owner.lower())
