"""Fixes for the causes that were found: what to write, and whether runs with it were equal."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePath

from determinism.comparison.divergence import Fix
from determinism.diagnose.code_changes import (
    TAKE_GENERATORS,
    code_fix,
    keeps_other_seed_parts,
    possible_uses,
    seed_chosen_by,
)
from determinism.diagnose.experiments import Hypothesis, Intervention, Trial, causes
from determinism.diagnose.parsed_module import Module, counter_of, keyword_of, last_part
from determinism.diagnose.program_flow import MADE_SEEDS
from determinism.diagnose.program_text import lines_at_start, unified_diff
from determinism.diagnose.sources import Source
from determinism.factors.catalog import FACTORS
from determinism.run_spec import CodeChange, FixedSource

_SEEDED = ("unseeded-generator", "seed-value")


def code_change(hypothesis: Hypothesis) -> CodeChange | None:
    """Return the change to the program's lines that removes a cause; None if none is needed or no small one is known.

    Args:
        hypothesis: The cause, which experiments confirmed.
    """
    if not hypothesis.intervention.sources:
        return None
    return next((found for use in _uses(hypothesis) if (found := code_fix(use)) is not None), None)


def with_fixes(found: Sequence[Hypothesis], plain: Intervention) -> Intervention:
    """Add all fixes to what all runs have in common: with changed lines where possible, or else as in the experiments."""
    changes = [(one, code_change(one)) for one in found]
    return plain.also(
        *(one.intervention if change is None else Intervention(changes=frozenset({change})) for one, change in changes)
    )


def fixes_for(
    found: Sequence[Hypothesis],
    last: Trial | None,
    changed: Trial | None,
    step_seconds: float | None,
    started: Path | None = None,
    *,
    is_in_task: bool = False,
) -> list[Fix]:
    """Return what removes each cause.

    Args:
        found: The causes that experiments confirmed.
        last: The last experiment, in which all of them were removed.
        changed: Runs with the changed lines; None if none were made.
        step_seconds: How long a step takes with nothing removed; None if that was not measured.
        started: The file that the program is started from; None if unknown.
        is_in_task: Whether the process that differs is only sent functions, so that nothing at the program's start applies to it.
    """
    with_changes = changed if changed is not None and changed.is_equal else None
    without = with_changes or (last if last is not None and last.is_equal else None)
    proofs = [with_changes if one.intervention.sources else without for one in found]
    fixes = [_fix(one, proof, step_seconds, started, is_in_task) for one, proof in zip(found, proofs, strict=True)]
    if len(found) == 1 and changed is not None and changed.failure is None and not changed.is_equal:
        # The line that would replace the one at fault was tried, and the runs still differed.
        fixes = [replace(fix, code=None, patch=None) if fix.patch and not fix.verified else fix for fix in fixes]
    if not all(fix.verified for fix in fixes):
        # The runs were equal with all causes removed, but some of them can be removed that way only in an experiment.
        fixes = [replace(fix, title=f"{fix.title}{_NOT_ALONE}") if fix.verified else fix for fix in fixes]
    steps = None if without is None else without.steps
    return [replace(fix, steps=steps) if fix.verified else fix for fix in fixes]


_IN_TASKS = "at the start of each task, whose process does not run the program's own file"


_NOT_ALONE = "; not enough on its own while the other causes remain"


def outside_fix(cause: str, trial: Trial, step_seconds: float | None) -> Fix:
    """Return what can be set outside the program instead of changing one of its lines.

    Args:
        cause: The cause that it removes.
        trial: Runs with it.
        step_seconds: How long a step takes with nothing removed; None if that was not measured.
    """
    proof = _proof(trial if trial.is_equal else None, step_seconds)
    title = "Or, without changing the program, start it with"
    return Fix(cause, title, None, causes()[cause].env, *proof, steps=trial.steps)


def _proof(trial: Trial | None, step_seconds: float | None) -> tuple[bool, int, float | None]:
    """Return whether runs showed that a fix helps, how many, and the ratio of step times."""
    return (False, 0, None) if trial is None else (True, trial.runs, _ratio(trial, step_seconds))


def _held(hypothesis: Hypothesis) -> FixedSource:
    if hypothesis.source is None:
        return next(iter(hypothesis.intervention.sources))
    return FixedSource(hypothesis.source.site.file, hypothesis.source.site.line, hypothesis.source.source)


def _uses(hypothesis: Hypothesis) -> list[Source]:
    return possible_uses(_held(hypothesis)) if hypothesis.source is None else [hypothesis.source]


def _fix(
    hypothesis: Hypothesis, trial: Trial | None, step_seconds: float | None, started: Path | None, is_in_task: bool
) -> Fix:
    proof = _proof(trial, step_seconds)
    entry = causes()[hypothesis.cause]
    if hypothesis.intervention.sources:
        return _fix_of_source(hypothesis, trial, proof, started)
    if hypothesis.intervention.fresh_copy:
        title = "Start each run from the same files, for example in a fresh copy of the folder"
        code = "determinism check --fresh-copy -- COMMAND"
        return Fix(hypothesis.cause, title, code, None, *proof, side_effect=entry.side_effect)
    factors = [name for name, _ in hypothesis.intervention.factors]
    remedy = FACTORS[factors[0]].remedy if len(factors) == 1 else None
    if remedy is None:
        # It takes a change that only the author can make, and that is not what the experiment did.
        return Fix(hypothesis.cause, entry.remedy, side_effect=entry.side_effect)
    if is_in_task and remedy.code is not None:
        # The experiment applied to every process, and the code would not.
        title = f"{remedy.title.removesuffix(' at the start of the program')} {_IN_TASKS}"
        return Fix(hypothesis.cause, title, remedy.code, side_effect=remedy.side_effect)
    added = None
    if remedy.code is not None and started is not None:
        added = lines_at_start(started, remedy.code, before=hypothesis.calls or hypothesis.sites[:1])
    patch = None if added is None else unified_diff(added)
    return Fix(
        hypothesis.cause,
        remedy.title,
        remedy.code,
        remedy.environment,
        *proof,
        patch=patch,
        side_effect=remedy.side_effect,
    )


def _fix_of_source(
    hypothesis: Hypothesis, trial: Trial | None, proof: tuple[bool, int, float | None], started: Path | None
) -> Fix:
    """Return the change to the program's text that gives a fixed source the same value in each run."""
    entry = causes()[hypothesis.cause]
    held = _held(hypothesis)
    led_by = () if hypothesis.source is None else hypothesis.source.led_by
    at = None if hypothesis.source is None else (led_by[0].site if led_by else hypothesis.source.site).frame
    file, line = (held.file, held.line) if at is None else (at.file, at.line)
    place = f"at {PurePath(file).name}:{line}"
    change = code_change(hypothesis)
    if change is None or (trial is None and not all(one.is_declared for one in led_by)):
        # The runs used a fixed value there, and no line is known that yields just that value.
        chooser = next((found for use in _uses(hypothesis) if (found := seed_chosen_by(use)) is not None), None)
        if chooser is not None:
            title = f"Give {chooser} the same value in each run; it becomes the seed {place}"
            return Fix(hypothesis.cause, title, side_effect=entry.side_effect)
        if led_by and led_by[0].method is not None:
            place = f"{'made' if led_by[0].is_made else 'that draws'} {place}, once before it draws"
            place = f"with the method {led_by[0].method}() of the object {place}"
            return Fix(hypothesis.cause, f"{entry.remedy} {place}", side_effect=entry.side_effect)
        return Fix(hypothesis.cause, f"{entry.remedy}, {place}", side_effect=entry.side_effect)
    if held.source in MADE_SEEDS:
        entry = causes()["seed-varies"]
    is_of_object = bool(led_by) and led_by[0].method is not None
    is_elsewhere = (is_of_object or not led_by) and all(one.line != line for one in change.changes)
    if is_elsewhere:
        # What is used here was made on another line, such as a set, an object to seed, or a seed shared by several generators.
        place = f"at {PurePath(file).name}:{change.changes[0].line}"
    if led_by and hypothesis.source is not None:
        warning = seeded_again(hypothesis.source)
    else:
        warning = (None if is_elsewhere else _repeated(hypothesis)) or _apart(hypothesis, change, started)
    title = f"{entry.remedy}, {place}{'' if warning is None else f'. {warning}'}"
    code = "\n".join([*change.imports, textwrap.dedent(change.code)])
    return Fix(hypothesis.cause, title, code, None, *proof, patch=unified_diff(change), side_effect=entry.side_effect)


