"""What runs inside every Python process of an experiment: it holds factors still, or stirs them."""

from __future__ import annotations

import os

from determinism.factors.request import FactorRequest
from determinism.frameworks.registry import FACTORS
from determinism.import_hook import after_import
from determinism.launch.notes import note_not_recorded

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from collections.abc import Callable
    from types import ModuleType


def start() -> None:
    """Do what the environment asks for, now and whenever a framework is imported."""
    request = FactorRequest.from_environment(os.environ)
    _start_in_python(request)
    if request.is_fixed("patches"):
        from determinism.session.patching import patch

        patch()
    for framework, module in FACTORS.items():
        after_import(framework, _starter(module, request), note_not_recorded)


def _start_in_python(request: FactorRequest) -> None:
    from determinism.factors import clock, entropy, generators, listings, thread_schedule

    actions = request.actions
    if "listings" in actions:
        listings.start(request)
    if request.is_fixed("python-seed"):
        generators.seed_python()
    if request.is_fixed("numpy-seed"):
        after_import("numpy", generators.seed_numpy, note_not_recorded)
    if request.is_fixed("entropy"):
        entropy.start()
        after_import("numpy", entropy.fix_numpy, note_not_recorded)
    if "thread-schedule" in actions:
        thread_schedule.start(request)
    if request.is_fixed("process-schedule"):
        from determinism.factors import process_schedule

        process_schedule.take_turns()
    if request.is_stirred("addresses"):
        from determinism.factors import addresses

        addresses.stir(request.number)
    if request.is_stirred("clock"):
        clock.start(request.number)


def _starter(module: str, request: FactorRequest) -> Callable[[ModuleType], None]:
    def start_factors(framework: ModuleType) -> None:
        from importlib import import_module

        import_module(module).start(request)

    return start_factors
