"""What runs inside every Python process of a program started by `determinism run`: it makes the process deterministic."""

from __future__ import annotations

import os
import sys

from determinism.frameworks.registry import ENABLERS
from determinism.import_hook import after_import
from determinism.launch.enabling_request import EnablingRequest
from determinism.session.enabling import enable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determinism.session.patching import Patches
    from determinism.session.settings import Settings

SAID_VARIABLE = "DETERMINISM_SAID"
"""Environment variable with the settings that were complained about, so that the children of a process do not repeat it."""


def start() -> None:
    """Enable as the environment asks for, now and whenever a framework is imported.

    Raises:
        DeterminismError: The request cannot be met.
    """
    request = EnablingRequest.from_environment(os.environ)
    settings = enable(request.seed, warn_only=request.warn_only, threads=request.threads, precision=request.precision)
    patches = _patched() if request.patch else None
    _say_open(settings, patches)
    for framework in ENABLERS:
        # After the settings of the framework were made: callbacks are called in the order in which they were given.
        after_import(framework, lambda _: _say_open(settings, patches), _say)


def _patched() -> Patches:
    from determinism.session.patching import patch

    return patch()


def _say_open(settings: Settings, patches: Patches | None) -> None:
    """Say on standard error which settings could not be made, and where no op could be replaced, each once."""
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
        sys.stderr.write(f"determinism: {message}\n")
    except (OSError, ValueError, AttributeError):
        # There is nowhere to say it.
        return
