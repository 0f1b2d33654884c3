"""Code that runs, before the program, in every Python process that is made deterministic or is in an experiment."""

from __future__ import annotations

import atexit
import json
import os
import sys
from functools import partial

from determinism.errors import ending_as_before, legible
from determinism.frameworks.registry import ENABLERS, FACTORS
from determinism.import_hook import after_import
from determinism.launch.notes import note_not_recorded
from determinism.run_spec import EnablingRequest, FactorRequest, RunSpec
from determinism.session.enable import enable

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType, ModuleType

    from determinism.session.enable import Patches, Settings

# Makes every Python process of a program started by `determinism run` deterministic.

SAID_VARIABLE = "DETERMINISM_SAID"
"""Environment variable with the settings that were reported, so that the children of a process do not repeat them."""


def start_enabling() -> None:
    """Make the settings requested by the environment, now and whenever a framework is imported.

    Raises:
        DeterminismError: The request cannot be met.
    """
    request = RunSpec.from_environment(os.environ).enabling or EnablingRequest()
    settings = enable(request.seed, warn_only=request.warn_only, threads=request.threads, precision=request.precision)
    patches = _patched() if request.patch else None
    _say_open(settings, patches)
    # Settings that the program itself makes later are known only at its end.
    atexit.register(ending_as_before, partial(_say_overridden, settings))
    for framework in ENABLERS:
        # Called after the settings of the framework are made, since callbacks are called in the order of registration.
        after_import(framework, lambda _: _say_open(settings, patches), _say)


def _patched() -> Patches:
    from determinism.session.enable import patch

    return patch()


def _say_overridden(settings: Settings) -> None:
    try:
        _say_open(settings, None)
    except Exception:
        # The program has ended, and its framework may be partly torn down.
        return


def _say_open(settings: Settings, patches: Patches | None) -> None:
    """Print to standard error, once each, settings that were not made and frameworks whose ops were not replaced."""
    texts = {one.name: f"{one.name}: {one.effect.value}. {one.detail}".rstrip() for one in settings.open}
    if patches is not None:
        texts |= {f"--patch {name}": f"--patch: {reason}." for name, reason in patches.skipped.items()}
    said = os.environ.get(SAID_VARIABLE, "").split("\n")
    new = [name for name in texts if name not in said]
    for name in new:
        _say(texts[name])
    if new:
        os.environ[SAID_VARIABLE] = "\n".join(filter(None, [*said, *new]))


def _say(message: str) -> None:
    try:
        sys.stderr.write(f"determinism: {legible(message)}\n")
    except (OSError, ValueError, AttributeError):
        # There is nowhere to print it.
        return


ENTROPY_PREFIX = "entropy-"
"""Prefix of the trace files that say which code requested random bytes."""
_MOST_ENTROPY_NOTES = 100


class EntropyNotes:
    """Notes which library requests random bytes from the operating system, and which line of the program called it."""

    def __init__(self) -> None:
        """Take the trace of this process; without one, nothing is noted."""
        self._folder = RunSpec.from_environment(os.environ).trace_folder
        self._seen: set[tuple[tuple[int, int], ...]] = set()
        self._is_busy = False

    def asked(self) -> None:
        """Note the code that is requesting bytes."""
        if self._folder is None or self._is_busy or len(self._seen) >= _MOST_ENTROPY_NOTES:
            return
        self._is_busy = True
        try:
            self._write(sys._getframe(1), self._folder)
        except Exception:
            pass
        finally:
            self._is_busy = False

    def _write(self, at: FrameType | None, folder: Path) -> None:
        from determinism.sites import frame_text
        from determinism.source_files import Owner, owner_of

        library, is_import = None, False
        while at is not None and (owner := owner_of(at)) is not Owner.USER:
            library = at if owner is Owner.LIBRARY and library is None else library
            is_import |= at.f_code.co_filename.startswith("<frozen importlib")
            at = at.f_back
        # Bytes that Python and the frameworks request during their import affect nothing.
        if at is None or (is_import and library is None):
            return
        frames = [at] if library is None else [library, at]
        key = tuple((id(frame.f_code), frame.f_lasti) for frame in frames)
        if key in self._seen:
            return
        self._seen.add(key)
        line = json.dumps([json.loads(frame_text(frame)) for frame in frames])
        with open(folder / f"{ENTROPY_PREFIX}{os.getpid()}.jsonl", "a", encoding="utf-8") as file:
            file.write(line + "\n")


# Fixes or perturbs factors in every Python process of an experiment.


def start_factors() -> None:
    """Start the factors requested by the environment, now and whenever a framework is imported."""
    from determinism.factors import simple
    from determinism.factors.catalog import FACTORS as CATALOG

    request = RunSpec.from_environment(os.environ).factors or FactorRequest({})
    simple.note_entropy = EntropyNotes().asked
    for factor in CATALOG.values():
        for starter in factor.starters if factor.name in request.actions else ():
            if starter.after is None:
                _function(starter.function)(request)
            else:
                after_import(starter.after, partial(_function(starter.function), request), note_not_recorded)
    for framework, module in FACTORS.items():
        after_import(framework, _factor_starter(module, request), note_not_recorded)


def _function(name: str) -> Callable[..., None]:
    from importlib import import_module

    module, _, function = name.partition(":")
    found: Callable[..., None] = getattr(import_module(module), function)
    return found


def _factor_starter(module: str, request: FactorRequest) -> Callable[[ModuleType], None]:
    def start_factors(framework: ModuleType) -> None:
        from importlib import import_module

        import_module(module).start(request)

    return start_factors
