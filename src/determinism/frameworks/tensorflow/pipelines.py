"""The stages of `tf.data` pipelines, and through which of them the elements of an iterator came."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.framework import config, dtypes

from determinism.frameworks.tensorflow import op_traits
from determinism.sites import innermost_user_frame

_MOST_STAGES = 30
_MOST_KNOWN = 10_000
_UNTOLD = (
    "Options",
    "Model",
    "Prefetch",
    "Tensor",
    "TensorSlice",
    "Map",
    "Optimize",
    "MaxIntraOpParallelism",
    "PrivateThreadPool",
)
_VERSION = re.compile(r"Dataset(V\d+)?$")


class Pipelines:
    """Knows what each data set and iterator of the process was made of."""

    def __init__(self, note_racy: Callable[[str], None]) -> None:
        """Take what is told that the order of elements may vary."""
        self._note_racy = note_racy
        self._stages: dict[int, tuple[str, ...]] = {}

    def stage_made(self, kind: str, inputs: Sequence[Any], attributes: Any, outputs: Sequence[Any]) -> None:
        """An op made a data set.

        Args:
            kind: The type of the op.
            inputs: Its inputs; among them the data sets before it.
            attributes: Names and values in turn.
            outputs: The data set.
        """
        stages = [stage for tensor in inputs for stage in self._stages.get(tensor._id, ())]
        name = _VERSION.sub("", kind)
        if name not in _UNTOLD:
            stages.append(self._told(name, dict(zip(attributes[::2], attributes[1::2], strict=False))))
        for tensor in outputs:
            self._know(tensor, tuple(stages[-_MOST_STAGES:]))

    def _told(self, name: str, attributes: dict[str, Any]) -> str:
        order = attributes.get("deterministic")
        order = order.decode() if isinstance(order, bytes) else order
        if order == "false":
            self._note_racy("unordered data pipeline")
        elif name.startswith("Parallel") and not config.is_op_determinism_enabled() and _draws(attributes.get("f")):
            self._note_racy("random ops in a parallel data pipeline")
        frame = innermost_user_frame()
        place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""
        parts = [f"deterministic={order}"] * (order is not None) + [place] * bool(place)
        return f"{name}({', '.join(parts)})"

    def iterator_made(self, inputs: Sequence[Any]) -> None:
        """An iterator over a data set was begun."""
        handles = [tensor for tensor in inputs if tensor.dtype is dtypes.resource]
        data_sets = [tensor for tensor in inputs if tensor.dtype is dtypes.variant]
        stages = [stage for tensor in data_sets for stage in self._stages.get(tensor._id, ())]
        for handle in handles:
            self._know(handle, tuple(stages))

    def _know(self, tensor: Any, stages: tuple[str, ...]) -> None:
        if len(self._stages) >= _MOST_KNOWN:
            self._stages.clear()
        self._stages[tensor._id] = stages

    def stages_of(self, key: int) -> str:
        """The stages before an iterator, first ones first, by the number of its handle; empty if they are not known."""
        return " > ".join(self._stages.get(key, ()))


def _draws(function: Any) -> bool:
    """Whether a function of a stage draws from a generator that its calls share."""
    name = getattr(function, "name", None)
    if name is None:
        return False
    name = name.decode() if isinstance(name, bytes) else str(name)
    nodes = context.context().get_function_def(name).node_def
    return any(op_traits.is_random(node.op) and not op_traits.takes_its_seed(node.op) for node in nodes)
