"""Runs a case again and again, and counts the different results forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from determinism.digest import digest_bytes, digest_many
from determinism.frameworks.op_audit.arrays import array_bytes
from determinism.frameworks.op_audit.counting import count_results
from determinism.frameworks.op_audit.process import available_processors
from determinism.frameworks.tensorflow.controls import CONTROLS
from determinism.frameworks.tensorflow.op_audit.case import Case, Inputs
from determinism.knowledge.measurement import Measurement

_REFUSALS = (tf.errors.OpError, RuntimeError, ValueError, NotImplementedError)


def measure(
    case: Case, *, device: str, seed: int, runs: int, seconds: float, deterministic_mode: bool
) -> Iterator[Measurement]:
    """Measure a case, for each of its dtypes and in both directions.

    Args:
        case: What to run.
        device: Where: `cpu` or `cuda`.
        seed: The inputs are made from it.
        runs: How often, at most.
        seconds: After this time a case is left, if it was run at least three times.
        deterministic_mode: Whether to run with `tf.config.experimental.enable_op_determinism()`.
    """
    threads = tf.config.threading.get_intra_op_parallelism_threads() or available_processors()
    for dtype in case.dtypes:
        about = Measurement(case.op, case.name, "forward", dtype, threads, deterministic_mode, 0, 0)
        with _op_determinism(deterministic_mode), tf.device("/CPU:0" if device == "cpu" else "/GPU:0"):
            run = _Taped(case, Inputs(dtype, seed))
            yield from count_results(run, about, runs=runs, seconds=seconds, errors=_REFUSALS)


@contextmanager
def _op_determinism(on: bool) -> Iterator[None]:
    control = CONTROLS["tf.config.experimental.enable_op_determinism"]
    before = control.read()
    control.write(on)
    # What an earlier case set would let an op that needs a seed go on without one.
    tf.random.set_seed(None)
    try:
        yield
    finally:
        control.write(before)


class _Taped:
    """Runs a case on a tape of gradients."""

    def __init__(self, case: Case, inputs: Inputs) -> None:
        self._inputs = inputs
        self._call = case.make(inputs)
        self._roots: list[tf.Tensor] = []
        self._upstream: list[tf.Tensor] = []

    def forward(self) -> bytes:
        with tf.GradientTape() as self._tape:
            self._tape.watch(self._inputs.leaves)
            made = tf.nest.flatten(self._call())
        self._roots = [tensor for tensor in made if tensor.dtype.is_floating]
        return _digest(made)

    def backward(self) -> bytes | None:
        if not self._roots or not self._inputs.leaves:
            return None
        self._upstream = self._upstream or [self._inputs.like(root) for root in self._roots]
        found = self._tape.gradient(self._roots, self._inputs.leaves, self._upstream)
        gradients = [tf.convert_to_tensor(gradient) for gradient in found if gradient is not None]
        return _digest(gradients) if gradients else None


def _digest(tensors: list[Any]) -> bytes:
    return digest_many([digest_bytes(array_bytes(tensor.numpy())) for tensor in tensors])
