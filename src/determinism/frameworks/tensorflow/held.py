"""What a program keeps: the variables of its optimizers, and those that they train, with their names."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from determinism import rng
from determinism.digest import digest_text
from determinism.frameworks.made_values import EXTERNAL, Value
from determinism.frameworks.tensorflow.recorder import Recorder
from determinism.types import Phase, Role

_MOST_RESULTS = 1000
_HELD_OPS = {"parameter": "determinism::parameter", "optimizer state": "determinism::optimizer_state"}


class HeldVariables:
    """Finds what the program keeps, through its optimizers."""

    def __init__(self) -> None:
        self._optimizers: list[weakref.ref[Any]] = []

    @property
    def has_any(self) -> bool:
        """Whether an optimizer is known."""
        return any(known() is not None for known in self._optimizers)

    def add_optimizer(self, optimizer: Any) -> None:
        """An optimizer steps."""
        if not any(known() is optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def variables(self) -> Iterator[tuple[str, str, Any]]:
        """Sort, name and variable of each; each variable once, in the order in which the program made them."""
        seen: set[int] = set()
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is None:
                continue
            trained = list(getattr(optimizer, "_trainable_variables", None) or ())
            own = list(getattr(optimizer, "variables", None) or ())
            for sort, variables in (("parameter", trained), ("optimizer state", own)):
                for variable in variables:
                    if id(variable) not in seen:
                        seen.add(id(variable))
                        yield sort, str(getattr(variable, "path", None) or variable.name), variable


def generator_states() -> list[bytes]:
    """Digests of the states of the generators that everything in this process shares."""
    from tensorflow.python.eager import context
    from tensorflow.python.ops import stateful_random_ops

    held = context.context()
    seeds = getattr(held, "_rng", None)
    states = [digest_text(f"{held._seed} {seeds.getstate() if seeds is not None else None}")]
    generator = stateful_random_ops.global_generator
    if generator is not None:
        states.append(digest_text(str(generator.state.numpy().tolist())))
    return [*states, *rng.state_digests().values()]


def record_held(recorder: Recorder, held: HeldVariables, name: str, generators: Sequence[bytes]) -> None:
    """Record everything that is held.

    Args:
        recorder: That of the thread that holds it.
        held: Knows it.
        name: What the record stands for: the end of a step, or of the process.
        generators: Digests of the states of generators.
    """
    unread = recorder.values.unread.take()
    if unread and recorder.tracks_ops:
        recorder.emit(Role.ESCAPE, "determinism::results", unread[:_MOST_RESULTS], phase=Phase.OTHER)
    names: list[list[str]] = []
    values: list[Value] = []
    for sort, path, variable in held.variables():
        handle = getattr(getattr(variable, "value", variable), "handle", None)
        if handle is None:
            continue
        resource = recorder.resource(handle)
        value = recorder.variables.get(resource.key) if recorder.tracks_ops else None
        if value is None and (read := recorder.read_variable(resource)) is not None:
            value = Value(EXTERNAL, 0, *read)
        if value is not None:
            names.append([sort, path])
            values.append(value)
    if recorder.tracks_ops:
        recorder.emit(Role.STATE, name, values, arguments=json.dumps(names), drawn=generators, phase=Phase.OTHER)
        return
    recorder.hold((_HELD_OPS[sort], path, value) for (sort, path), value in zip(names, values, strict=True))
    recorder.emit(Role.STATE, name, [], drawn=generators, phase=Phase.OTHER)
