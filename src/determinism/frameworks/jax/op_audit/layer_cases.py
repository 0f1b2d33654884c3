"""Layers of networks: products, convolutions, pools, attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from determinism.frameworks.jax.op_audit.case import Call, Case, Inputs
from determinism.frameworks.op_audit.arrays import FLOATS

_SIZES = {1: (2048,), 2: (48, 48), 3: (16, 16, 16)}
"""Lengths of images, by the number of dimensions."""
_CHANNELS = 8


def cases() -> Iterator[Case]:
    """All of them."""
    yield Case("jax.numpy.matmul", "two matrices", _two(jnp.matmul, (192, 512), (512, 192)), FLOATS)
    yield Case("jax.numpy.matmul", "dot of two vectors", _two(jnp.dot, (1 << 18,), (1 << 18,)))
    batches = _two(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (16, 64, 128), (16, 128, 64))
    yield Case("jax.numpy.matmul", "einsum of batches", batches)
    for dims in (1, 2, 3):
        name = f"{dims} dimensions, kernel 3, stride 2"
        yield Case("jax.lax.conv_general_dilated", name, _convolution(dims), ("float32", "bfloat16"))
    yield Case("jax.lax.reduce_window (gradient of max-pooling)", "overlapping windows", _max_pool)
    yield Case("jax.nn.dot_product_attention", "causal", _attention)
    yield Case("jax.experimental.sparse.BCSR", "times a dense matrix", _sparse)


def _two(
    run: Callable[[jax.Array, jax.Array], jax.Array], left: tuple[int, ...], right: tuple[int, ...]
) -> Callable[[Inputs], Call]:
    return lambda inputs: (run, (inputs.normal(*left), inputs.normal(*right)))


def _convolution(dims: int) -> Callable[[Inputs], Call]:
    def run(images: jax.Array, filters: jax.Array) -> jax.Array:
        return jax.lax.conv(images, filters, (2,) * dims, "SAME")

    return _two(run, (4, _CHANNELS, *_SIZES[dims]), (_CHANNELS, _CHANNELS, *(3,) * dims))


def _max_pool(inputs: Inputs) -> Call:
    def run(images: jax.Array) -> jax.Array:
        return jax.lax.reduce_window(images, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 1, 1), "SAME")

    return run, (inputs.normal(4, _CHANNELS, *_SIZES[2]),)


def _attention(inputs: Inputs) -> Call:
    query, key, value = (inputs.normal(4, 128, 4, 32) for _ in range(3))
    return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), (query, key, value)


def _sparse(inputs: Inputs) -> Call:
    from jax.experimental import sparse

    full = inputs.arrays.normal(128, 128) * (inputs.arrays.unit(128, 128) < 0.1)
    matrix = sparse.BCSR.fromdense(np.asarray(full))

    def run(values: jax.Array, columns: jax.Array, starts: jax.Array, dense: jax.Array) -> jax.Array:
        return sparse.BCSR((values, columns, starts), shape=full.shape) @ dense

    return run, (inputs.array(matrix.data), matrix.indices, matrix.indptr, inputs.normal(128, 32))
