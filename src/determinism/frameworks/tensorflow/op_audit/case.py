"""A case: one way to call an op, on inputs that make it vary if anything does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from determinism.frameworks.op_audit.arrays import Arrays

Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One way to call an op.

    Attributes:
        op: The name that the op is listed under in what is known.
        name: What of the op it is, and on which inputs.
        make: Makes the inputs and gives what calls the op; each call gives the results of a fresh computation.
        dtypes: Names of the dtypes to try.
    """

    op: str
    name: str
    make: Callable[[Inputs], Call]
    dtypes: Sequence[str] = ("float32",)


class Inputs:
    """Makes the inputs of one case, the same ones each time, on the device in whose scope it is used."""

    def __init__(self, dtype: str, seed: int) -> None:
        self.dtype: tf.DType = tf.as_dtype(dtype)
        self.arrays = Arrays(seed)
        self.leaves: list[tf.Tensor] = []
        """The tensors to differentiate by."""

    def tensor(self, array: Any) -> tf.Tensor:
        """An array as a tensor of the case's dtype, not differentiated by."""
        return tf.cast(tf.constant(array), self.dtype)

    def leaf_of(self, array: Any) -> tf.Tensor:
        """An array as a tensor to differentiate by."""
        made = self.tensor(array)
        self.leaves.append(made)
        return made

    def normal(self, *shape: int) -> tf.Tensor:
        """Values of very different sizes, not differentiated by."""
        return self.tensor(self.arrays.normal(*shape))

    def leaf(self, *shape: int) -> tf.Tensor:
        """As `normal`, to differentiate by."""
        return self.leaf_of(self.arrays.normal(*shape))

    def whole(self, high: int, *shape: int) -> tf.Tensor:
        """Whole numbers below `high`, as int32: as indices of many contributions to few places, they collide."""
        return tf.constant(self.arrays.whole(high, *shape))

    def like(self, tensor: tf.Tensor) -> tf.Tensor:
        """Random values to begin a backward pass with."""
        return tf.cast(tf.constant(self.arrays.normal(*tensor.shape)), tensor.dtype)
