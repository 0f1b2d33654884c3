"""`ParallelDynamicStitch`, whose kernel for the CPU copies rows with several threads: of equal indices the last thread wins.

`DynamicStitch` copies one row after the other: of rows with the same index the last one stays. Without repeated indices the
results are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def parallel_dynamic_stitch(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A `parallel_dynamic_stitch` in which the last of several rows with one index wins."""

    @functools.wraps(stock)
    def deterministic_stitch(indices: Any, data: Any, name: str | None = None) -> Any:
        from tensorflow.python.ops import gen_data_flow_ops

        return gen_data_flow_ops.dynamic_stitch(indices, data, name=name)

    return deterministic_stitch
