"""Factors that are decided before Python starts: environment variables, and where the system puts memory."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Mapping

from determinism.factors.catalog import Action
from determinism.factors.request import FactorRequest

_ADDR_NO_RANDOMIZE = 0x0040000
_QUERY = 0xFFFFFFFF
_HASH_SEED_STEP = 101
_STIRRED_BYTES = (0x3F, 0xC1, 0x7F, 0x42, 0xBE, 0x55)
"""What fresh memory is filled with; as float32: 0.75, -24.2, 3.4e38, 48.6, -0.37, 1.5e13."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def factor_environment(environ: Mapping[str, str], request: FactorRequest) -> dict[str, str]:
    """Add to an environment what holds factors still, or stirs them.

    Args:
        environ: The environment the program would have.
        request: The factors.
    """
    result = {**environ, **request.to_environment()}
    if request.is_fixed("hash-seed"):
        result["PYTHONHASHSEED"] = "0"
    elif request.is_stirred("hash-seed"):
        result["PYTHONHASHSEED"] = str(request.number * _HASH_SEED_STEP)
    if "memory" in request.actions:
        result["GLIBC_TUNABLES"] = _tunables(environ.get("GLIBC_TUNABLES", ""), request)
    if request.is_fixed("threads"):
        result.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    return result


def _tunables(earlier: str, request: FactorRequest) -> str:
    """What makes glibc fill the memory that it hands out.

    It fills with the complement of the number given, and leaves out the blocks that threads keep for themselves, so there
    must be none. Source: https://www.gnu.org/software/libc/manual/html_node/Memory-Allocation-Tunables.html
    """
    byte = 0 if request.is_fixed("memory") else _STIRRED_BYTES[request.number % len(_STIRRED_BYTES)]
    own = f"glibc.malloc.perturb={byte ^ 0xFF}:glibc.malloc.tcache_count=0"
    return f"{earlier}:{own}" if earlier else own


def obstacle(name: str, action: Action) -> str | None:
    """Why a factor cannot be held still or stirred on this machine; None if it can.

    Args:
        name: Of the factor.
        action: What is to be done with it.
    """
    if name == "memory" and platform.libc_ver()[0] != "glibc":
        return "filling fresh memory needs the GNU C library"
    if name == "addresses" and action is Action.FIXED and not _may_fix_addresses():
        return "this system does not let a program switch address space randomisation off"
    return None


def before_start(request: FactorRequest) -> Callable[[], None] | None:
    """What the child process has to do before it becomes the program; None if nothing."""
    if not request.is_fixed("addresses"):
        return None
    libc = ctypes.CDLL(None)

    def fix_addresses() -> None:
        libc.personality(_ADDR_NO_RANDOMIZE)

    return fix_addresses


def _may_fix_addresses() -> bool:
    """Whether the system grants it; containers often forbid it."""
    if platform.system() != "Linux":
        return False
    libc = ctypes.CDLL(None)
    before = libc.personality(_QUERY)
    if before < 0 or libc.personality(before | _ADDR_NO_RANDOMIZE) < 0:
        return False
    granted = bool(libc.personality(_QUERY) & _ADDR_NO_RANDOMIZE)
    libc.personality(before)
    return granted
