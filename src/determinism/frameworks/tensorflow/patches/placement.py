"""Where an op runs.

Several kernels for the GPU add with atomic operations, in whichever order the threads come, where the kernels of the same ops
for the CPU take the elements in the order in which they lie. Such an op is deterministic once it runs on the CPU, wherever
its inputs are: TensorFlow copies them there, and the result back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


@contextmanager
def cpu() -> Iterator[None]:
    """What is built or run within runs on the CPU of the job and task where it would have run.

    A surrounding `colocate_with` would overrule the device; within, it does not hold.
    """
    from tensorflow.python.framework import ops

    stack = () if tf.executing_eagerly() else ops.get_default_graph()._colocation_stack.peek_objs()
    innermost = next(iter(stack), None)
    if innermost is None:
        with tf.device("/device:CPU:0"):
            yield
    else:
        with ops.colocate_with(None, ignore_existing=True), tf.device(_cpu_beside(innermost)):
            yield


def _cpu_beside(op: Any) -> str:
    parts = (getattr(op, "device", "") or "").split("/")
    return "/" + "/".join([*(part for part in parts if part.startswith(("job:", "replica:", "task:"))), "device:CPU:0"])


def on_cpu(stock: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose op runs on the CPU."""

    @functools.wraps(stock)
    def run_on_cpu(*args: Any, **kwargs: Any) -> Any:
        with cpu():
            return stock(*args, **kwargs)

    return run_on_cpu


@functools.cache
def gpu_is_there() -> bool:
    """Whether TensorFlow can use a GPU here. Takes no memory of it."""
    return bool(tf.config.list_physical_devices("GPU"))
