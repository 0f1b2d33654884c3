"""The caches in which compilers keep from run to run what they made, and which of several kernels was the fastest.

Such a cache is a file of an earlier run like any other: a program that finds it filled may compute with another kernel than the run that filled it.
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
"""How the names of the facts of a run begin that say whether a cache was filled."""


@dataclass(frozen=True)
class CompileCache:
    """One cache."""

    owner: str
    """Whose it is, as people say it."""
    variable: str
    """The environment variable that names its folder."""
    default: Callable[[Environment], str | None]
    """Its folder where that is not set; None if there is none then."""

    def folder(self, environ: Environment) -> Path | None:
        """Where it lies, None if nothing is kept.

        Args:
            environ: The environment of the program.
        """
        folder = environ.get(self.variable) or self.default(environ)
        return Path(os.path.abspath(folder)) if folder else None


def _home(*parts: str) -> Callable[[Environment], str | None]:
    return lambda environ: os.path.join(environ.get("HOME") or os.path.expanduser("~"), *parts)


def _of_inductor(environ: Environment) -> str | None:
    # As `torch._inductor.runtime.cache_dir_utils.default_cache_dir` does it.
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
"""Those whose folder an environment variable names, so that a run can be given empty ones."""


def compile_cache_facts(environ: Environment) -> dict[str, str]:
    """For each cache that there can be, whether it is filled: `warm` or `empty`.

    Args:
        environ: The environment of the program.
    """
    folders = {cache.owner: cache.folder(environ) for cache in COMPILE_CACHES}
    return {FACT + owner: state_of_cache(folder) for owner, folder in folders.items() if folder is not None}


def state_of_cache(folder: Path) -> str:
    """Whether a cache is filled: `warm` or `empty`.

    Args:
        folder: Where it lies; it need not exist.
    """
    return "warm" if _is_filled(folder) else "empty"


def _is_filled(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(_holds_something(entry) for entry in entries)
    except OSError:
        return False


def _holds_something(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file, or a folder with anything in it: folders are made before anything is kept in them."""
    if not entry.is_dir(follow_symlinks=False):
        return True
    try:
        with os.scandir(entry.path) as entries:
            return next(entries, None) is not None
    except OSError:
        return False


def compile_cache_of(file: str, environ: Environment) -> CompileCache | None:
    """The cache that a file lies in; None if in none.

    Args:
        file: Its absolute path.
        environ: The environment of the program.
    """
    path = Path(file)
    for cache in COMPILE_CACHES:
        folder = cache.folder(environ)
        if folder is not None and (path.is_relative_to(folder) or path.is_relative_to(folder.resolve())):
            return cache
    return None


def own_cache() -> Path:
    """The folder in which this tool keeps what it compiles: its native recorder, and its kernel for GPUs."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(folder) / "determinism"


def empty_caches(folder: Path) -> Iterator[tuple[str, str]]:
    """The variables that give a run caches of its own, which are empty.

    Args:
        folder: A folder that is there for this run alone; each cache is made in it by whoever fills it.
    """
    for cache in COMPILE_CACHES:
        yield cache.variable, str(folder / cache.owner.lower())
