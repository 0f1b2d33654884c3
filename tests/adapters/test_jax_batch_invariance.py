"""`determinism.check_batch_invariance` with JAX functions: results and executions are compared row by row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import determinism
from determinism.comparison.result import BatchKind
from determinism.types import Verdict

ROWS, WIDTH = 24, 8


def rows() -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype("float32"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_function_that_treats_rows_separately_is_the_same(dtype: str) -> None:
    comparison = determinism.check_batch_invariance(
        lambda batch: {"values": jnp.maximum(batch, 0) * 2}, rows().astype(dtype), sizes=(1, 8, 24)
    )

    assert comparison.verdict is Verdict.SAME, comparison
    assert comparison.batch is not None and comparison.batch.rows_matched == ROWS
    assert comparison.batch.not_told is None


@pytest.mark.parametrize("compiled", [False, True])
def test_a_function_that_combines_rows_is_different(compiled: bool) -> None:
    def centred(batch: jax.Array) -> jax.Array:
        return batch - batch.mean(0)

    comparison = determinism.check_batch_invariance(jax.jit(centred) if compiled else centred, rows(), sizes=(2, 8))

    assert comparison.verdict is Verdict.DIFFERENT
    first = comparison.first_divergence
    assert comparison.batch is not None and comparison.batch.difference is not None
    assert comparison.batch.difference.kind is BatchKind.MIXING
    assert first is not None and first.site is not None
    assert first.op == ("jax::jit(centred)" if compiled else "jax::jit(_mean)")


def test_a_key_draws_different_numbers_for_different_batch_sizes() -> None:
    comparison = determinism.check_batch_invariance(
        lambda batch: batch * jax.random.uniform(jax.random.key(1), batch.shape), rows(), sizes=(2, 24)
    )

    assert comparison.verdict is Verdict.DIFFERENT
    assert comparison.batch is not None and comparison.batch.difference is not None
    assert comparison.batch.difference.kind is BatchKind.RNG


def test_moving_rows_is_not_a_difference() -> None:
    def sorted_and_back(batch: jax.Array) -> jax.Array:
        order = jnp.argsort(batch[:, 0])
        return jnp.maximum(batch[order], 0)[jnp.argsort(order)]

    comparison = determinism.check_batch_invariance(sorted_and_back, rows(), sizes=(2, 8, 24))

    assert comparison.verdict is Verdict.SAME, comparison


def test_a_function_that_donates_the_memory_of_its_batch_is_compared() -> None:
    doubled = jax.jit(lambda batch: batch * 2, donate_argnums=0)

    comparison = determinism.check_batch_invariance(lambda batch: doubled(jnp.copy(batch)), rows(), sizes=(2, 24))

    assert comparison.verdict is Verdict.SAME, comparison


def test_a_weight_as_long_as_a_batch_is_not_mistaken_for_rows() -> None:
    weight = jnp.ones((WIDTH, 3))

    # The sums of whole numbers are exact in every order in which XLA may add them.
    comparison = determinism.check_batch_invariance(
        jax.jit(lambda batch: (batch[:, :, None] * weight).sum(1)), jnp.round(rows() * 9), sizes=(WIDTH, 24)
    )

    assert comparison.verdict is Verdict.SAME, comparison


def test_results_without_rows_are_inconclusive() -> None:
    comparison = determinism.check_batch_invariance(lambda batch: batch.sum(), rows(), sizes=(2, 24))

    assert comparison.verdict is Verdict.INCONCLUSIVE
