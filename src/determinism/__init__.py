"""Framework Determinism: makes deep-learning runs bit-exact from run to run, and finds out why they are not.

Importing this package imports no framework; each name is loaded when it is first used.
PYTEST_DONT_REWRITE: keeps pytest, which loads the plugin, from warning if this package was imported before.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determinism import state as state
    from determinism.batch.session import check_batch_invariance as check_batch_invariance
    from determinism.comparison.divergence import Cause as Cause
    from determinism.comparison.divergence import Dataflow as Dataflow
    from determinism.comparison.divergence import DeadDifference as DeadDifference
    from determinism.comparison.divergence import Diagnosis as Diagnosis
    from determinism.comparison.divergence import Divergence as Divergence
    from determinism.comparison.divergence import Evidence as Evidence
    from determinism.comparison.divergence import Experiment as Experiment
    from determinism.comparison.divergence import Fix as Fix
    from determinism.comparison.divergence import FlowEdge as FlowEdge
    from determinism.comparison.divergence import FlowNode as FlowNode
    from determinism.comparison.divergence import FlowOutput as FlowOutput
    from determinism.comparison.divergence import InputDifference as InputDifference
    from determinism.comparison.divergence import Inside as Inside
    from determinism.comparison.divergence import Likeness as Likeness
    from determinism.comparison.divergence import Loss as Loss
    from determinism.comparison.divergence import OutputDifference as OutputDifference
    from determinism.comparison.divergence import PrintedDifference
    from determinism.comparison.divergence import Status as CauseStatus
    from determinism.comparison.divergence import StepHistory as StepHistory
    from determinism.comparison.divergence import StepSpan as StepSpan
    from determinism.comparison.divergence import ValueExample as ValueExample
    from determinism.comparison.divergence import Visible as Visible
    from determinism.comparison.result import BatchFindings as BatchFindings
    from determinism.comparison.result import BatchKind as BatchKind
    from determinism.comparison.result import BlindSpot as BlindSpot
    from determinism.comparison.result import Comparison as Comparison
    from determinism.comparison.result import FileChange as FileChange
    from determinism.comparison.result import Leftover as Leftover
    from determinism.comparison.result import Missing as Missing
    from determinism.comparison.result import Narrowing as Narrowing
    from determinism.comparison.result import Parting as Parting
    from determinism.comparison.result import Recorded as Recorded
    from determinism.comparison.result import ResumeFindings as ResumeFindings
    from determinism.comparison.result import RowDifference as RowDifference
    from determinism.comparison.result import RunSummary as RunSummary
    from determinism.comparison.result import TrainingModule as TrainingModule
    from determinism.comparison.result import Trouble as Trouble
    from determinism.comparison.result import ValuesApart as ValuesApart
    from determinism.comparison.result import ValueStep as ValueStep
    from determinism.comparison.result import Window as Window
    from determinism.errors import DeterminismError as DeterminismError
    from determinism.errors import LaunchError as LaunchError
    from determinism.errors import StateError as StateError
    from determinism.errors import TraceError as TraceError
    from determinism.errors import UsageError as UsageError
    from determinism.frameworks.session import AdapterSession as Recording
    from determinism.knowledge.entries import Audit as Audit
    from determinism.knowledge.entries import Basis as Basis
    from determinism.knowledge.entries import Device as Device
    from determinism.knowledge.entries import Direction as Direction
    from determinism.knowledge.entries import Measurement as Measurement
    from determinism.knowledge.entries import Op as Op
    from determinism.knowledge.entries import OpVerdict as OpVerdict
    from determinism.knowledge.entries import Source as Source
    from determinism.knowledge.entries import SourceKind as SourceKind
    from determinism.knowledge.entries import Status as OpRule
    from determinism.knowledge.entries import VersionRange as VersionRange
    from determinism.knowledge.query import Base as Base
    from determinism.knowledge.query import Framework as Framework
    from determinism.knowledge.query import Mode as Mode
    from determinism.knowledge.query import OpStatus as OpStatus
    from determinism.knowledge.query import status as status
    from determinism.knowledge.settings import Effect as Effect
    from determinism.knowledge.settings import Remaining as Remaining
    from determinism.knowledge.settings import Setting as Setting
    from determinism.session.check import check as check
    from determinism.session.check import compare as compare
    from determinism.session.enable import Patches as Patches
    from determinism.session.enable import Settings as Settings
    from determinism.session.enable import enable as enable
    from determinism.session.enable import patch as patch
    from determinism.session.record import record as record
    from determinism.session.record import step as step
    from determinism.session.seeding import Seeds as Seeds
    from determinism.session.seeding import seed as seed
    from determinism.trace.schema import Frame as Frame
    from determinism.types import Kind as Kind
    from determinism.types import Level as Level
    from determinism.types import Verdict as Verdict
    from determinism.types import __version__ as __version__

_MODULES = {
    "determinism.batch.session": "check_batch_invariance",
    "determinism.comparison.divergence":
        "Cause Dataflow DeadDifference Diagnosis Divergence Evidence Experiment Fix FlowEdge FlowNode FlowOutput "
        "InputDifference Inside Likeness Loss OutputDifference PrintedDifference StepHistory StepSpan ValueExample "
        "Visible CauseStatus",
    "determinism.comparison.result":
        "BatchFindings BatchKind BlindSpot Comparison FileChange Leftover Missing Narrowing Parting Recorded "
        "ResumeFindings RowDifference RunSummary TrainingModule Trouble ValueStep ValuesApart Window",
    "determinism.errors": "DeterminismError LaunchError StateError TraceError UsageError",
    "determinism.frameworks.session": "Recording",
    "determinism.knowledge.query": "Base Framework Mode OpStatus status",
    "determinism.knowledge.entries":
        "Audit Basis Device Direction Measurement Op OpVerdict Source SourceKind OpRule VersionRange",
    "determinism.knowledge.settings": "Effect Remaining Setting",
    "determinism.session.check": "check compare",
    "determinism.session.enable": "Patches Settings enable patch",
    "determinism.session.record": "record step",
    "determinism.session.seeding": "Seeds seed",
    "determinism.trace.schema": "Frame",
    "determinism.types": "Kind Level Verdict __version__",
}  # fmt: skip
"""Public names by the module that defines them."""
_PLACES = {name: module for module, names in _MODULES.items() for name in names.split()}
_OWN_NAMES = {"CauseStatus": "Status", "Recording": "AdapterSession", "OpRule": "Status"}
"""Names in the defining modules that differ from the public ones, because they are not unique."""

__all__ = [
    "Audit", "Base", "Basis", "BatchFindings", "BatchKind", "BlindSpot", "Cause", "CauseStatus", "Comparison",
    "Dataflow", "DeadDifference", "DeterminismError", "Device", "Diagnosis", "Direction", "Divergence", "Effect",
    "Evidence", "Experiment", "FileChange", "Fix", "FlowEdge", "FlowNode", "FlowOutput", "Frame", "Framework",
    "InputDifference", "Inside", "Kind", "LaunchError", "Leftover", "Level", "Likeness", "Loss", "Measurement", "Missing",
    "Mode", "Narrowing", "Op", "OpRule", "OpStatus", "OpVerdict", "OutputDifference", "Parting", "Patches",
    "PrintedDifference", "Recorded", "Recording", "Remaining", "ResumeFindings", "RowDifference", "RunSummary", "Seeds", "Setting", "Settings",
    "Source", "SourceKind", "StateError", "StepHistory", "StepSpan", "TraceError", "TrainingModule", "Trouble",
    "UsageError", "ValueExample", "ValueStep", "ValuesApart", "Verdict", "VersionRange", "Visible", "Window", "check",
    "check_batch_invariance", "compare", "enable", "patch", "record", "seed", "state", "status", "step",
]  # fmt: skip


_IPYTHON = ("load_ipython_extension", "unload_ipython_extension")
"""Functions that IPython calls for `%load_ext determinism` and `%unload_ext determinism`."""


if not TYPE_CHECKING:
    # A type checker would conclude that every name exists.
    def __getattr__(name: str) -> object:
        if name == "state":
            return import_module("determinism.state")
        if name in _IPYTHON:
            return getattr(import_module("determinism.integrations.notebook"), name)
        place = _PLACES.get(name)
        if place is None:
            raise _unknown(name)
        return getattr(import_module(place), _OWN_NAMES.get(name, name))


_GUESSES = {
    "assert_deterministic": "check",
    "check_determinism": "check",
    "deterministic": "enable",
    "diff": "compare",
    "disable": "enable() as a context, or .restore() of what it returned",
    "enable_determinism": "enable",
    "fix_seed": "seed",
    "make_deterministic": "enable",
    "manual_seed": "seed",
    "random_seed": "seed",
    "seed_all": "seed",
    "seed_everything": "seed",
    "set_deterministic": "enable",
    "set_random_seed": "seed",
    "set_seed": "seed",
    "trace": "record",
    "use_deterministic_algorithms": "enable",
    "verify": "check",
}
"""Names that users are likely to try, and the right names."""


def _unknown(name: str) -> AttributeError:
    meant = _GUESSES.get(name)
    if meant is None and not name.startswith("_"):
        from difflib import get_close_matches

        meant = next(iter(get_close_matches(name, __all__, n=1)), None)
    hint = "" if meant is None else f". Did you mean determinism.{meant}?"
    # Without `name` and `obj`, for which Python would add its own suggestion.
    return AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