def seeded_again(source: Source) -> str | None:
    """Return a sentence on what gets the same seed each time a line runs, once it passes one; None if nothing is known to."""
    for led in source.led_by:
        module = Module.read(led.site.file)
        call = None if module is None else module.at(led.site.place)
        if module is None or not isinstance(call, ast.Call) or led.argument in (None, *TAKE_GENERATORS):
            continue
        loops = module.loops_of(call)
        if loops and counter_of(loops[0]) is None:
            return f"The line is in a loop, and each pass then begins with the same numbers: {_FIRST_TIME}"
        if len(loops) > 1:
            return f"The loop is within another one, each pass of which then begins with the same seeds: {_FIRST_TIME}"
        # It seeds an existing object, whether or not that has a generator.
        if not loops and last_part(call.func) == "reset" and led.site.function not in ("<module>", "main"):
            return f"If the line runs more than once, it then begins with the same numbers each time: {_FIRST_TIME}"
    return None


_FIRST_TIME = "pass a seed the first time only, or a different one each time"


def _repeated(hypothesis: Hypothesis) -> str | None:
    """Warn that equal runs are not enough for a generator that is seeded repeatedly."""
    source = next(iter(_uses(hypothesis)), None)
    if source is None or source.source not in _SEEDED:
        return None
    runs = max(source.counts)
    if runs > 1:
        return f"The line ran {runs:,} times, and each generator then draws the same numbers: {_ONCE}"
    # No run has counted a use that only the text shows.
    if not runs and source.site.function not in ("", "<module>", "main"):
        return f"If the line runs more than once, each generator draws the same numbers: then {_ONCE}"
    return None


