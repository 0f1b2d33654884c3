"""A call of an op as data: its arguments and attributes as JSON, from which a script can make it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config

from determinism.frameworks.array_capture import NotWritable

if TYPE_CHECKING:
    from determinism.frameworks.tensorflow.op_call import OpCall

_NUMBERS = "biufc"
"""Kinds of NumPy's dtypes whose elements a file can hold; those of TensorFlow's own floats are `V`."""


def call_document(call: OpCall, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """A call as JSON.

    Args:
        call: The call.
        arrays: Its inputs by the names under which they are kept, in order.

    Raises:
        NotWritable: It has an input or an attribute that a script could not be given.
    """
    names = list(arrays)
    for name, array in arrays.items():
        if array.dtype.kind not in _NUMBERS and not hasattr(tf.dtypes, array.dtype.name):
            raise NotWritable(f"its {name} holds elements of type {array.dtype}")
    given = {
        name: [names[one] for one in at] if isinstance(at, list) else names[at]
        for name, at in call.input_positions().items()
    }
    return {
        "framework": "tensorflow",
        "op": call.kind,
        "arguments": given,
        "attributes": {name: _node(value, name) for name, value in call.named_attributes().items()},
        "tensors": {
            name: {"dtype": array.dtype.name, "shape": list(np.shape(array))} for name, array in arrays.items()
        },
        "settings": {
            "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
            "op_determinism": bool(config.is_op_determinism_enabled()),
            "tensor_float_32": bool(tf.config.experimental.tensor_float_32_execution_enabled()),
        },
    }


def _node(value: Any, name: str) -> Any:
    """A value as JSON: what JSON does not have is a dictionary with one key, which tells what it is."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, (bytes, str)):
        return value.decode("utf-8", "strict") if isinstance(value, bytes) else value
    if isinstance(value, tf.DType):
        return {"dtype": value.name}
    if isinstance(value, tf.TensorShape):
        return {"shape": None if value.rank is None else value.as_list()}
    if isinstance(value, (list, tuple)):
        return [_node(one, name) for one in value]
    raise NotWritable(f"its attribute {name} is of type {type(value).__qualname__}")
