"""The call of an op of TensorFlow as the fields of the script that reproduces it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from determinism.diagnose.literals import checked_name, real, sizes, whole

TEMPLATE = "reproduce_tensorflow.py.template"


def fields(call: Mapping[str, Any]) -> dict[str, str]:
    """What the template has to be given for a call, besides what every script has.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is no call.
    """
    tensors: dict[str, Any] = dict(call["tensors"])
    given = [f"{checked_name(argument)}={_given(at, tensors)}" for argument, at in call["arguments"].items()]
    given += [f"{checked_name(attribute)}={_value(value)}" for attribute, value in call["attributes"].items()]
    return {
        "inputs": "\n".join(
            f"    {checked_name(one)!r}: ({checked_name(about['dtype'])!r}, {sizes(about['shape'])!r}),"
            for one, about in tensors.items()
        ),
        "call": f"tf.raw_ops.{checked_name(call['op'])}({', '.join(given)})",
        "settings": "\n".join(f"    {line}" for line in _settings(call["settings"])),
    }


def _given(at: Any, tensors: Mapping[str, Any]) -> str:
    if type(at) is list:
        return f"[{', '.join(_given(one, tensors) for one in at)}]"
    if at not in tensors:
        raise ValueError(f"no tensor is called {at!r}")
    return f"tensor[{checked_name(at)!r}]"


def _value(value: Any) -> str:
    if value is None or type(value) in (bool, int):
        return repr(value)
    if type(value) is str:
        return ascii(value)
    if type(value) is list:
        return f"[{', '.join(_value(one) for one in value)}]"
    ((kind, content),) = value.items()
    if kind == "float":
        return real(content)
    if kind == "dtype":
        return f"tf.dtypes.as_dtype({checked_name(content)!r})"
    if kind == "shape":
        known = None if content is None else [None if size is None else whole(size) for size in content]
        return f"tf.TensorShape({known!r})"
    raise ValueError(f"{kind!r} is no kind of value")


def _settings(found: Mapping[str, Any]) -> list[str]:
    lines = [
        f"tf.config.threading.set_{which}_op_parallelism_threads({whole(found[f'{which}_op_threads'])})"
        for which in ("intra", "inter")
    ]
    lines.append(f"tf.config.experimental.enable_tensor_float_32_execution({bool(found['tensor_float_32'])})")
    return [*lines, "tf.config.experimental.enable_op_determinism()"] if found["op_determinism"] else lines
