"""What is said of causes, the experiments that show them, and fixes."""

from __future__ import annotations

from collections.abc import Iterator

from determinism.comparison.findings import Cause, Experiment, Fix
from determinism.comparison.result import Comparison
from determinism.report.entry import Entry, Tone, Weight
from determinism.report.places import frame_text
from determinism.report.wording import counted, listed, prose
from determinism.types import Verdict

MOST_CAUSES = 3
MOST_SITES = 2
MOST_FIXES = 4


def cause_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say why the runs differ, what shows it, and what makes them equal."""
    if comparison.varied:
        yield Entry(_varied_sentence(comparison), "stirred", Weight.CORE)
    for cause in comparison.causes[:MOST_CAUSES]:
        yield from _cause_entries(cause)
    more = len(comparison.causes) - MOST_CAUSES
    if more > 0:
        yield Entry(f"and {counted(more, 'more possible cause')}", weight=Weight.ITEM)
    # What a checkpoint lacks is told with how to save it.
    fixes = comparison.fixes[:MOST_FIXES] if comparison.missing is None else []
    for fix in fixes:
        yield from _fix_entries(fix)
    if comparison.diagnosis is not None:
        yield Entry(comparison.diagnosis, "search", Weight.MAIN)
    if comparison.experiments and not comparison.causes:
        tried = listed([experiment.factor for experiment in comparison.experiments])
        yield Entry(f"{counted(len(comparison.experiments), 'experiment')}: {tried}", "tried", Weight.NOTE)


def _varied_sentence(comparison: Comparison) -> str:
    names = listed(comparison.varied)
    if comparison.verdict is Verdict.DIFFERENT:
        return f"The plain runs were the same. They differ with {names} stirred on purpose."
    return f"The runs were the same with {names} stirred on purpose too."


def _cause_entries(cause: Cause) -> Iterator[Entry]:
    yield Entry(f"{cause.title} ({cause.identifier}, {cause.status})", "cause", Weight.CORE)
    for number, site in enumerate(cause.sites[:MOST_SITES]):
        weight = Weight.ITEM if number else Weight.CORE
        yield Entry(frame_text(site), weight=weight)
        if site.code.strip():
            yield Entry(site.code.strip(), weight=weight, tone=Tone.CODE, lines=2, indent=4)
    for sentence in cause.evidence:
        yield Entry(prose(sentence), weight=Weight.NOTE)
    for experiment in cause.experiments:
        yield Entry(_experiment_sentence(experiment), "shown by", Weight.MAIN)


def _experiment_sentence(experiment: Experiment) -> str:
    return f"{experiment.factor} {experiment.action}: {prose(experiment.outcome)}"


def _fix_entries(fix: Fix) -> Iterator[Entry]:
    yield Entry(f"{fix.title} ({_proof(fix)})", "fix", Weight.CORE, lines=4)
    if fix.code is not None:
        for line in fix.code.splitlines():
            yield Entry(line, weight=Weight.CORE, tone=Tone.CODE, lines=4, indent=4)
    if fix.environment is not None:
        text = " ".join(f"{name}={value}" for name, value in fix.environment)
        yield Entry(text, weight=Weight.CORE, tone=Tone.CODE, indent=4)


def _proof(fix: Fix) -> str:
    if not fix.verified:
        return "not verified"
    ratio = "" if fix.step_time_ratio is None else f", a step takes {fix.step_time_ratio:.2f} times as long"
    return f"verified: {counted(fix.runs, 'run')} were bit-identical{ratio}"
