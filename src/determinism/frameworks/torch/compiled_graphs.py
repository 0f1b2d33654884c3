"""Graphs that Inductor compiled: each call is one record, since no op is seen inside of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from determinism.digest import digest_text
from determinism.frameworks.torch.generators import generator_of, state_digest
from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.torch.storages import StorageState
from determinism.frameworks.torch.tensor_bytes import is_plain
from determinism.frameworks.torch.threads import Threads
from determinism.frameworks.wrapping import Undo, wrap
from determinism.import_hook import after_import

MODULE = "torch._inductor.output_code"
COMPILER = "torch._inductor.compile_fx"
_COMPILING = ("compile_fx", "_compile_fx_inner")
"""Where graphs are traced and compiled: forward ones at once, backward ones when they are first needed."""
_REASON = "the ops inside its kernels are not recorded one by one, only what goes into the graph and what comes out"


def install(threads: Threads, failed: Callable[[str], None]) -> Undo:
    """Record every call of a compiled graph from now on, whenever Inductor is imported; returns what ends that."""
    undo: list[Undo] = []
    ended = False

    def around(original: Callable[..., Any], graph: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = threads.recorder()
        if recorder is None:
            return original(graph, inputs, *args, **kwargs)
        # The graph frees its inputs while it runs, so only those that it writes may be held on to.
        given = recorder.quietly(recorder.look, tensors := _tensors(inputs))
        generator = generator_of(tuple(tensors), {})
        state = None if generator is None else recorder.quietly(state_digest, generator)
        # Addresses are used again for what it makes; the state that is kept of a storage is not.
        passed = [recorder.edges.storages.known(tensor) for tensor in tensors]
        del tensors
        written = [inputs[index] for index in getattr(graph, "mutated_input_idxs", ())]
        recorder.graph_depth += 1
        try:
            result = original(graph, inputs, *args, **kwargs)
        finally:
            recorder.graph_depth -= 1
        if given is not None:
            # What it saves for the backward may be an input, or a view of one, that nobody wrote.
            drawn = (state,) if state is not None and recorder.quietly(state_digest, generator) != state else ()
            recorder.quietly(_record, recorder, graph, given, written, _tensors(result), passed, drawn)
        return result

    def found(module: Any) -> None:
        if not ended:
            undo.append(wrap(module.CompiledFxGraph, "__call__", around))

    def compiling(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # What the compiler tries out is not the program's, and with a warm cache it tries out nothing.
        if (recorder := threads.recorder()) is None:
            return original(*args, **kwargs)
        with recorder.suspended():
            return original(*args, **kwargs)

    def compiler_found(module: Any) -> None:
        if not ended:
            undo.extend(wrap(module, name, compiling) for name in _COMPILING if hasattr(module, name))

    def end() -> None:
        nonlocal ended
        ended = True
        for one in undo:
            one()

    after_import(MODULE, found, failed)
    after_import(COMPILER, compiler_found, failed)
    return end


def _record(
    recorder: Recorder,
    graph: Any,
    given: Any,
    written: list[torch.Tensor],
    results: list[torch.Tensor],
    passed: list[StorageState | None],
    drawn: Sequence[bytes],
) -> None:
    known = {id(state) for state in passed if state is not None}
    storages = recorder.edges.storages
    made = [*written, *(tensor for tensor in results if id(storages.known(tensor)) not in known)]
    text = digest_text(str(getattr(graph, "source_code", ""))).hex()
    recorder.made("inductor::graph", given, made, text=text, generators=drawn)
    recorder.writer.blind_spot("fused-kernels", "graph compiled by Inductor", _REASON)


def _tensors(values: Any) -> list[torch.Tensor]:
    """Those that lie in memory of their own."""
    found = values if isinstance(values, (list, tuple)) else ()
    return [value for value in found if isinstance(value, torch.Tensor) and is_plain(value)]
