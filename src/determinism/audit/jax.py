"""The ops of JAX that are audited, and the process that measures them: `-m determinism.audit.jax`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from determinism.audit.harness import (
    FEW,
    FLOATS,
    MANY,
    Arrays,
    Auditor,
    Case,
    Repeatable,
    Request,
    array_bytes,
    available_processors,
)
from determinism.digest import digest_bytes, digest_many

# A case: one way to call an op, on inputs that are most likely to make it vary.

Call = tuple[Callable[..., Any], tuple[jax.Array, ...]]
"""A function and its arrays: compiled code takes all of them as arguments, so that no constants are folded."""


class Inputs:
    """Makes the inputs of one case, the same each time, on JAX's default device."""

    def __init__(self, dtype: str, seed: int) -> None:
        self.dtype = jnp.dtype(dtype)
        self.arrays = Arrays(seed)

    def array(self, array: Any) -> jax.Array:
        """An array in the case's dtype."""
        return jnp.asarray(array).astype(self.dtype)

    def normal(self, *shape: int) -> jax.Array:
        """Values of very different magnitudes."""
        return self.array(self.arrays.normal(*shape))

    def whole(self, high: int, *shape: int) -> jax.Array:
        """Integers below `high`, as int32: as indices of many contributions to few elements, they collide."""
        return jnp.asarray(self.arrays.whole(high, *shape))

    def like(self, array: jax.Array) -> jax.Array:
        """Random values to begin a backward pass with."""
        return jnp.asarray(self.arrays.normal(*array.shape)).astype(array.dtype)


# Layers of networks: products, convolutions, pools, attention.

_SIZES = {1: (2048,), 2: (48, 48), 3: (16, 16, 16)}
"""Lengths of images, by the number of dimensions."""
_CHANNELS = 8


def layer_cases() -> Iterator[Case]:
    """All cases of this family."""
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


# Ops that sum, select, sort or decompose.

_OPS = "ops of jax on the CPU"
_COLUMNS = 512


def reducing_cases() -> Iterator[Case]:
    """All cases of this family."""
    for name in ("sum", "mean", "var", "cumsum"):
        run = getattr(jnp, name)
        yield Case(_OPS, f"{name}, all elements", _flat(run), FLOATS if name == "sum" else ("float32",))
        yield Case(_OPS, f"{name}, columns", _flat(_columns(run)))
    yield Case(_OPS, "prod, all elements", _near_one(jnp.prod))
    yield Case(_OPS, "logsumexp, all elements", _flat(jax.nn.logsumexp))
    yield Case(_OPS, "softmax, columns", _flat(_columns(jax.nn.softmax)))
    yield Case(_OPS, "sort", _flat(jnp.sort))
    yield Case(_OPS, "argsort, equal values", _ties(jnp.argsort), ("int32",))
    yield Case(_OPS, "top_k, equal values", _ties(lambda x: jax.lax.top_k(x, 7)), ("int32",))
    yield Case(_OPS, "unique, equal values", _ties(lambda x: jnp.unique(x, size=FEW)), ("int32",))
    for name in ("svd", "qr", "cholesky", "eigh"):
        yield Case(_OPS, name, _positive(getattr(jnp.linalg, name)))


def _columns(run: Callable[..., Any]) -> Callable[[jax.Array], Any]:
    return lambda x: run(x.reshape(-1, _COLUMNS), axis=0)


def _flat(run: Callable[[jax.Array], Any]) -> Callable[[Inputs], Call]:
    return lambda inputs: (run, (inputs.normal(MANY),))


def _near_one(run: Callable[[jax.Array], Any]) -> Callable[[Inputs], Call]:
    return lambda inputs: (run, (inputs.array(inputs.arrays.near_one(MANY)),))


def _ties(run: Callable[[jax.Array], Any]) -> Callable[[Inputs], Call]:
    return lambda inputs: (run, (inputs.whole(FEW, MANY),))


def _positive(run: Callable[[jax.Array], Any]) -> Callable[[Inputs], Call]:
    """A function of a symmetric matrix with positive eigenvalues."""

    def make(inputs: Inputs) -> Call:
        factor = inputs.arrays.normal(48, 48)
        return run, (inputs.array(factor @ factor.T / 48),)

    return make


# Ops that draw numbers from a key.

_DRAWN = 1 << 16


def sampling_cases() -> Iterator[Case]:
    """All cases of this family."""
    name = "jax.random.normal"
    yield Case(name, "normal", _keyed(lambda key: jax.random.normal(key, (_DRAWN,))))
    yield Case(name, "uniform", _keyed(lambda key: jax.random.uniform(key, (_DRAWN,))))
    yield Case(name, "bernoulli", _keyed(lambda key: jax.random.bernoulli(key, 0.5, (_DRAWN,))))
    yield Case(name, "split", _keyed(lambda key: jax.random.key_data(jax.random.split(key, 64))))
    yield Case(name, "rbg", _keyed(lambda key: jax.random.normal(key, (_DRAWN,)), "rbg"))
    yield Case("ops of jax on the CPU", "permutation", _keyed(lambda key: jax.random.permutation(key, _DRAWN)))


