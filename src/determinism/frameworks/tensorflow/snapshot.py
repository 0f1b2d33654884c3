"""What TensorFlow keeps in variables and generators, copied so that it can be put back into the same objects.

The classes here have the shape that `determinism.session.contents.Contents` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import ops, tensor
from tensorflow.python.ops import resource_variable_ops

from determinism.frameworks.tensorflow import enable

_MEMORY = 0
_STATELESS: tuple[type[Any], ...] = (tensor.Tensor, tf.dtypes.DType, tf.TensorShape, ops.Graph, tf.TypeSpec)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Copy and put back unseen by gradient tapes."""
    with record.stop_recording():
        yield


def capture_generators() -> Callable[[], None]:
    """Copy the states of the global generators; gives what puts them back."""
    return enable.capture()


def restore_generators(states: Callable[[], None] | None) -> None:
    """Put them back; what was not there when they were copied stays as it is."""
    if states is not None:
        states()


def contents_of(thing: Any) -> list[Any] | None:
    """What a variable or a function holds; None if `thing` is none of TensorFlow's own objects.

    Args:
        thing: Any object.

    Returns:
        Objects with the shape of `determinism.session.contents.Contents`.
    """
    if isinstance(thing, resource_variable_ops.BaseResourceVariable):
        return [_VariableContents(thing)]
    if isinstance(thing, tf.types.experimental.PolymorphicFunction):
        return [_FunctionContents(thing)]
    return [] if isinstance(thing, _STATELESS) else None


class _FunctionContents:
    """The Python function that a function of TensorFlow was made from."""

    order: int = _MEMORY
    template: str = ".{}"
    rebinds: bool = False
    is_whole: bool = True
    """Nothing else of the object is the program's state."""

    def __init__(self, function: Any) -> None:
        self._parts = [("python_function", function.python_function)]

    def children(self) -> Iterable[tuple[object, object]]:
        return self._parts

    def restore(self, renewed: Callable[[object], object]) -> None:
        """Leave it: what was traced does not change what it computes."""


class _VariableContents:
    """The value of a variable."""

    order: int = _MEMORY
    template: str = ".{}"
    rebinds: bool = False
    is_whole: bool = True
    """Nothing else of the object is the program's state."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable
        # A copy: the tensor that reading gives shares the memory of the variable.
        self._value = tf.identity(variable.read_value()).numpy()

    def children(self) -> Iterable[tuple[object, object]]:
        return ()

    def restore(self, renewed: Callable[[object], object]) -> None:
        self._variable.assign(self._value)
