"""Runs a case again and again, and counts the different results forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from determinism.digest import digest_bytes, digest_many
from determinism.frameworks.jax.op_audit.case import Case, Inputs
from determinism.frameworks.op_audit.arrays import array_bytes
from determinism.frameworks.op_audit.counting import count_results
from determinism.frameworks.op_audit.process import available_processors
from determinism.knowledge.measurement import Measurement

_REFUSALS = (RuntimeError, NotImplementedError)


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
        deterministic_mode: Whether this process was started with XLA's; it cannot be switched afterwards.
    """
    for dtype in case.dtypes:
        about = Measurement(case.op, case.name, "forward", dtype, available_processors(), deterministic_mode, 0, 0)
        with jax.enable_x64(True), jax.default_device(jax.devices(device)[0]):
            run = _Compiled(case, Inputs(dtype, seed))
            yield from count_results(run, about, runs=runs, seconds=seconds, errors=_REFUSALS)


class _Compiled:
    """Runs a case and its gradient, compiled once each."""

    def __init__(self, case: Case, inputs: Inputs) -> None:
        self._function, self._arguments = case.make(inputs)
        self._inputs = inputs
        self._places = [at for at, value in enumerate(self._arguments) if _is_floating(value)]
        self._forward = jax.jit(lambda *arguments: self._function(*arguments))
        self._backward = jax.jit(self._gradients)
        self._made: list[Any] = []
        self._upstream: list[Any] = []

    def forward(self) -> bytes:
        self._made = jax.tree.leaves(self._forward(*self._arguments))
        return _digest(self._made)

    def backward(self) -> bytes | None:
        roots = [array for array in self._made if _is_floating(array)]
        if not roots or not self._places:
            return None
        self._upstream = self._upstream or [self._inputs.like(root) for root in roots]
        return _digest(self._backward(self._arguments, self._upstream))

    def _gradients(self, arguments: tuple[Any, ...], upstream: list[Any]) -> list[Any]:
        def roots(*chosen: Any) -> list[Any]:
            given = list(arguments)
            for at, value in zip(self._places, chosen, strict=True):
                given[at] = value
            return [made for made in jax.tree.leaves(self._function(*given)) if _is_floating(made)]

        _, pull = jax.vjp(roots, *(arguments[at] for at in self._places))
        return list(pull(upstream))


def _is_floating(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


def _digest(arrays: list[Any]) -> bytes:
    return digest_many([digest_bytes(array_bytes(array)) for array in arrays])
