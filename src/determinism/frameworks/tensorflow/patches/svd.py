"""The singular value decomposition of matrices with one column."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from determinism.frameworks.tensorflow.patches.placement import cpu


def svd(stock: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which takes a matrix of one column, or of a number of columns that is not known, to the CPU.

    Only for one column the kernel for the GPU refuses to run under op determinism ("Determinism is not yet supported
    for SVD of matrices with 1 column", in the binary of 2.21).
    """

    @functools.wraps(stock)
    def svd_on_cpu(input: Any, *args: Any, **kwargs: Any) -> Any:
        matrix = tf.convert_to_tensor(input)
        if matrix.shape.rank is not None and matrix.shape.rank > 0 and matrix.shape[-1] not in (1, None):
            return stock(matrix, *args, **kwargs)
        with cpu():
            return stock(matrix, *args, **kwargs)

    return svd_on_cpu