_ONCE = "create it once, or seed it with the step"


def _apart(hypothesis: Hypothesis, change: CodeChange, started: Path | None) -> str | None:
    """Warn that equal runs are not enough for processes that should draw different numbers from each other."""
    source = hypothesis.source
    if source is None or keeps_other_seed_parts(change):
        return None
    if source.source in _SEEDED and source.apart < 2 and _has_loader_workers(change, started):
        # A forked worker does not run the line again: it inherits a copy of the generator.
        return f"Workers of the DataLoader that draw from it then all draw the same numbers. If so, {_PER_WORKER}"
    if source.apart < 2:
        return None
    if source.source in _SEEDED:
        advice = f"each of them then draws the same numbers. Create one per worker or rank; in workers of a DataLoader, {_PER_WORKER}"
    elif source.source in MADE_SEEDS:
        advice = "if each should draw different numbers, add something that distinguishes them, such as the rank"
    else:
        return None
    # No run has noted a use that only the text shows.
    who = "processes run this line" if max(source.counts) else "ranks may run this line"
    return f"{source.apart:,} {who}: {advice}"


_PER_WORKER = (
    "draw from the global generators and pass worker_init_fn=seeds.worker_init_fn, with seeds = determinism.seed(1)"
)


_MOST_FILES = 200
"""The most Python files of a folder that are searched for loaders."""


def _has_loader_workers(change: CodeChange, started: Path | None) -> bool:
    """Whether the program makes a data loader that may have workers, in the changed file or in one that imports it."""
    changed = Path(change.file)
    if _makes_loader_workers(changed):
        return True
    name = changed.parent.name if changed.stem == "__init__" else changed.stem
    folders = dict.fromkeys(file.parent for file in (changed, started) if file is not None)
    files = [file for folder in folders for file in islice(sorted(folder.glob("*.py")), _MOST_FILES)]
    return any(_makes_loader_workers(file, importing=name) for file in files)


def _makes_loader_workers(file: Path, *, importing: str | None = None) -> bool:
    """Whether a file, if it imports a given module, makes a data loader that may have workers."""
    try:
        # Most files of a folder need not be parsed.
        module = Module.read(file) if b"DataLoader" in file.read_bytes() else None
    except OSError:
        return False
    if module is None or (importing is not None and not _imports(module, importing)):
        return False
    calls = [node for node in module.nodes if isinstance(node, ast.Call) and last_part(node.func) == "DataLoader"]
    workers = [keyword.value for call in calls if (keyword := keyword_of(call, "num_workers")) is not None]
    return any(not isinstance(one, ast.Constant) or one.value != 0 for one in workers)


def _imports(module: Module, name: str) -> bool:
    """Whether a program imports a module with this name, or something from it."""
    imports = [node for node in module.nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [one.name for node in imports for one in node.names]
    names += [node.module or "" for node in imports if isinstance(node, ast.ImportFrom)]
    return any(one.rpartition(".")[2] == name for one in names)


def _ratio(trial: Trial, step_seconds: float | None) -> float | None:
    """Return the time of a step with the fix, divided by the time without; None if that was not measured."""
    return round(trial.step_seconds / step_seconds, 2) if trial.step_seconds and step_seconds else None
