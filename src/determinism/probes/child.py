"""Starts the probes in each Python process of a probed program, before any of the program's code runs."""

from __future__ import annotations

import ast
import atexit
import builtins
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from determinism.errors import ending_as_before
from determinism.import_hook import after_import
from determinism.probes import rewrite
from determinism.probes.loading import Loading, install, rewrite_cells, rewrite_spawned
from determinism.probes.notes import Notes
from determinism.probes.origins import Origins
from determinism.probes.runtime import Probes, Probing, SourceTable
from determinism.probes.sources import clock, completion, randomness, surroundings
from determinism.rng import state_digests
from determinism.run_spec import RunSpec
from determinism.source_files import is_console_script, set_copy

FUNCTIONS = (
    *clock.CLOCK_FUNCTIONS,
    *completion.COMPLETION_FUNCTIONS,
    *randomness.ENTROPY_FUNCTIONS,
    *clock.FILE_TIME_FUNCTIONS,
    *surroundings.HASH_FUNCTIONS,
    *surroundings.LISTING_FUNCTIONS,
    *surroundings.MACHINE_FUNCTIONS,
    *surroundings.MEMORY_FUNCTIONS,
    *surroundings.PROCESS_FUNCTIONS,
    *surroundings.PROGRAM_FUNCTIONS,
    *surroundings.QUERY_FUNCTIONS,
    *completion.QUEUE_FUNCTIONS,
    *randomness.DRAW_FUNCTIONS,
    *randomness.SEEDING_FUNCTIONS,
    *clock.TIMER_FUNCTIONS,
    *surroundings.TRAINING_FUNCTIONS,
)
"""All source functions; the families do not depend on each other."""

# Lets PyTorch's compiler see through the probes, which would otherwise break its graphs.


def let_compiler_see_through() -> None:
    """Tell the compiler, once it is imported, that each probe returns the value it received."""
    decorators = sys.modules["torch._dynamo.decorators"]
    for name in rewrite.ALL:
        probe: Any = getattr(builtins, name, None)
        if probe is not None:
            decorators.substitute_in_graph(probe, skip_signature_check=True)(_given_back())


def _given_back() -> Any:
    def given_back(site: str, value: Any, name: str = "") -> Any:
        return value

    return given_back


_notes: list[Notes] = []
_endings: list[Callable[[], None]] = []


def start() -> None:
    """Probe this process if the environment requests it."""
    spec = RunSpec.from_environment(os.environ)
    request = spec.probes
    if request is None:
        return
    if spec.copied is not None:
        set_copy(*spec.copied)
    probing = Probing(request)
    loading = Loading(
        _started_as(),
        _not_probed(probing.notes),
        rewrites=request.probes,
        changes=request.changes,
        takes_notes=probing.notes is not None,
        library_files={one.file for one in request.fixed},
    )
    if request.probes:
        table = SourceTable(FUNCTIONS)
        origins = None if probing.notes is None else Origins()
        if probing.notes is not None and origins is not None:
            probing.notes.origin = origins.led_to
        Probes(probing, table, origins).install()
        table.start()
    loading.install()
    install(loading)
    after_import("runpy", lambda runpy: rewrite_spawned(runpy, loading), _ignore)
    after_import("IPython.core.compilerop", lambda compilers: rewrite_cells(compilers, loading), _ignore)
    after_import("torch._dynamo.decorators", lambda _: let_compiler_see_through(), _ignore)
    if probing.notes is not None:
        _notes.append(probing.notes)
        probing.notes.claim()
        at_first = state_digests()
        # NumPy makes its generator when it is first used.
        after_import("numpy.random", lambda _: at_first.update({**state_digests(), **at_first}), _ignore)
        _endings.append(partial(ending_as_before, partial(_finish, probing.notes, loading, at_first)))
        atexit.register(_endings[-1])


def recorded_by(recorded: Callable[[], tuple[str | None, int]]) -> None:
    """Set the function that reports how far this process's recorder is; each note then includes it.

    Args:
        recorded: Returns the key of this process in the trace, and how many records it has made so far.
    """
    for notes in _notes:
        notes.recorded = recorded


def finish() -> None:
    """Complete the notes of a process that ends without Python's own shutdown."""
    for end in _endings:
        end()


def _finish(notes: Notes, loading: Loading, at_first: Mapping[str, bytes]) -> None:
    try:
        loading.note_unprobed()
        notes.drawn({name: now.hex() for name, now in state_digests().items() if now != at_first.get(name)})
    finally:
        notes.close()


def _not_probed(notes: Notes | None) -> Callable[[str, str, str], None]:
    return _ignore if notes is None else notes.not_probed


def _started_as() -> frozenset[str]:
    """The top-level packages that Python was started to run: by `-m`, or by a console script that imports them."""
    arguments = sys.orig_argv
    if sys.argv[:1] == ["-m"]:
        position = next((number for number, one in enumerate(arguments) if one.startswith("-") and one[-1:] == "m"), 0)
        return frozenset({arguments[position + 1].partition(".")[0]} if 0 < position < len(arguments) - 1 else ())
    script = os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else ""
    if not script or not is_console_script(script):
        return frozenset()
    try:
        with open(script, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return frozenset(name.partition(".")[0] for name in imported) - sys.stdlib_module_names


def _ignore(*_: object) -> None:
    return
