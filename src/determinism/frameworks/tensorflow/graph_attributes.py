"""The attributes and constants of an op in a graph, as text that is the same in each run."""

from __future__ import annotations

from typing import Any

from determinism.digest import digest_bytes

_LEFT_OUT = frozenset(
    {
        "T", "Tin", "Tout", "Tidx", "Tshape", "Tdim", "Tindices", "Tparams", "Targuments", "Tcond", "Tblock_shape", "Taxis", "Tlen",
        "Tmultiples", "Tpaddings", "Tperm", "dtype", "value", "out_type", "SrcT", "DstT", "shared_name", "container", "debug_name", "token",
        "config", "config_proto", "executor_type", "output_shapes", "output_types", "parallel_iterations", "N", "is_async",
        "allowed_devices", "element_dtype", "shape_type", "metadata", "num_args", "read_only_resource_inputs",
    }
)  # fmt: skip
_MOST_ELEMENTS = 8
_MOST_TEXT = 300


def argument_text(op: Any) -> str:
    """The attributes that decide what an op computes.

    Args:
        op: Of a graph. Names that are made anew in each run, and types that the layouts of its results tell, are left out.
    """
    parts = []
    attributes = op.node_def.attr
    for name in sorted(attributes):
        if name in _LEFT_OUT or name.startswith("_"):
            continue
        value = attributes[name]
        if value.HasField("func") or (value.HasField("list") and value.list.func):
            continue
        parts.append(f"{name}={_attribute(value)}")
    return _short(", ".join(parts))


def _attribute(value: Any) -> str:
    which = value.WhichOneof("value")
    if which == "s":
        return str(value.s.decode("utf-8", "backslashreplace"))
    if which == "list":
        held = value.list
        return str([_plain(one) for field in ("s", "i", "f", "b", "type") for one in getattr(held, field)])
    if which == "shape":
        return str([dim.size for dim in value.shape.dim])
    if which == "tensor":
        return digest_bytes(value.tensor.SerializeToString(deterministic=True)).hex()
    return str(getattr(value, which)) if which else ""


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def eager_argument_text(attributes: tuple[Any, ...] | None) -> str:
    """The attributes of an op that ran eagerly.

    Args:
        attributes: Names and values in turn.
    """
    parts = {}
    for name, value in zip((attributes or ())[::2], (attributes or ())[1::2], strict=False):
        if name in _LEFT_OUT or name.startswith("_"):
            continue
        if isinstance(value, (bool, int, float, str, bytes, type(None), list, tuple)):
            parts[name] = f"{name}={value!r}" if not isinstance(value, (list, tuple)) else f"{name}={_texts(value)}"
    return _short(", ".join(parts[name] for name in sorted(parts)))


def _texts(values: Any) -> str:
    return str([one if isinstance(one, (bool, int, float, str, bytes)) else type(one).__name__ for one in values])


def constant_text(op: Any) -> str:
    """What a constant of the graph holds: the numbers where they are few, else a digest."""
    held = op.node_def.attr["value"].tensor
    elements = 1
    for dim in held.tensor_shape.dim:
        elements *= dim.size
    if elements <= _MOST_ELEMENTS:
        from tensorflow.python.framework import tensor_util

        array = tensor_util.MakeNdarray(held)
        return _short(str(array.tolist()))
    return digest_bytes(held.SerializeToString(deterministic=True)).hex()


def _short(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    return f"{text[:_MOST_TEXT]} … {digest_bytes(text.encode('utf-8', 'surrogatepass')).hex()}"
