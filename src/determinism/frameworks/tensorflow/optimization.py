"""Gradients and optimizers: where losses are, and where steps end."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from tensorflow.python.eager import backprop, context
from tensorflow.python.framework import func_graph, ops

from determinism.frameworks.tensorflow.earlier import counts_steps_of, earlier_optimizers
from determinism.frameworks.tensorflow.held import HeldVariables
from determinism.frameworks.tensorflow.recorder import Recorder
from determinism.frameworks.tensorflow.tensor_bytes import has_value
from determinism.frameworks.wrapping import Undo, wrap
from determinism.import_hook import after_import
from determinism.trace.schema import Meaning
from determinism.types import Phase, Role

_KERAS_OPTIMIZERS = "keras.src.optimizers.base_optimizer"


class Optimization:
    """Knows which optimizers step in which graphs."""

    def __init__(self, recorder: Recorder, held: HeldVariables, stepped: Callable[[], None]) -> None:
        """Nothing has stepped yet.

        Args:
            recorder: Told where steps end.
            held: Told what optimizers there are.
            stepped: Called after an optimizer stepped.
        """
        self._recorder = recorder
        self._held = held
        self._stepped = stepped
        self._in_graphs: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._earlier = [weakref.ref(optimizer) for optimizer in earlier_optimizers()]
        self._undo: list[Undo] = []

    def install(self) -> list[Undo]:
        """Hook gradients and optimizers; returns what takes the hooks off."""
        self._recorder.calls.returned = self._function_returned
        self._undo = [wrap(backprop.GradientTape, "gradient", self._gradient)]
        after_import(_KERAS_OPTIMIZERS, self._hook_keras, self._recorder.failed_to_hook)
        return [self._take_off]

    def _take_off(self) -> None:
        for undo in self._undo:
            undo()

    def _hook_keras(self, module: Any) -> None:
        self._undo.append(wrap(module.BaseOptimizer, "apply", self._apply))

    def _apply(self, original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if not recorder.is_own():
            return original(optimizer, *args, **kwargs)
        self._held.add_optimizer(optimizer)
        if not context.executing_eagerly():
            self._note_graphs(optimizer)
            return original(optimizer, *args, **kwargs)
        recorder.progress.optimizer_begins(optimizer)
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            recorder.quietly(recorder.progress.optimizer_ends, optimizer)
            self._stepped()

    def _note_graphs(self, optimizer: Any) -> None:
        """The graph that is being made, and those around it, step this optimizer whenever they run."""
        graph = ops.get_default_graph()
        while isinstance(graph, func_graph.FuncGraph):
            found = self._in_graphs.setdefault(graph, [])
            if not any(one() is optimizer for one in found):
                found.append(weakref.ref(optimizer))
            graph = graph.outer_graph

    def _function_returned(self, graph: Any) -> None:
        if graph is None:
            return
        recorder = self._recorder
        if graph not in self._in_graphs:
            earlier = (one for one in self._earlier if (made := one()) is not None and counts_steps_of(graph, made))
            self._in_graphs[graph] = list(earlier)
        for reference in self._in_graphs[graph]:
            optimizer = reference()
            if optimizer is not None:
                self._held.add_optimizer(optimizer)
                recorder.progress.optimizer_begins(optimizer)
                recorder.quietly(recorder.progress.optimizer_ends, optimizer)
                self._stepped()

    def _gradient(self, original: Callable[..., Any], tape: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if not recorder.is_own() or not context.executing_eagerly():
            return original(tape, target, *args, **kwargs)
        recorder.quietly(_loss, recorder, target)
        recorder.backward_depth += 1
        try:
            return original(tape, target, *args, **kwargs)
        finally:
            recorder.backward_depth -= 1
            if recorder.progress.phase in (Phase.INIT, Phase.FORWARD):
                recorder.progress.phase = Phase.OTHER


def _loss(recorder: Recorder, target: Any) -> None:
    tensors = [
        t
        for t in (target if isinstance(target, (list, tuple)) else [target])
        if hasattr(t, "_id") and has_value(t.dtype)
    ]
    values = [recorder.value(tensor) for tensor in tensors]
    number = recorder.emit(
        Role.LOSS, "determinism::loss", values, [(v.layout, v.digest) for v in values], phase=Phase.FORWARD
    )
    if tensors:
        is_number = tensors[0].dtype.is_floating and tensors[0].shape.rank == 0
        held = float(tensors[0]._numpy_internal()) if is_number else 0.0
        meaning = Meaning.LOSS if is_number else Meaning.UNKNOWN_LOSS
        recorder.writer.number(meaning, number, (values[0].record, values[0].output), held, recorder.progress.step)
