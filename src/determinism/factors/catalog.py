"""The factors: conditions outside a program's own logic that may affect its results."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from determinism.compile_caches import empty_caches
from determinism.run_spec import FactorRequest


class Action(StrEnum):
    """What an experiment does with a factor."""

    FIXED = "fixed"
    """Made the same in every run."""
    PERTURBED = "perturbed"
    """Made different in each run, on purpose."""


@dataclass(frozen=True)
class Remedy:
    """How to fix a factor without this tool; the experiment did the same."""

    title: str
    code: str | None = None
    environment: tuple[tuple[str, str], ...] | None = None
    side_effect: str | None = None
    """Its side effect, in a sentence."""


@dataclass(frozen=True)
class Starter:
    """A function that fixes or perturbs a factor within each Python process of the program."""

    function: str
    """`module:function`; it is called with the `FactorRequest`, and with the imported module if `after` is set."""
    after: str | None = None
    """It is called after this module is imported; None for the start of Python."""


@dataclass(frozen=True)
class Factor:
    """One factor: how it is fixed or perturbed, which cause it points to, and what to do about it."""

    name: str
    fixed: str | None = None
    """How it is fixed, as a phrase; None if it cannot be."""
    perturbed: str | None = None
    """How it is perturbed, as a phrase; None if it cannot be."""
    cause: str | None = None
    """The cause that is confirmed if runs are equal with the factor fixed, as `causes.toml` names it; None if it depends on the op."""
    remedy: Remedy | None = None
    """None where the cause itself says what to do."""
    starters: tuple[Starter, ...] = ()
    """Empty where it is set before Python starts, or by the frameworks alone."""
    frameworks: tuple[str, ...] = ()
    """The frameworks involved, through `start(request)` of their modules; empty if only Python and the system are."""


_SIMPLE, _TURNS = "determinism.factors.simple", "determinism.factors.turns"
_TORCH, _TENSORFLOW = ("torch",), ("tensorflow",)

_UNTIMED = (("TORCHINDUCTOR_DETERMINISTIC", "1"),)
"""Makes Inductor use the ATen kernel, or else its first candidate, instead of timing several; torch 2.9 and newer."""

_XLA_DETERMINISTIC = (("XLA_FLAGS", "--xla_gpu_deterministic_ops=true"),)

_ALL = (
    Factor(
        "hash-seed", "PYTHONHASHSEED=0", "a different PYTHONHASHSEED in each run",
        cause="hash-order",
        remedy=Remedy(
            "Fix the hash seed", environment=(("PYTHONHASHSEED", "0"),),
            side_effect="Python reads it at startup: set it before the program starts, not in it.",
        ),
    ),
    Factor(
        "torch-seed", "torch.manual_seed(0) when PyTorch is imported",
        cause="seed-missing-torch",
        remedy=Remedy(
            "Seed PyTorch at the start of the program", "torch.manual_seed(0)",
            side_effect="It also seeds initialization, shuffling and loader workers; a torch.Generator needs its own seed.",
        ),
        frameworks=_TORCH,
    ),
    Factor(
        "tensorflow-seed", "tf.keras.utils.set_random_seed(0) when TensorFlow is imported",
        cause="seed-missing-tensorflow",
        remedy=Remedy("Seed Python, NumPy and TensorFlow at the start of the program", "tf.keras.utils.set_random_seed(0)",
            side_effect="A tf.random.Generator still needs its own seed.",
        ),
        frameworks=_TENSORFLOW,
    ),
    Factor(
        "python-seed", "random.seed(0) when Python starts",
        cause="seed-missing-python",
        remedy=Remedy(
            "Seed Python's generator at the start of the program", "random.seed(0)",
            side_effect="A random.Random still needs its own seed.",
        ),
        starters=(Starter(f"{_SIMPLE}:seed_python"),),
    ),
    Factor(
        "numpy-seed", "numpy.random.seed(0) when NumPy is imported",
        cause="seed-missing-numpy",
        remedy=Remedy(
            "Seed NumPy's global generator at the start of the program", "numpy.random.seed(0)",
            side_effect="Generators of numpy.random.default_rng() still need their own seeds.",
        ),
        starters=(Starter(f"{_SIMPLE}:seed_numpy", after="numpy"),),
    ),
    Factor(
        "forked-seed", "random.seed(0) in each forked process",
        cause="seed-lost-by-fork",
        starters=(Starter(f"{_SIMPLE}:seed_forks"),),
    ),
    Factor(
        "entropy", "os.urandom, uuid and secrets return the same bytes in each run",
        cause="outside-entropy",
        starters=(Starter(f"{_SIMPLE}:start_entropy"), Starter(f"{_SIMPLE}:fix_numpy", after="numpy")),
    ),
    Factor(
        "memory", "fresh memory holds zeros", "fresh memory holds different bytes in each run",
        cause="uninitialized-memory",
        remedy=Remedy(
            "Initialize the memory where it is allocated; until then, start the program with",
            environment=(("GLIBC_TUNABLES", "glibc.malloc.perturb=255:glibc.malloc.tcache_count=0"),),
            side_effect="Every allocation is then filled, which takes time, and the values read are still meaningless.",
        ),
    ),
    Factor(
        "thread-schedule", "threads that the program starts take turns, in a fixed order",
        "threads are delayed and interrupted differently in each run",
        cause="thread-race",
        starters=(Starter(f"{_TURNS}:start"),),
    ),
    Factor(
        "process-schedule", "processes that the program starts run one after the other",
        cause="process-race",
        starters=(Starter(f"{_TURNS}:start_processes"),),
    ),
    Factor(
        "arrivals", "a receive without a source receives from each rank in turn",
        cause="arrival-order",
        frameworks=_TORCH,
    ),
    Factor(
        "workers", "data is loaded without workers (num_workers=0)",
        "workers of data loaders are delayed differently in each run",
        cause="worker-order",
        remedy=Remedy(
            "Load data without workers", "DataLoader(..., num_workers=0)",
            side_effect="Loading no longer overlaps with training, and draws from the generators of the main process.",
        ),
        frameworks=_TORCH,
    ),
    Factor(
        "pipeline-order", "parallel stages of tf.data pipelines yield their elements in the order of the data",
        cause="pipeline-order",
        remedy=Remedy(
            "Make parallel stages yield their elements in order",
            "dataset.map(..., num_parallel_calls=..., deterministic=True)",
            side_effect="An element that is ready waits for slower ones before it, so throughput may drop.",
        ),
        frameworks=_TENSORFLOW,
    ),
    Factor(
        "pipeline-parallel", "tf.data pipelines process one element at a time",
        cause="pipeline-race",
        remedy=Remedy(
            "Process one element at a time, or draw with stateless ops, such as tf.random.stateless_uniform, seeded by the element",
            "dataset.map(..., num_parallel_calls=None)",
            side_effect="The stage no longer runs in parallel, so throughput may drop.",
        ),
        frameworks=_TENSORFLOW,
    ),
    Factor(
        "deterministic-algorithms", "torch.use_deterministic_algorithms(True, warn_only=True)",
        cause="nondeterministic-op",
        remedy=Remedy(
            "Use PyTorch's deterministic algorithms, throughout the program",
            "torch.use_deterministic_algorithms(True, warn_only=True)\n"
            "torch.utils.deterministic.fill_uninitialized_memory = False",
            side_effect="Some ops get slower, and those that cannot be deterministic warn. On CUDA also set CUBLAS_WORKSPACE_CONFIG=:4096:8.",
        ),
        frameworks=_TORCH,
    ),
    Factor(
        "deterministic-ops", "tf.config.experimental.enable_op_determinism()",
        cause="varying-op-tensorflow",
        remedy=Remedy(
            "Use TensorFlow's deterministic ops, throughout the program", "tf.config.experimental.enable_op_determinism()",
            side_effect="Ops that cannot be deterministic raise, random ops need a seed, and tf.data runs with less parallelism.",
        ),
        frameworks=_TENSORFLOW,
    ),
    Factor(
        "tensorflow-threads", "TensorFlow computes with one thread (tf.config.threading)",
        cause="varying-op-tensorflow",
        remedy=Remedy(
            "Compute with one thread",
            "tf.config.threading.set_intra_op_parallelism_threads(1)\n"
            "tf.config.threading.set_inter_op_parallelism_threads(1)",
            side_effect="Computing gets slower. Call them before the first op of TensorFlow.",
        ),
        frameworks=_TENSORFLOW,
    ),
    Factor(
        "threads", "computation uses one thread (OMP_NUM_THREADS=1, torch.set_num_threads(1))",
        cause="nondeterministic-op",
        remedy=Remedy(
            "Compute with one thread", "torch.set_num_threads(1)", side_effect="Computing on the CPU gets slower.",
        ),
        frameworks=_TORCH,
    ),
    Factor(
        "listings", "directory listings are sorted", "directory listings come in a different order in each run",
        cause="listing-order",
        starters=(Starter(f"{_SIMPLE}:start_listings"),),
    ),
    Factor(
        "addresses", "memory is at the same addresses in each run (no address space randomisation)",
        "memory is at different addresses, with different alignments, in each run",
        cause="address-order",
        remedy=Remedy(
            "Start the program without address space randomisation", "setarch --addr-no-randomize COMMAND",
            side_effect="It turns off a protection against exploits: use it to debug, not in production.",
        ),
        starters=(Starter(f"{_SIMPLE}:start_addresses"),),
    ),
    Factor(
        "patches", "ops that have no deterministic implementation are replaced (determinism.patch())",
        remedy=Remedy(
            "Replace the op with a deterministic one; or, without changing the program, start it with `determinism run --patch`",
            "import determinism\n\ndeterminism.patch()",
            side_effect="The replacement may be slower and may round differently.",
        ),
        starters=(Starter("determinism.session.enable:start_patches"),),
        frameworks=("torch", "tensorflow"),
    ),
    Factor(
        "compile-caches", "each run starts with empty compiler caches (Inductor, Triton, XLA, CUDA)",
        "runs alternately find compiler caches unchanged and empty",
        cause="warm-compile-cache",
        remedy=Remedy(
            "Start each run with empty compile caches; or build them once, and give every run a copy of them",
            "env TORCHINDUCTOR_CACHE_DIR=$(mktemp -d) TRITON_CACHE_DIR=$(mktemp -d) JAX_COMPILATION_CACHE_DIR=$(mktemp -d) COMMAND",
            side_effect="Each run recompiles everything, which takes time. Kernels chosen by timing may then differ: pin these, too.",
        ),
    ),
    Factor(
        "kernel-choices", "compilers choose kernels without timing them (TORCHINDUCTOR_DETERMINISTIC=1)",
        cause="kernel-choice",
        remedy=Remedy(
            "Let Inductor choose its kernels without timing them", environment=_UNTIMED,
            side_effect="Compiled code may get slower, since the fastest kernel is no longer searched for.",
        ),
    ),
    Factor(
        "xla-gpu-ops", "XLA_FLAGS=--xla_gpu_deterministic_ops=true",
        cause="varying-op-jax",
        remedy=Remedy(
            "On a GPU, let XLA take deterministic kernels, and choose them without timing them", environment=_XLA_DETERMINISTIC,
            side_effect="Computing may get slower, and what has no deterministic kernel is refused. Add it to what XLA_FLAGS holds already.",
        ),
    ),
    Factor(
        "clock",
        perturbed="`time` shows a different time and date in each run; `datetime.datetime` does not",
        starters=(Starter(f"{_SIMPLE}:start_clock"),),
    ),
)  # fmt: skip

FACTORS = {factor.name: factor for factor in _ALL}
"""Every factor by name; where no noted source explains a divergence, they are tried in this order, the cheapest and most
frequent first."""

PERTURBABLE = tuple(factor.name for factor in _ALL if factor.perturbed is not None)
"""The factors that `--vary all` perturbs."""


# Factors that are set before Python starts: environment variables, and where the system places memory.

_ADDR_NO_RANDOMIZE = 0x0040000
_QUERY = 0xFFFFFFFF
_HASH_SEED_STEP = 101
_PERTURBED_BYTES = (0x3F, 0xC1, 0x7F, 0x42, 0xBE, 0x55)
"""The bytes that fresh memory is filled with; as float32: 0.75, -24.2, 3.4e38, 48.6, -0.37, 1.5e13."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def factor_environment(environ: Mapping[str, str], request: FactorRequest, folder: Path) -> dict[str, str]:
    """Add variables to an environment that fix or perturb factors.

    Args:
        environ: The environment that the program would have.
        request: The factors.
        folder: A folder for files of this run alone; it need not exist.
    """
    result = dict(environ)
    if request.is_fixed("hash-seed"):
        result["PYTHONHASHSEED"] = "0"
    elif request.is_perturbed("hash-seed"):
        result["PYTHONHASHSEED"] = str(request.number * _HASH_SEED_STEP)
    if "memory" in request.actions:
        result["GLIBC_TUNABLES"] = _tunables(environ.get("GLIBC_TUNABLES", ""), request)
    if request.is_fixed("threads"):
        result.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    if request.is_fixed("compile-caches") or (request.is_perturbed("compile-caches") and request.number % 2 == 0):
        result.update(empty_caches(folder / "compile-caches"))
    if request.is_fixed("kernel-choices"):
        result.update(_UNTIMED)
    if request.is_fixed("xla-gpu-ops"):
        for name, flag in _XLA_DETERMINISTIC:
            result[name] = f"{environ.get(name, '')} {flag}".strip()
    return result