def _keyed(run: Callable[[jax.Array], Any], kind: str = "threefry2x32") -> Callable[[Inputs], Call]:
    """A function of the words of a key."""

    def make(inputs: Inputs) -> Call:
        words = jax.random.key_data(jax.random.key(7, impl=kind))
        return lambda data: run(jax.random.wrap_key_data(data, impl=kind)), (words,)

    return make


# Ops that write, add or read by index: many contributions go to few elements.

_ROWS, _WIDTH = 1 << 13, 32
_AT = "jax.numpy.ndarray.at[].add"


Run = Callable[[jax.Array, jax.Array, jax.Array], Any]
"""Takes the target, the index and the values."""


def writing_cases() -> Iterator[Case]:
    """All cases of this family."""
    yield Case(_AT, "rows, equal indices", _rows(lambda t, i, v: t.at[i].add(v)), FLOATS)
    yield Case(_AT, "elements, equal indices", _flat_write(lambda t, i, v: t.at[i].add(v)))
    yield Case(_AT, "multiply, equal indices", _rows(_multiplied))
    yield Case(_AT, "set, equal indices", _rows(lambda t, i, v: t.at[i].set(v)))
    yield Case(_AT, "segment_sum, few segments", _rows(lambda t, i, v: jax.ops.segment_sum(v, i, FEW)))
    yield Case(_AT, "within vmap, equal indices", _rows(_mapped))
    yield Case(_AT, "gather, equal indices", _rows(lambda t, i, v: t[i]), FLOATS)
    yield Case(_AT, "take_along_axis, equal indices", _flat_write(lambda t, i, v: jnp.take_along_axis(t, i, 0)))
    yield Case(_AT, "bincount with weights, equal values", _flat_write(lambda t, i, v: jnp.bincount(i, v, length=FEW)))


def _rows(run: Run) -> Callable[[Inputs], Call]:
    """A function of a target of few rows, an index of many of them, and as many rows of values."""
    return lambda inputs: (
        run,
        (inputs.normal(FEW, _WIDTH), inputs.whole(FEW, _ROWS), inputs.normal(_ROWS, _WIDTH)),
    )


def _flat_write(run: Run) -> Callable[[Inputs], Call]:
    """A function of a target of few elements, an index of many of them, and as many values."""
    return lambda inputs: (run, (inputs.normal(FEW), inputs.whole(FEW, MANY), inputs.normal(MANY)))


def _multiplied(target: jax.Array, index: jax.Array, values: jax.Array) -> jax.Array:
    # The op has no gradient for equal indices.
    fixed, factors = jax.lax.stop_gradient((target, values))
    return fixed.at[index].multiply(factors)


def _mapped(target: jax.Array, index: jax.Array, values: jax.Array) -> jax.Array:
    return jax.vmap(lambda t, v: t.at[index].add(v), in_axes=1, out_axes=1)(target, values)


# The auditor for JAX.

_DETERMINISTIC_MODE = "--xla_gpu_exclude_nondeterministic_ops=true"


class JaxAuditor(Auditor):
    """Measures compiled ops of JAX."""

    version = jax.__version__
    errors = (RuntimeError, NotImplementedError)
    families = (writing_cases, reducing_cases, layer_cases, sampling_cases)

    def prepare(self, request: Request) -> None:
        """Limit the processors and set the deterministic mode, both of which XLA reads with its first op.

        XLA creates a thread per processor that it may use, and has no setting for fewer; where the system cannot limit the
        processors, the results show how many threads there were.
        """
        if request["threads"] is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: request["threads"]])
        if request["deterministic_mode"]:
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DETERMINISTIC_MODE}".strip()

    def accelerators(self) -> list[str]:
        """The names of the GPUs."""
        try:
            return [device.device_kind for device in jax.devices("cuda")]
        except RuntimeError:
            return []

    def threads(self) -> int:
        """The number of threads: one per processor that this process may use."""
        return available_processors()

    @contextmanager
    def running(self, device: str, *, deterministic_mode: bool) -> Iterator[None]:
        """Run on a device; XLA's deterministic mode was set when the process began, and cannot be switched later."""
        with jax.enable_x64(True), jax.default_device(jax.devices(device)[0]):
            yield

    def repeatable(self, case: Case, device: str, dtype: str, seed: int) -> Repeatable:
        """A case on one set of inputs."""
        return _Compiled(case, Inputs(dtype, seed))


AUDITOR = JaxAuditor()

if __name__ == "__main__":
    raise SystemExit(AUDITOR.main())
