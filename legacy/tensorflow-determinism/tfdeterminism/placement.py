"""Where an op runs.

TensorFlow's GPU kernels of several ops add with atomic operations, in whichever order the threads come. The kernels of
the same ops for the CPU take the elements in the order in which they lie. Such an op is deterministic once it runs on
the CPU, wherever its inputs are: TensorFlow copies them there and the result back.
"""

import contextlib
import functools


@contextlib.contextmanager
def cpu():
    """What is built or run within runs on the CPU, of the same job and task as it would otherwise.

    A surrounding `colocate_with`, as optimizers use, would overrule the device; within, it does not hold.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    stack = [] if context.executing_eagerly() else ops.get_default_graph()._colocation_stack.peek_objs()
    innermost = next(iter(stack), None)
    if innermost is not None:
        with ops.colocate_with(None, ignore_existing=True), ops.device(_cpu_beside(innermost)):
            yield
    else:
        with ops.device("/device:CPU:0"):
            yield


def _cpu_beside(op):
    parts = [
        part for part in (getattr(op, "device", "") or "").split("/") if part.startswith(("job:", "replica:", "task:"))
    ]
    return "/" + "/".join([*parts, "device:CPU:0"])


def on_cpu(stock):
    """The same function, whose op runs on the CPU."""

    @functools.wraps(stock)
    def run_on_cpu(*args, **kwargs):
        with cpu():
            return stock(*args, **kwargs)

    return run_on_cpu


@functools.lru_cache(maxsize=None)
def gpu_is_there() -> bool:
    """Whether this TensorFlow can use GPUs and the machine has one. Takes no memory of it."""
    from tensorflow.python.framework import config

    return bool(config.list_physical_devices("GPU"))
