"""Code that runs in every Python process of a recorded program: it waits for a framework and starts its recorder."""

from __future__ import annotations

import os
import sys

from determinism.errors import ending_as_before
from determinism.frameworks.registry import RECORDERS, is_helper
from determinism.import_hook import after_import
from determinism.launch.notes import is_requested, note_not_recorded
from determinism.launch.reading import note_leftovers

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

_SUPPORTED_VERSIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "torch": ((2, 6), (3, 0)),
    "tensorflow": ((2, 16), (3, 0)),
    "jax": ((0, 5), (1, 0)),
}


def start(recorders: Mapping[str, str] = RECORDERS) -> None:
    """Record this process as soon as it imports a framework, if the environment requests it.

    Args:
        recorders: For each framework, the module that records it.
    """
    if not is_requested("recording") or is_helper(sys.orig_argv):
        return
    _hide_own_frames_at_the_end()
    note_leftovers()
    for framework, recorder in recorders.items():
        after_import(framework, _starter(framework, recorder), note_not_recorded)


def _hide_own_frames_at_the_end() -> None:
    """Hide our frames in the traceback that ends the program, even before a recorder hides them everywhere.

    Ctrl-C may arrive while opened files are being examined.
    """
    original = sys.excepthook

    def excepthook(kind: Any, error: Any, shown: Any, /) -> Any:
        def clean() -> None:
            from determinism.frameworks.wrapping import leave_out_own_frames

            leave_out_own_frames(error)

        ending_as_before(clean)
        return original(kind, error, error.__traceback__)

    sys.excepthook = sys.__excepthook__ = excepthook


def _starter(framework: str, recorder: str) -> Callable[[ModuleType], None]:
    def start_recorder(module: ModuleType) -> None:
        reason = _obstacle(framework, str(getattr(module, "__version__", "")))
        if reason is None:
            _start_recorder(framework, recorder)
        else:
            note_not_recorded(reason)

    return start_recorder


def _obstacle(framework: str, version: str) -> str | None:
    """Return why this process cannot be recorded; None if it can."""
    from importlib.util import find_spec

    from determinism.launch.interpreter import RECORDER_PACKAGES, install_line

    missing = [name for name in RECORDER_PACKAGES if find_spec(name) is None]
    if missing:
        return (
            f"{sys.executable} lacks {' and '.join(missing)}, which the recorder needs. "
            f"Install with: {install_line(sys.executable)}"
        )
    oldest, newest = _SUPPORTED_VERSIONS.get(framework, ((0,), (sys.maxsize,)))
    numbers = tuple(int(part) if part.isdigit() else 0 for part in version.split("+")[0].split(".")[:2])
    if not oldest <= numbers < newest:
        until = ".".join(map(str, newest))
        return (
            f"{framework} {version or 'without a version'} is installed for {sys.executable}; recording supports "
            f"{'.'.join(map(str, oldest))} up to, not including, {until}. Install a version in that range."
        )
    return None


def _start_recorder(framework: str, recorder: str) -> None:
    import atexit
    from importlib import import_module

    from determinism.run_spec import PROCESS_VARIABLE, RunSpec
    from determinism.session import record
    from determinism.session.record import Folders
    from determinism.source_files import set_copy

    spec = RunSpec.from_environment(os.environ)
    if spec.trace_folder is None:
        # The program has changed its environment since it started.
        return
    if spec.copied is not None:
        set_copy(*spec.copied)
    session = import_module(recorder).Session(Folders(spec.trace_folder, framework, note_not_recorded), spec)
    session.note_earlier_threads()
    is_second = record.has_begun()
    record.add(session, note_not_recorded)
    probes = sys.modules.get("determinism.probes.child")
    if probes is not None and not is_second:
        # Notes then say between which records a source was used.
        probes.recorded_by(lambda: (os.environ.get(PROCESS_VARIABLE), session.num_records))
        session.on_early_end = probes.finish
    atexit.register(_quietly(session.close))


def _quietly(action: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            ending_as_before(action)
        except KeyboardInterrupt:
            # The user interrupts a program that is ending: its trace stays incomplete, and our traceback is not shown.
            pass
        except Exception as error:
            # Python would print it into the program's output.
            note_not_recorded(f"Recording failed in process {os.getpid()}: {type(error).__name__}: {error}")

    return run
