"""One op with what it was given, to be run again by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from determinism.frameworks.tensorflow.captured_call import call_document


class OpCall(NamedTuple):
    """What an op read and made, and how to run it again."""

    kind: str
    inputs: Sequence[Any]
    """Tensors or arrays, in the order of the op's inputs; empty where they are not known."""
    attributes: dict[str, Any]
    outputs: Sequence[Any]
    problem: str | None = None
    """Why it cannot be run again; None if it can."""

    def run(self) -> list[Any]:
        """Run it once, eagerly.

        Raises:
            Exception: Whatever TensorFlow says of it.
        """
        given: dict[str, Any] = {
            name: [tf.convert_to_tensor(self.inputs[one]) for one in at]
            if isinstance(at, list)
            else tf.convert_to_tensor(self.inputs[at])
            for name, at in self.input_positions().items()
        }
        made = getattr(tf.raw_ops, self.kind)(**given, **self.named_attributes())
        made = list(made) if isinstance(made, (list, tuple)) else [made]
        return [part for one in made for part in (one if isinstance(one, list) else [one])]

    def document(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The call as JSON; see `call_document`."""
        return call_document(self, arrays)

    def input_positions(self) -> dict[str, int | list[int]]:
        """By the names of the op's arguments: which of the inputs each takes."""
        arguments = op_def_registry.get(self.kind).input_arg
        found: dict[str, int | list[int]] = {}
        at = 0
        lists = [one for one in arguments if one.number_attr or one.type_list_attr]
        singles = len(arguments) - len(lists)
        for one in arguments:
            if one in lists:
                count = self.attributes.get(one.number_attr) or len(self.attributes.get(one.type_list_attr, ()))
                # An eager op does not tell how long its lists are; lists of one length share what is left.
                count = count or (len(self.inputs) - singles) // len(lists)
                found[one.name] = list(range(at, at + count))
                at += count
            else:
                found[one.name] = at
                at += 1
        return found

    def named_attributes(self) -> dict[str, Any]:
        """The attributes that the inputs do not tell."""
        definition = op_def_registry.get(self.kind)
        told = {name for one in definition.input_arg for name in (one.number_attr, one.type_list_attr, one.type_attr)}
        names = [one.name for one in definition.attr if one.name not in told]
        return {name: self.attributes[name] for name in names if name in self.attributes}


def eager_call(kind: str, inputs: Sequence[Any], attributes: Any, outputs: Sequence[Any]) -> OpCall:
    """An op that ran eagerly.

    Args:
        kind: Its type.
        inputs: Eager tensors.
        attributes: Names and values in turn.
        outputs: What it made.
    """
    named = dict(zip((attributes or ())[::2], (attributes or ())[1::2], strict=False))
    problem = None if all(tensor.dtype not in (tf.resource, tf.variant) for tensor in inputs) else _HANDLES
    return OpCall(kind, inputs, named, outputs, problem)


def graph_call(op: Any, inputs: Sequence[Any], outputs: Sequence[Any], *, is_fused: bool) -> OpCall:
    """An op of a graph.

    Args:
        op: The op.
        inputs: Arrays; None for one that is not known.
        outputs: Arrays of what it made.
        is_fused: Whether it stands for several ops, of which only the last one is at hand.
    """
    problem = None
    if is_fused:
        problem = "it stands for several ops that TensorFlow may compute as one"
    elif any(one is None for one in inputs):
        problem = "what one of its inputs held was not kept"
    attributes = {name: op.get_attr(name) for name in op.node_def.attr if not name.startswith("_")}
    return OpCall(op.type, inputs, attributes, outputs, problem)


_HANDLES = "it reads or writes something that lives outside of tensors"


def as_array(value: Any) -> Any:
    """A tensor or array as an array."""
    return np.asarray(value._numpy_internal()) if hasattr(value, "_numpy_internal") else np.asarray(value)
