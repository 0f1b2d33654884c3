"""The ways to run a case: plainly, under a mode that does nothing, under the recorder."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

import determinism
from determinism.frameworks.torch.formula_nodes import nodes_below
from determinism.frameworks.torch.settings_inside import AUTOCAST, CONJUGATION, run_restoring
from determinism.frameworks.wrapping import wrap
from determinism.trace.writer import ProcessWriter


class EmptyMode(TorchDispatchMode):
    """Runs every op as it comes; what it changes is changed by its being there."""

    supports_higher_order_operators = True

    def __init__(self, conjugation: Collection[str] = (), autocast: Collection[str] = ()) -> None:
        super().__init__()
        self._conjugation = conjugation
        self._autocast = autocast

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave `torch.compile` as it is."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        keys = CONJUGATION if name in self._conjugation else ()
        keys += AUTOCAST if name in self._autocast else ()
        return run_restoring(keys, func, args, kwargs or {})


@contextmanager
def empty_mode(
    nodes: Collection[str] = (), conjugation: Collection[str] = (), autocast: Collection[str] = ()
) -> Iterator[None]:
    """A mode that does nothing; some things are shielded from it, to see whether it is they that change.

    Args:
        nodes: Names of autograd nodes that run without the mode.
        conjugation: Names of ops whose own ops find lazy conjugation.
        autocast: Names of ops whose own ops find autocast.
    """

    def around(run: Any, roots: Any, *args: Any, **kwargs: Any) -> Any:
        handles = []
        for node in nodes_below(roots):
            if node.name() in nodes:
                handles += [node.register_prehook(lambda *_: modes.append(_pop_mode()))]
                handles += [node.register_hook(lambda *_: _push_mode(modes.pop()))]
        try:
            return run(roots, *args, **kwargs)
        finally:
            modes.clear()
            for handle in handles:
                handle.remove()

    modes: list[Any] = []
    undo = wrap(torch.autograd, "_engine_run_backward", around)
    try:
        with EmptyMode(conjugation, autocast):
            yield
    finally:
        undo()


@contextmanager
def recorder() -> Iterator[list[str]]:
    """Recording, into a folder that is removed; gives the identifiers of the blind spots so far."""
    counted: list[str] = []

    def around(original: Any, writer: Any, identifier: str, *args: Any) -> None:
        counted.append(identifier)
        original(writer, identifier, *args)

    undo = wrap(ProcessWriter, "blind_spot", around)
    try:
        with tempfile.TemporaryDirectory() as folder, determinism.record(Path(folder) / "trace"):
            yield counted
    finally:
        undo()
