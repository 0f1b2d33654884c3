"""Which factors there are: things outside a program's own logic that may decide what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