def perturbed_variables(factors: Iterable[str]) -> frozenset[str]:
    """Return the environment variables that differ between runs because they perturb factors."""
    request = FactorRequest(dict.fromkeys(factors, "perturbed"), number=2)
    return frozenset(factor_environment({}, request, Path("perturbed")))


def _tunables(earlier: str, request: FactorRequest) -> str:
    """Return the tunables that make glibc fill the memory that it hands out.

    It fills with the complement of the given number, except for blocks in the caches of threads, so these are turned off.
    Source: https://www.gnu.org/software/libc/manual/html_node/Memory-Allocation-Tunables.html
    """
    byte = 0 if request.is_fixed("memory") else _PERTURBED_BYTES[request.number % len(_PERTURBED_BYTES)]
    own = f"glibc.malloc.perturb={byte ^ 0xFF}:glibc.malloc.tcache_count=0"
    return f"{earlier}:{own}" if earlier else own


def obstacle(name: str, action: Action) -> str | None:
    """Return why a factor cannot be fixed or perturbed on this machine; None if it can."""
    if name == "memory" and platform.libc_ver()[0] != "glibc":
        return "filling fresh memory needs the GNU C library"
    if name == "addresses" and action is Action.FIXED and not _may_fix_addresses():
        return "this system does not let a program turn off address space randomisation"
    return None


def before_start(request: FactorRequest) -> Callable[[], None] | None:
    """Return what the child process has to do before it becomes the program; None if nothing."""
    if not request.is_fixed("addresses"):
        return None
    libc = ctypes.CDLL(None)

    def fix_addresses() -> None:
        libc.personality(_ADDR_NO_RANDOMIZE)

    return fix_addresses


def _may_fix_addresses() -> bool:
    """Whether the system allows it; containers often forbid it."""
    if platform.system() != "Linux":
        return False
    libc = ctypes.CDLL(None)
    before = libc.personality(_QUERY)
    if before < 0 or libc.personality(before | _ADDR_NO_RANDOMIZE) < 0:
        return False
    granted = bool(libc.personality(_QUERY) & _ADDR_NO_RANDOMIZE)
    libc.personality(before)
    return granted
