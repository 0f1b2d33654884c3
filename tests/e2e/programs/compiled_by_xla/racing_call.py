"""Trains with a compiled step in which one op adds in an arbitrary order, as kernels with atomic additions do.

    python racing_call.py [plain | nested | scanned | parted | stable]

XLA has no such op on the CPU, so it is a custom call, written with ctypes according to `xla/ffi/api/c_api.h` of jaxlib.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, Structure, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

C = ctypes.CDLL(None)
EXECUTE = 3
METADATA = 1


class Extension(Structure):
    _fields_ = (("struct_size", c_size_t), ("type", c_int), ("next", c_void_p))


class Version(Structure):
    _fields_ = (("struct_size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int))


class Metadata(Structure):
    _fields_ = (("struct_size", c_size_t), ("version", Version), ("traits", c_uint32))


class MetadataExtension(Structure):
    _fields_ = (("base", Extension), ("metadata", POINTER(Metadata)))


class Buffer(Structure):
    _fields_ = (
        ("struct_size", c_size_t), ("extension", c_void_p), ("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64)),
    )  # fmt: skip


class Buffers(Structure):
    _fields_ = (
        ("struct_size", c_size_t), ("extension", c_void_p), ("size", c_int64), ("types", c_void_p), ("buffers", POINTER(POINTER(Buffer))),
    )  # fmt: skip


class CallFrame(Structure):
    _fields_ = (
        ("struct_size", c_size_t), ("extension", POINTER(Extension)), ("api", c_void_p), ("context", c_void_p), ("stage", c_int),
        ("arguments", Buffers), ("results", Buffers),
    )  # fmt: skip


def elements(buffer: Any) -> Any:
    shape = tuple(buffer.dims[axis] for axis in range(buffer.rank))
    return np.ctypeslib.as_array(ctypes.cast(buffer.data, POINTER(ctypes.c_float)), shape)


@ctypes.CFUNCTYPE(c_void_p, POINTER(CallFrame))
def add_in_any_order(frame: Any) -> None:
    frame = frame.contents
    if frame.extension and frame.extension.contents.type == METADATA:
        metadata = ctypes.cast(frame.extension, POINTER(MetadataExtension)).contents.metadata.contents
        metadata.version.major, metadata.version.minor, metadata.traits = 0, 1, 0
    elif frame.stage == EXECUTE:
        given = elements(frame.arguments.buffers[0].contents)
        # From the C library, so that no Python function that could be observed or seeded decides.
        seed = c_uint32()
        C.getrandom(ctypes.byref(seed), 4, 0)
        order = np.argsort((np.arange(len(given), dtype=np.uint64) * 2654435761 ^ seed.value) % 65521, kind="stable")
        elements(frame.results.buffers[0].contents)[...] = np.cumsum(given[order], dtype=np.float32)[-1]


jax.ffi.register_ffi_target("add_in_any_order", jax.ffi.pycapsule(add_in_any_order), platform="cpu")


def racing_sum(values: Any) -> Any:
    return jax.ffi.ffi_call("add_in_any_order", jax.ShapeDtypeStruct((), jnp.float32))(values)  # SITE race


@jax.jit
def inner(values: Any) -> Any:
    return 2 * racing_sum(jnp.abs(values) ** 1.5)


def scanned(values: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        return carry + racing_sum(row), carry

    total, _ = jax.lax.scan(body, jnp.zeros(()), values.reshape(10, -1))
    return total


def parted(values: Any) -> Any:
    """Each device adds its own part."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("part",))
    parts = jax.sharding.PartitionSpec("part")
    return jax.shard_map(
        lambda part: jax.lax.psum(racing_sum(part), "part"),
        mesh=mesh,
        in_specs=parts,
        out_specs=jax.sharding.PartitionSpec(),
        check_vma=False,
    )(values)


SUMS = {"plain": racing_sum, "nested": inner, "scanned": scanned, "parted": parted, "stable": jnp.sum}


def main(how: str) -> None:
    total_of = SUMS[how]

    @jax.jit
    def step(weight: Any, x: Any) -> Any:
        activations = jnp.sin(x @ weight)
        scale = 1e-2 * jax.lax.stop_gradient(total_of(1e4 * activations.ravel()))
        gradient = jax.grad(lambda w: jnp.mean(jnp.sin(x @ w) ** 2))(weight)
        return weight - 0.1 * scale * gradient

    generator = np.random.default_rng(0)
    weight = jnp.asarray(generator.normal(size=(8, 100)).astype("f"))
    for _ in range(6):
        weight = step(weight, generator.normal(size=(100, 8)).astype("f"))  # SITE step
    print(float(weight.sum()))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "plain")
