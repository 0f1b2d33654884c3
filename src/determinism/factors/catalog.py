"""The factors: things outside a program's own logic that may decide what it computes."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from determinism.run_spec import FactorRequest


class Action(StrEnum):
    """What an experiment does with a factor."""

    FIXED = "fixed"
    """The same in every run."""
    STIRRED = "stirred"
    """Another in each run, on purpose."""


@dataclass(frozen=True)
class Factor:
    """One factor, and how it is held still or stirred."""

    name: str
    fixed: str | None
    """What is done to hold it still, as a phrase; None if it cannot be."""
    stirred: str | None
    """What is done to stir it, as a phrase; None if it cannot be."""
    frameworks: tuple[str, ...] = ()
    """The frameworks that take part in it; empty for Python and the system alone."""


_ALL = (
    Factor("hash-seed", "PYTHONHASHSEED=0", "another PYTHONHASHSEED in each run"),
    Factor("python-seed", "random.seed(0) when Python starts", None),
    Factor("numpy-seed", "numpy.random.seed(0) when NumPy is imported", None),
    Factor("torch-seed", "torch.manual_seed(0) when PyTorch is imported", None, ("torch",)),
    Factor(
        "tensorflow-seed",
        "tf.keras.utils.set_random_seed(0) when TensorFlow is imported",
        None,
        ("tensorflow",),
    ),
    Factor("entropy", "os.urandom, uuid and secrets give the same bytes in each run", None),
    Factor("listings", "directory listings are sorted", "directory listings come in another order in each run"),
    Factor(
        "threads", "one thread computes (OMP_NUM_THREADS=1, torch.set_num_threads(1))", None, ("torch",)
    ),
    Factor(
        "thread-schedule",
        "threads that the program starts take turns, in a fixed order",
        "threads are delayed and interrupted in another way in each run",
    ),
    Factor(
        "process-schedule", "processes that the program starts run one after the other", None
    ),
    Factor(
        "workers",
        "data is loaded without workers (num_workers=0)",
        "workers of data loaders are delayed in another way in each run",
        ("torch",),
    ),
    Factor(
        "deterministic-algorithms", "torch.use_deterministic_algorithms(True, warn_only=True)", None, ("torch",)
    ),
    Factor(
        "pipeline-order",
        "parallel stages of tf.data pipelines give their elements in the order of the data",
        None,
        ("tensorflow",),
    ),
    Factor(
        "pipeline-parallel",
        "tf.data pipelines make one element after the other",
        None,
        ("tensorflow",),
    ),
    Factor(
        "deterministic-ops", "tf.config.experimental.enable_op_determinism()", None, ("tensorflow",)
    ),
    Factor(
        "tensorflow-threads",
        "one thread of TensorFlow computes (tf.config.threading)",
        None,
        ("tensorflow",),
    ),
    Factor(
        "patches",
        "ops that have no deterministic form are replaced (determinism.patch())",
        None,
        ("torch", "tensorflow"),
    ),
    Factor("memory", "fresh memory holds zeros", "fresh memory holds other bytes in each run"),
    Factor(
        "addresses",
        "memory lies at the same addresses in each run (no address space randomisation)",
        "memory lies at other addresses, with other alignments, in each run",
    ),
    Factor("clock", None, "the clock of `time` shows another time and day in each run; that of `datetime.datetime` does not"),
)  # fmt: skip

FACTORS = {factor.name: factor for factor in _ALL}
"""Every factor by name."""

STIRRABLE = tuple(factor.name for factor in _ALL if factor.stirred is not None)
"""The factors that `--vary all` stirs."""


# Factors that are decided before Python starts: environment variables, and where the system puts memory.

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
    result = dict(environ)
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
