"""A compiled function as data that a script can load: what JAX traced, in the portable form of `jax.export`.

The form holds StableHLO and types, and nothing that is executed when it is read. XLA compiles it anew, as it compiled the function of the program, so the
kernels are the same as long as the versions of JAX and XLA, and the flags, are.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import export
from jax._src import core

from determinism.frameworks.array_capture import NotWritable

_MOST_BYTES = 16 << 20
_FLAGS = "XLA_FLAGS"
_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable")


def call_document(
    name: str, jaxpr: Any, given: Sequence[Any], kept: Sequence[int], arrays: Mapping[str, Any]
) -> dict[str, Any]:
    """The call of a compiled function as JSON.

    Args:
        name: Of the op.
        jaxpr: The function that was traced, closed.
        given: Its arguments, without the constants that it closes over.
        kept: Which of them the compiled function takes; the others decide nothing.
        arrays: Those by the names under which they are kept.

    Raises:
        NotWritable: It is of a kind that cannot be given to a script.
    """
    if jaxpr is None or len(given) != len(jaxpr.in_avals):
        raise NotWritable("the function was not traced in this process")
    if jaxpr.effects:
        raise NotWritable("the function has effects, such as printing or calling back into Python")
    if any(getattr(getattr(one, "sharding", None), "num_devices", 1) > 1 for one in given):
        raise NotWritable("it runs on several devices")
    program, targets = _exported(jaxpr, given, kept)
    if len(program) > _MOST_BYTES:
        raise NotWritable(
            f"the compiled function takes {len(program) / (1 << 20):,.1f} MiB, which is too much for a script"
        )
    return {
        "framework": "jax",
        "op": name,
        "program": base64.b64encode(program).decode("ascii"),
        "custom_calls": targets,
        "tensors": {name: {"dtype": array.dtype.name, "shape": list(array.shape)} for name, array in arrays.items()},
        "flags": os.environ.get(_FLAGS, ""),
        "settings": {setting: getattr(jax.config, setting) for setting in _SETTINGS},
    }


def _exported(jaxpr: Any, given: Sequence[Any], kept: Sequence[int]) -> tuple[bytes, list[str]]:
    """The function of the arguments that are kept, and the names of the custom calls in it."""
    is_key = [jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key) for aval in jaxpr.in_avals]

    def function(*arrays: Any) -> Any:
        values = list(given)
        for position, array in zip(kept, arrays, strict=True):
            is_made = is_key[position] and not jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
            values[position] = (
                jax.random.wrap_key_data(array, impl=jax.random.key_impl(given[position])) if is_made else array
            )
        results = core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *values)
        return [
            jax.random.key_data(one) if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key) else one
            for one in results
        ]

    taken = [jax.random.key_data(given[at]) if is_key[at] else given[at] for at in kept]
    shapes = [jax.ShapeDtypeStruct(jax.numpy.shape(one), jax.numpy.result_type(one)) for one in taken]
    text = jax.jit(function).lower(*shapes).as_text()
    targets = sorted(set(_targets(text)))
    allowed = [export.DisabledSafetyCheck.custom_call(target) for target in targets]
    exported = export.export(jax.jit(function), disabled_checks=allowed)(*shapes)
    try:
        return bytes(exported.serialize()), targets
    except ImportError:
        # JAX does not depend on it.
        reason = "jax.export needs the package flatbuffers, which is not installed (pip install flatbuffers)"
        raise NotWritable(reason) from None


def _targets(text: str) -> list[str]:
    """The names after `stablehlo.custom_call @`."""
    parts = text.split("stablehlo.custom_call @")[1:]
    return [part.partition("(")[0].strip('"') for part in parts]
