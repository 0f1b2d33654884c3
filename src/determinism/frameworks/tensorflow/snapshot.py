"""What TensorFlow keeps in variables and generators, copied so that it can be put back into the same objects."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import ops, tensor
from tensorflow.python.ops import resource_variable_ops

from determinism.frameworks.snapshots import Contents
from determinism.frameworks.tensorflow import enable

_STATELESS: tuple[type[Any], ...] = (tensor.Tensor, tf.dtypes.DType, tf.TensorShape, ops.Graph, tf.TypeSpec)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Copy and put back unseen by gradient tapes."""
    with record.stop_recording():
        yield


_KERAS_STATE = "keras.src.backend.common.global_state"
_NAME_COUNTERS = "object_name_uids"
"""Keras numbers layers and optimizers of one class: the second `Dense` is named `dense_1`, and so are its variables."""


def capture_generators() -> Callable[[], None]:
    """Copy the states of the global generators, and how many objects Keras has named; gives what puts them back."""
    put_back, counters = enable.capture(), dict(_name_counters() or {})

    def restore() -> None:
        put_back()
        if _name_counters() is not None:
            sys.modules[_KERAS_STATE].set_global_attribute(_NAME_COUNTERS, defaultdict(int, counters))

    return restore


def _name_counters() -> dict[str, int] | None:
    """By the beginning of a name, how many there are; None before Keras has named anything."""
    state: Any = sys.modules.get(_KERAS_STATE)
    counters: dict[str, int] | None = None if state is None else state.get_global_attribute(_NAME_COUNTERS)
    return counters


def restore_generators(states: Callable[[], None] | None) -> None:
    """Put them back; what was not there when they were copied stays as it is."""
    if states is not None:
        states()


def contents_of(thing: Any) -> list[Contents] | None:
    """What a variable or a function holds; None if `thing` is none of TensorFlow's own objects."""
    if isinstance(thing, resource_variable_ops.BaseResourceVariable):
        # A copy: the tensor that reading gives shares the memory of the variable.
        value = tf.identity(thing.read_value()).numpy()
        return [Contents(lambda: thing.assign(value), is_whole=True)]
    if isinstance(thing, tf.types.experimental.PolymorphicFunction):
        # What was traced does not change what it computes.
        return [Contents(children=[("python_function", thing.python_function)], is_whole=True)]
    return [] if isinstance(thing, _STATELESS) else None
