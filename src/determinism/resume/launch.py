"""Runs a program in full, up to a checkpoint, and resumed from it; compares the resumed steps with the full run's."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from determinism.comparison.divergence import Fix, Visible
from determinism.comparison.result import Comparison, Missing, ResumeFindings, RunSummary
from determinism.diagnose.checkpoints import PARTS
from determinism.errors import DeterminismError, LaunchError, UsageError
from determinism.launch.io import OutputFolder, StandardInput
from determinism.launch.program import Announce, Interrupted, failed_run_text, unannounced
from determinism.launch.record import record_program, require_recorded, summarized_run
from determinism.launch.runs import end_search_early, may_run_further, without_traces
from determinism.redaction import redacted_text
from determinism.resume.compare import compare_resumed, conclude_resumed
from determinism.resume.observed import ResumedProcess
from determinism.resume.unsaved import only_reads_differ, unsaved
from determinism.run_spec import RunSpec
from determinism.trace.files import make_private_folder
from determinism.trace.opening import open_trace
from determinism.trace.process import Trace
from determinism.types import Role, Verdict

# What a resumed run lacks and can get from outside: tried in further runs.

MOMENTS = ("batch", "iterator")
"""When generators are put back: before each batch requested until the first step; before each iterator of a data loader."""
WITHOUT_LOADER = "record"
"""The moment where no data loader gives batches: after the last record before the first step, so after loading."""

_FROM_OUTSIDE = ("rng-torch", "rng-python", "rng-numpy")
_HASH_SEED = "PYTHONHASHSEED"
_ELSE = "own-data"
"""What is named next to generators that were put back, when either may be the cause."""
_DEPARTS = "resume-first-departs"


@dataclass(frozen=True)
class ResumeTrial:
    """One way to run the program once more."""

    title: str
    generators: Mapping[str, object] | None = None
    """The resumed run's request to put generators back, without `from`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for all three runs."""
    prefix: Sequence[str] = ()
    """Words to put before each command."""
    steps: int | None = None
    """The generators are restored to their states after this many steps of the first run; None: after all."""


def last_before_steps(processes: Sequence[ResumedProcess]) -> dict[str, int]:
    """The resumed run's last record before its first step, by the key of the process; empty if data loaders give batches."""
    found = {}
    for process in processes:
        if process.parts is None:
            continue
        part = process.parts[1]
        first = next((chunk for chunk in part.chunks() if chunk.rows), None)
        if first is not None and first.columns["role"][0] == Role.BATCH:
            return {}
        found[process.full.key] = part.start - 1
    return found


def generator_trials(
    missing: Sequence[Missing], last: Mapping[str, int], steps: int | None = None
) -> list[ResumeTrial]:
    """How the generators that were not saved can be put back; empty if more is missing, which only the program can save.

    Args:
        missing: What a checkpoint lacks.
        last: The result of `last_before_steps`.
        steps: The number of steps after which the checkpoint was saved; None: all of the first run.
    """
    names = [one.identifier for one in missing if one.identifier != _ELSE]
    if not names or any(name not in _FROM_OUTSIDE for name in names):
        return []
    if last:
        request = {"which": names, "moment": WITHOUT_LOADER, "after": dict(last)}
        return [ResumeTrial("generators restored before the first step", request, steps=steps)]
    texts = {"batch": "before the first batch", "iterator": "before the loader is iterated over"}
    return [
        ResumeTrial(f"generators restored {texts[moment]}", {"which": names, "moment": moment}, steps=steps)
        for moment in MOMENTS
    ]


def whole_trials(comparison: Comparison, run: Sequence[str]) -> list[ResumeTrial]:
    """What to try if nothing is known to be missing, or if the runs depart before the checkpoint."""
    departs = any(trouble.identifier == _DEPARTS for trouble in comparison.trouble)
    if not departs and (comparison.missing or comparison.first_divergence is None):
        return []
    return [
        ResumeTrial("a fixed hash seed", environment={_HASH_SEED: "0"}),
        ResumeTrial("all settings and a seed", prefix=run),
    ]


def fix_of_trial(trial: ResumeTrial) -> Fix:
    """The fix that a trial of whole runs represents."""
    if trial.environment:
        return Fix("hash-seed", "A fixed hash seed for all runs", None, tuple(trial.environment.items()), verified=True)
    return Fix(
        "run", "All settings, and a seed for every generator", "determinism run --seed 1 -- COMMAND", verified=True
    )


