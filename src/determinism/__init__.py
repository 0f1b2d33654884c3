"""Framework Determinism: makes deep-learning runs bit-exact from run to run, and finds out why they are not.

Importing this package imports no framework; each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determinism import state as state
    from determinism.batch.session import check_batch_invariance as check_batch_invariance
    from determinism.comparison.result import Comparison as Comparison
    from determinism.comparison.runs import compare as compare
    from determinism.errors import DeterminismError as DeterminismError
    from determinism.knowledge.query import status as status
    from determinism.session.check import check as check
    from determinism.session.enable import Patches as Patches
    from determinism.session.enable import Settings as Settings
    from determinism.session.enable import enable as enable
    from determinism.session.enable import patch as patch
    from determinism.session.record import record as record
    from determinism.session.record import step as step
    from determinism.session.seeding import Seeds as Seeds
    from determinism.session.seeding import seed as seed
    from determinism.types import __version__ as __version__

_PLACES = {
    "__version__": "determinism.types",
    "Comparison": "determinism.comparison.result",
    "DeterminismError": "determinism.errors",
    "Patches": "determinism.session.enable",
    "Seeds": "determinism.session.seeding",
    "Settings": "determinism.session.enable",
    "check": "determinism.session.check",
    "check_batch_invariance": "determinism.batch.session",
    "compare": "determinism.comparison.runs",
    "enable": "determinism.session.enable",
    "patch": "determinism.session.enable",
    "record": "determinism.session.record",
    "seed": "determinism.session.seeding",
    "status": "determinism.knowledge.query",
    "step": "determinism.session.record",
}

__all__ = [
    "Comparison",
    "DeterminismError",
    "Patches",
    "Seeds",
    "Settings",
    "check",
    "check_batch_invariance",
    "compare",
    "enable",
    "patch",
    "record",
    "seed",
    "state",
    "status",
    "step",
]


if not TYPE_CHECKING:
    # A type checker would take this for a promise that there is every name.
    def __getattr__(name: str) -> object:
        if name == "state":
            return import_module("determinism.state")
        place = _PLACES.get(name)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(place), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