def fixes_of(missing: Sequence[Missing], *, verified: bool) -> list[Fix]:
    """What to write for each part that is missing.

    Args:
        missing: What a checkpoint lacks.
        verified: Whether the resumed run equaled the full one once it got the missing parts from outside.
    """
    return [Fix(one.identifier, one.fix, PARTS[one.identifier].lines, verified=verified) for one in missing]


def after_trials(missing: Sequence[Missing], outcomes: Sequence[bool | None]) -> list[Missing]:
    """What is missing, given the outcome of putting generators back.

    If that made the runs equal, nothing else is missing. If it did not, a generator that the program itself had put back only
    followed another cause, and is dropped where that is known; the others are marked as tried in vain.

    Args:
        missing: What a checkpoint lacks.
        outcomes: For each trial, whether the runs were equal; None if it could not be made.
    """
    if True in outcomes:
        return [one for one in missing if one.identifier != _ELSE]
    if False not in outcomes:
        return list(missing)
    is_else = any(one.identifier == _ELSE for one in missing)
    return [
        one if one.identifier == _ELSE else replace(one, is_tried_in_vain=True)
        for one in missing
        if not (is_else and one.is_put_back)
    ]


# What is to be resumed, and how: three commands, or one with placeholders.

RUNS = ("full", "first", "resumed")
_PLACES = ("{steps}", "{save}", "{load}")


@dataclass(frozen=True)
class ResumeRequest:
    """The commands of the three runs, or one for all of them."""

    full: str | None = None
    """A command in shell syntax, like the next two."""
    first: str | None = None
    resumed: str | None = None
    program: Sequence[str] = ()
    """One command with `{steps}`, `{save}` and `{load}` in its words, instead of these three."""
    steps: int = 8
    """How many steps the full run makes."""
    at: int | None = None
    """The step after which the first run saves; None: after half of them."""
    output: Path | None = None
    keep: bool = False
    allow_failure: bool = False
    explain: bool | None = None
    """Whether further runs may try fixes; None: if a run took less than a minute."""

    def commands(self, checkpoints: Path) -> dict[str, list[str]]:
        """The words of each run's command.

        Args:
            checkpoints: Folder for what the runs save, if one command represents all of them.

        Raises:
            UsageError: The commands are incomplete, contradict each other, or cannot be split into words.
        """
        given = {name: getattr(self, name) for name in RUNS}
        if self.program:
            if any(given.values()):
                raise _incomplete("Three commands and one for all of them were both given")
            return self._filled_in(checkpoints)
        lacking = [f"--{name}" for name, command in given.items() if not command]
        if lacking:
            raise _incomplete(f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing")
        return {name: _words(name, command) for name, command in given.items()}

    def _filled_in(self, checkpoints: Path) -> dict[str, list[str]]:
        lacking = [place for place in _PLACES if not any(place in word for word in self.program)]
        if lacking:
            raise _incomplete(f"The command contains no {' and no '.join(lacking)}")
        at = self.steps // 2 if self.at is None else self.at
        if not 0 < at < self.steps:
            raise UsageError(
                "resume-commands",
                f"--at {at} is not between 0 and --steps {self.steps}, so nothing was run. Give --at the step at which the first "
                f"run saves, from 1 to {self.steps - 1}.",
            )
        saved = str(checkpoints / "first")
        places = {
            "full": (str(self.steps), str(checkpoints / "full"), ""),
            "first": (str(at), saved, ""),
            "resumed": (str(self.steps), str(checkpoints / "resumed"), saved),
        }
        return {name: [_filled(word, values) for word in self.program] for name, values in places.items()}


def _filled(word: str, values: Sequence[str]) -> str:
    for place, value in zip(_PLACES, values, strict=True):
        word = word.replace(place, value)
    return word


def _words(name: str, command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise _incomplete(f"--{name} {redacted_text(command)!r} cannot be split into words ({error})") from None
    if not words:
        raise _incomplete(f"--{name} is empty")
    return words


def _incomplete(found: str) -> UsageError:
    return UsageError(
        "resume-commands",
        f"{found}, so nothing was run. Give either --full COMMAND --first COMMAND --resumed COMMAND, or one command "
        f"with {{steps}}, {{save}} and {{load}} in it: determinism check-resume -- python train.py --steps {{steps}} "
        f"--save {{save}} --load {{load}}. {{steps}} is the step to stop at, and {{load}} is empty in runs that start "
        "from scratch.",
    )


# Makes the runs of a check of resuming: in full, up to the checkpoint, and resumed from it.

TITLES = {"full": "full run", "first": "run up to the checkpoint", "resumed": "resumed run"}


@dataclass
class ResumeRuns:
    """Makes one run after the other, and keeps track of them."""

    output: OutputFolder
    standard_input: StandardInput
    announce: Announce
    allow_failure: bool
    made: list[RunSummary]
    """Summaries of the runs that count."""
    trials: list[str] = field(default_factory=list)
    """Names of the traces of trial runs."""

    def make(
        self,
        name: str,
        command: Sequence[str],
        *,
        generators: dict[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        trial: str = "",
    ) -> Trace:
        """Make one run.

        Args:
            name: `full`, `first` or `resumed`.
            command: Its words.
            generators: The request to keep, watch or put back the states of generators.
            environment: Variables in addition to the current ones.
            trial: What the run tries, in words; empty for a run that counts.

        Raises:
            LaunchError: The run cannot be started, it failed, or nothing was recorded.
            TraceError: The trace cannot be written.
        """
        title = f"{TITLES[name]}, {trial}" if trial else TITLES[name]
        folder = f"trial-{len(self.trials) + 1}-{name}" if trial else name
        trace, log = self.output.trace(folder), self.output.log(folder) if self.made else None
        if trial:
            self.trials.append(folder)
        make = partial(
            record_program,
            command,
            RunSpec(trace, generators=generators),
            environment={**os.environ, **(environment or {})},
            log=log,
            on_progress=self.announce(title, log),
            stdin=self.standard_input,
        )
        result = summarized_run([] if trial else self.made, command, trace, make)
        if result.exit_status and not self.allow_failure:
            raise LaunchError(
                "resume-run-failed",
                f"{failed_run_text(TITLES[name], result.exit_status, log)} Fix it, or accept the failure with --allow-failure.",
            )
        require_recorded(trace, result.exit_status)
        return open_trace(trace)

    def discard_trials(self) -> None:
        """Remove the traces of the trials; their logs stay."""
        for name in self.trials:
            self.output.discard(name, with_log=False)


_CHECKPOINTS = "checkpoints"
_RUN = (sys.executable, "-m", "determinism", "run", "--seed", "1", "--")


@dataclass
class ResumeCheck:
    """One check of resuming, in progress; after an error it still knows which runs were made."""

    request: ResumeRequest
    announce: Announce = unannounced
    """Called with what comes next and the log of its output; returns the function that receives the progress."""
    warn: Callable[[str], None] = lambda message: None
    runs: list[RunSummary] = field(default_factory=list)
    interrupt_status: int = field(default=0, init=False)
    """Exit status if the user interrupted the search for causes after the verdict was known; else 0."""
    _still_read: Visible | None = field(default=None, init=False)
    """What the program still read differently in the trial that otherwise made the runs equal."""

    @property
    def folder(self) -> Path:
        """Where the traces and the report are, once `run` has made the folder."""
        return self._output.path

    def run(self) -> Comparison:
        """Make the runs, compare them, name what the checkpoint lacks, and supply from outside what can be supplied.

        Raises:
            DeterminismError: The check could not reach a verdict.
        """
        # Before any run is made: the commands may contradict each other.
        self.request.commands(Path())
        self._output = output = OutputFolder(self.request.output)
        with StandardInput() as standard_input:
            self._runs = ResumeRuns(output, standard_input, self.announce, self.request.allow_failure, self.runs)
            commands = self._commands()
            full = self._runs.make("full", commands["full"])
            # The states of generators at the checkpoint are needed if the program did not save them.
            first = self._runs.make("first", commands["first"], generators={"keep": True})
            resumed = self._runs.make("resumed", commands["resumed"], generators={"watch": True})
            comparison, processes = compare_resume_runs(full, first, resumed)
            self.runs = list(comparison.runs)
            try:
                comparison = self._with_missing(comparison, processes, full)
                comparison = self._with_whole_trials(comparison)
            except (Interrupted, KeyboardInterrupt) as interrupt:
                comparison, self.interrupt_status = end_search_early(comparison, interrupt, self.warn)
            self._runs.discard_trials()
        if comparison.verdict is Verdict.SAME and not self.request.keep:
            shutil.rmtree(self._output.path / _CHECKPOINTS, ignore_errors=True)
            comparison = without_traces(comparison, self._output)
        return comparison

    def _commands(self) -> dict[str, list[str]]:
        """The words of each command; creates an empty folder for checkpoints if they need one."""
        checkpoints = self._output.path / _CHECKPOINTS
        if self.request.program:
            shutil.rmtree(checkpoints, ignore_errors=True)
            make_private_folder(checkpoints)
        return self.request.commands(checkpoints)

    def _with_missing(self, comparison: Comparison, processes: Sequence[ResumedProcess], full: Trace) -> Comparison:
        """Put back from outside what the checkpoint lacks; fixes are verified only if the runs then are equal."""
        steps = max((process.steps_before for process in processes), default=None)
        trials = (
            generator_trials(comparison.missing or (), last_before_steps(processes), steps)
            if self._may_try(comparison)
            else []
        )
        outcomes = list(self._outcomes(trials, full, may_read=not is_only_read(comparison)))
        missing = tuple(after_trials(comparison.missing or (), outcomes))
        fixes = tuple(fixes_of(missing, verified=True in outcomes))
        diagnosis = replace(comparison.diagnosis, fixes=fixes)
        resume = replace(comparison.resume or ResumeFindings(), missing=missing, still_read=self._still_read)
        return replace(comparison, resume=resume, diagnosis=diagnosis)

    def _with_whole_trials(self, comparison: Comparison) -> Comparison:
        """Try settings for all three runs."""
        for trial in whole_trials(comparison, _RUN) if self._may_try(comparison) else []:
            if self._is_cured(trial, None):
                fixes = (*comparison.fixes, fix_of_trial(trial))
                return replace(comparison, diagnosis=replace(comparison.diagnosis, fixes=fixes))
        return comparison

    def _may_try(self, comparison: Comparison) -> bool:
        return comparison.verdict is not Verdict.SAME and may_run_further(self.request.explain, self.runs)

    def _outcomes(self, trials: Sequence[ResumeTrial], full: Trace, *, may_read: bool) -> Iterator[bool | None]:
        """Yield the outcome of each trial, until one makes the runs equal."""
        for trial in trials:
            outcome = self._is_cured(trial, full, may_read=may_read)
            yield outcome
            if outcome:
                return

    def _is_cured(self, trial: ResumeTrial, full: Trace | None, *, may_read: bool = False) -> bool | None:
        """Whether a trial makes the resumed run equal to the full one; None if it could not be made.

        Args:
            trial: The trial.
            full: The full run; None to make one for the trial.
            may_read: Whether only numbers that the program reads may differ. A running loss for a log need not be in a checkpoint.
        """
        try:
            tried = self._try(trial, full)
            if may_read and is_only_read(tried):
                self._still_read = tried.first_visible
                return True
            return tried.verdict is Verdict.SAME
        except Interrupted:
            raise
        except (DeterminismError, OSError) as error:
            message = error.message if isinstance(error, DeterminismError) else str(error)
            self.warn(f"The trial ({trial.title}) could not be run. {message}")
            return None

    def _try(self, trial: ResumeTrial, full: Trace | None) -> Comparison:
        commands = {name: [*trial.prefix, *words] for name, words in self._commands().items()}
        variables, title = trial.environment, trial.title
        if full is None:
            full = self._runs.make("full", commands["full"], environment=variables, trial=title)
        # Made again: the resumed run may have overwritten the checkpoint from which it resumed.
        keep = {"keep": True, "steps": trial.steps}
        first = self._runs.make("first", commands["first"], generators=keep, environment=variables, trial=title)
        generators = None if trial.generators is None else {**trial.generators, "from": str(first.folder)}
        resumed = self._runs.make(
            "resumed", commands["resumed"], generators=generators, environment=variables, trial=title
        )
        return compare_resume_runs(full, first, resumed)[0]


def compare_resume_runs(full: Trace, first: Trace, resumed: Trace) -> tuple[Comparison, list[ResumedProcess]]:
    """Compare the three runs of a check of resuming, and name what the checkpoint lacks.

    Raises:
        TraceError: A trace is damaged.
    """
    processes = compare_resumed(full, first, resumed)
    comparison = conclude_resumed(processes, full, first, resumed)
    if comparison.verdict is Verdict.DIFFERENT:
        is_only = only_reads_differ(comparison, processes)
        found = [missing for process in processes for missing in unsaved(process, is_only_read=is_only)]
        missing = {one.identifier: one for one in found}
        comparison = replace(comparison, resume=ResumeFindings(tuple(missing.values()), is_only))
    return comparison, processes


def is_only_read(comparison: Comparison) -> bool:
    """Whether the resumed run differs only in numbers that the program reads."""
    return comparison.resume is not None and comparison.resume.only_reads_differ
