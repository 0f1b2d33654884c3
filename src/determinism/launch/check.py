"""Run a program two or more times, compare the runs, and search for the cause of a difference."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from determinism.comparison.divergence import Divergence
from determinism.comparison.fingerprints import ordered
from determinism.comparison.records import read_unwritten
from determinism.comparison.result import Comparison, RunSummary
from determinism.comparison.runs import compare_runs
from determinism.diagnose.confirm import executions
from determinism.diagnose.experiments import (
    SEEDED_LIBRARIES,
    BudgetSpent,
    ExperimentRunner,
    FactorSearch,
    Hypothesis,
    Intervention,
    Trial,
    likely_causes_left,
)
from determinism.diagnose.hypotheses import likely_hypotheses
from determinism.diagnose.investigation import Investigation
from determinism.diagnose.sources import (
    differing_sources,
    places_used,
    seeding_calls,
    unprobed_modules,
    unseeded_generators,
)
from determinism.environment import fixes_hashes
from determinism.errors import DeterminismError, LaunchError, UsageError, exit_phrase
from determinism.factors.catalog import Action, obstacle, perturbed_variables
from determinism.launch.enabling_child import ENTROPY_PREFIX
from determinism.launch.further_runs import (
    TIMED_RULES,
    EvidenceRuns,
    FailFast,
    FirstStart,
    ShortRuns,
    default_budget,
    duration,
    early_runs,
    longer_search,
    racy_work,
    search_commands,
    short_runs,
    timed_work,
    why_not_searched,
)
from determinism.launch.interpreter import check_interpreter, script_of
from determinism.launch.io import OutputFolder, StandardInput, is_unread, printed_difference
from determinism.launch.program import Announce, Interrupted, ProgressCallback, never, unannounced
from determinism.launch.record import require_recorded, summarized_run
from determinism.launch.runs import (
    LONGEST_UNASKED,
    CheckRequest,
    FreshCopy,
    RunSeries,
    changed_files,
    end_search_early,
    may_run_further,
    open_stored_run,
    recorded_like,
    with_intervention,
    without_traces,
)
from determinism.lint.run import LintedCandidates, predicted_findings, timed_rules
from determinism.run_spec import RunSpec
from determinism.trace.files import make_private_folder
from determinism.trace.opening import open_trace
from determinism.trace.process import Trace
from determinism.trace.schema import FAIL_FAST, TIME_LIMIT, Frame
from determinism.types import Kind, Verdict

# The runs of experiments, within a time budget.


class ShortRunsEqual(Exception):
    """Runs that end soon after the first difference were equal, so they cannot show its cause."""


_NOTES = "notes"
_PROBING = "observing what the program takes from outside"
_PATIENCE = 3.0
_LEAST_PATIENCE = 10.0
"""Fixing a factor may make a program hang; a run is stopped after `_PATIENCE` times a plain run plus these seconds."""
_SLACK = 1.5
"""How many times as long as a plain run a run of an experiment is expected to take at most."""


@dataclass
class LaunchedExperiments(ExperimentRunner):
    """Makes and compares runs of one program under interventions; a context manager that cleans up."""

    request: CheckRequest
    output: OutputFolder
    """Where traces and logs go while they are needed."""
    standard_input: StandardInput
    announce: Announce
    _: KW_ONLY
    budget: float
    """Seconds of an idle machine that are left for runs: time in which a run waits for a processor is not counted."""
    run_seconds: float
    """How long a plain run takes."""
    exit_statuses: frozenset[int | None]
    """Exit statuses of the plain runs. A run with another status is inconclusive."""
    is_shortened: bool = False
    """Whether all runs end at an earlier step than the plain ones."""
    early: ShortRuns | None = None
    """Runs that end soon after the first difference, for trials that need no whole ones; None for none."""
    start: FirstStart | None = None
    """State from which all runs start if possible; None if the plain ones all started from the same state."""

    def __post_init__(self) -> None:
        self._number = 0
        self._experiments = 0
        self._stack = ExitStack()
        self._copy: FreshCopy | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def compare(
        self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
    ) -> Trial:
        """See `ExperimentRunner.compare`."""
        if may_be_short and self.early is not None:
            trial = self._trial(intervention, runs, probes=False, early=self.early, past=past)
            if trial.failure is None:
                return trial
        return self._trial(intervention, runs, probes=False, past=past)

    def probe(self, intervention: Intervention) -> Trial:
        """See `ExperimentRunner.probe`.

        Raises:
            ShortRunsEqual: The runs end early and did not show the difference.
        """
        if self.early is not None:
            trial = self._trial(intervention, 2, probes=True, early=self.early)
            if trial.failure is None and not trial.is_equal:
                return trial
            # The early runs are too short to show the difference.
            self.early = None
        trial = self._trial(intervention, 2, probes=True)
        if self.is_shortened and trial.is_equal:
            # Runs that are already equal cannot show what would make them equal.
            raise ShortRunsEqual
        return trial

    def _trial(
        self,
        intervention: Intervention,
        runs: int,
        *,
        probes: bool,
        early: ShortRuns | None = None,
        past: Divergence | None = None,
    ) -> Trial:
        why_not = next((why for factor in sorted(intervention.factors) if (why := obstacle(*factor))), None)
        if why_not is not None:
            return Trial(intervention, 0, Verdict.INCONCLUSIVE, None, failure=why_not)
        seconds = self.run_seconds if early is None else early.seconds
        if runs > 1 and seconds * (1 + _SLACK) > self.budget:
            # One run alone shows nothing, so a trial that would be broken off after it is not begun.
            raise BudgetSpent
        self._number += 1
        self._experiments += not probes
        title = _PROBING if probes else f"experiment {self._experiments}: {intervention.summary}"
        names: list[str] = []
        traces: list[Trace] = []
        made: list[Trial] = []
        began, own_began = time.monotonic(), time.process_time()
        try:
            for number in range(1, runs + 1):
                names.append(f"experiment-{self._number}-run-{number}")
                part = f"run {number} of {'' if probes else 'up to '}{runs}"
                log = self.output.log(names[-1])
                on_progress = self.announce(title, log, part=part, seconds=self.budget, is_limit=True)
                notes = self._notes(names[-1]) if probes else None
                traces.append(self._run(intervention, names[-1], title, number, on_progress, notes, early))
                if len(traces) > 1:
                    made.append(_result(intervention, traces))
                    if not (made[-1].is_equal or (past is not None and made[-1].removes(past))):
                        break
            trial = replace(
                _decisive(made, past),
                runs=len(traces),
                # Fixing sources at their lines costs time that a fix of the program would not.
                step_seconds=None if intervention.sources else least_step_seconds(traces),
                entropy=entropy_readers(traces[0].folder),
                seconds=round(time.monotonic() - began, 1),
                steps=None if early is None else early.steps,
            )
            return self._with_sources(trial, names) if probes else trial
        except BudgetSpent:
            end = f"{title}: broken off, as the time for further runs has run out"
            self.announce(end, self.output.log(names[-1]), part=f"run {len(names)}")
            raise
        except DeterminismError as error:
            if isinstance(error, Interrupted):
                raise
            return Trial(intervention, len(traces), Verdict.INCONCLUSIVE, None, failure=error.message)
        finally:
            self.budget -= time.process_time() - own_began
            for name in names:
                self.output.discard(name)

    def _run(
        self,
        intervention: Intervention,
        name: str,
        title: str,
        number: int,
        on_progress: ProgressCallback | None,
        notes: Path | None,
        early: ShortRuns | None,
    ) -> Trace:
        """Make one run, which ends early if `early` is given.

        Raises:
            BudgetSpent: The run would take more time than is left.
            LaunchError: The run cannot be made, or the user ended it.
            TraceError: The trace cannot be written or read.
        """
        seconds = self.run_seconds if early is None else early.seconds
        if seconds * _SLACK > self.budget:
            raise BudgetSpent
        log = self.output.log(name)
        copy = self._copy_for(intervention)
        temporary = self._temporary_for(intervention)
        earlier = () if self.start is None or copy is None else self.start.earlier
        series = RunSeries(self.request, self.output, self.standard_input, copy, first_number=1, earlier=earlier)
        most_seconds = _LEAST_PATIENCE + _PATIENCE * seconds
        spec = self.request.spec if early is None else replace(self.request.spec, steps=early.steps)
        result = series.make(
            name,
            title,
            on_progress,
            log=log,
            most_seconds=most_seconds,
            spec=with_intervention(spec, intervention, number, notes=notes),
            environment=None if temporary is None else {**os.environ, "TMPDIR": str(temporary)},
        )
        self.budget -= result.seconds - result.waited
        if self.start is not None and any(one.cache is None for one in series.leftovers):
            self.start.is_reached = False
        if result.stopped_by == TIME_LIMIT:
            raise LaunchError("run-too-long", f"a run did not end within {most_seconds:.0f} s and was stopped.")
        # A program that is ended after `early.steps` exits with status 0.
        if result.exit_status not in self.exit_statuses and not (early is not None and result.exit_status == 0):
            raise LaunchError("run-failed", f"the program ended with {exit_phrase(result.exit_status)}.")
        return open_trace(self.output.trace(name))

    def _temporary_for(self, intervention: Intervention) -> Path | None:
        """Make an empty folder in which temporary files get the same names, since no earlier run has taken them."""
        if not intervention.fixes_entropy:
            return None
        folder = (self.output.path / "temporary").absolute()
        shutil.rmtree(folder, ignore_errors=True)
        make_private_folder(folder)
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _notes(self, name: str) -> Path:
        return self.output.trace(name).with_name(f"{name}.{_NOTES}")

    def _with_sources(self, trial: Trial, names: list[str]) -> Trial:
        folders = [self._notes(name) for name in names]
        try:
            seedings = {library: seeding_calls(folders[0], library) for library in SEEDED_LIBRARIES}
            sources = differing_sources(folders[0], folders[-1])
            return replace(
                trial,
                sources=sources,
                seedings=seedings,
                unprobed=unprobed_modules(folders[0]),
                unseeded=unseeded_generators(folders[0], folders[-1]),
                used=places_used(folders[0]) | places_used(folders[-1]),
            )
        finally:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)

    def _copy_for(self, intervention: Intervention) -> FreshCopy | None:
        """Return the copy of the working directory that a run starts in; None for the directory itself."""
        is_requested = intervention.fresh_copy or self.request.fresh_copy
        omitted = frozenset() if self.start is None else self.start.omitted
        if self._copy is None and (is_requested or omitted):
            try:
                copy = self._stack.enter_context(FreshCopy(Path.cwd(), self.output.path, omitted))
                copy.check_size()
                self._copy = copy
            except LaunchError:
                if is_requested:
                    raise
                assert self.start is not None
                self.start.give_up()
                return None
        return self._copy if is_requested or omitted else None


def entropy_readers(trace: Path) -> tuple[tuple[Frame, ...], ...]:
    """Return the stacks that asked for random bytes in a run whose entropy was fixed, in order."""
    stacks: dict[tuple[Frame, ...], None] = {}
    for path in sorted(trace.glob(f"{ENTROPY_PREFIX}*.jsonl")):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            stacks |= dict.fromkeys(tuple(Frame(*frame) for frame in json.loads(line)) for line in lines)
        except (OSError, ValueError, TypeError):
            # A process that was killed leaves half a line.
            continue
    return tuple(stacks)


def _result(intervention: Intervention, traces: list[Trace]) -> Trial:
    """Compare the newest run with the first."""
    pair = [traces[0], traces[-1]]
    comparison = compare_runs(pair, allow_failure=True)
    is_known = comparison.verdict is not Verdict.INCONCLUSIVE
    extents = [{process.key: process.extent[0] for process in ordered(trace)} for trace in pair]
    return Trial(
        intervention,
        len(traces),
        comparison.verdict,
        comparison.first_divergence,
        failure=None if is_known else "; ".join(trouble.message for trouble in comparison.trouble),
        others=comparison.divergences,
        records={key: min(count, extents[1][key]) for key, count in extents[0].items() if key in extents[1]},
    )


def _decisive(made: Sequence[Trial], past: Divergence | None) -> Trial:
    """Return the comparison that decides about several runs: the last one, or the first that differs if runs were made past that."""
    differing = [one for one in made if one.divergence is not None]
    if past is None or not differing or not made[-1].removes(past):
        return made[-1]
    first = differing[0]
    return replace(first, num_differing=sum(one.shows(first.divergence) for one in differing if first.divergence))


def least_step_seconds(traces: Sequence[Trace]) -> float | None:
    """Return the average seconds per step, by the first process that counts steps, of the fastest run; None if none made two."""
    averages = []
    for trace in traces:
        seconds = (process.description.get("step_seconds") for process in trace.processes)
        averages += [float(average) for average in seconds if average is not None][:1]
    return min(averages, default=None)


def _limit(budget: float, comparison: Comparison) -> str:
    is_busy = any(run.seconds > 1.2 * run.idle_seconds for run in comparison.runs)
    return f"{duration(budget)} (--budget{', waiting for a processor not counted' if is_busy else ''})"


def _changed_files(output: OutputFolder, traces: Sequence[Trace]) -> list[str]:
    """Return the files in the working directory that have changed since this check began its first run."""
    began = [float(trace.manifest["created"]) for trace in traces if trace.folder.parent == output.path]
    return changed_files(Path.cwd(), output.path, min(began)) if began else []


VARIED_RUNS = 3
"""How many runs are made with factors perturbed: two may be equal by chance."""


def possible_factors(names: Sequence[str], warn: Callable[[str], None]) -> list[str]:
    """Return the factors that can be perturbed on this machine; warn of each other one."""
    possible = []
    for name in names:
        why_not = obstacle(name, Action.PERTURBED)
        if why_not is None:
            possible.append(name)
        else:
            warn(f"{name} is not perturbed: {why_not}.")
    return possible


_MOST_EXTRA_RUNS = 3


@dataclass
class Check:
    """One check in progress; after an error, `runs` still lists the runs that were made."""

    request: CheckRequest
    announce: Announce = unannounced
    """Called with the title of the next run and the log of its output; returns a callback for its progress."""
    warn: Callable[[str], None] = lambda message: None
    on_verdict: Callable[[Comparison], None] = lambda comparison: None
    """Called with the comparison as soon as two runs differ, if further runs will look for more."""
    runs: list[RunSummary] = field(default_factory=list)
    hides_output: bool = False
    """Whether the program's output goes only to a log even in the first run."""
    may_search: Callable[[Sequence[Trace]], bool] = lambda traces: True
    """Whether the traces of runs that differ are worth further runs."""
    interrupt_status: int = field(default=0, init=False)
    """Exit status if the user ended the search for causes after the verdict was known; else 0."""

    def run(self) -> Comparison:
        """Make the runs, compare them, and confirm the findings.

        Raises:
            DeterminismError: The check could not reach a verdict.
        """
        request = self.request
        num_runs = 2 if request.num_runs is None else request.num_runs
        if num_runs < 2:
            raise UsageError("too-few-runs", f"-n {num_runs} leaves nothing to compare. Give 2 or more.")
        traces: list[Trace] = []
        if request.runs_from is not None:
            stored = open_stored_run(request.runs_from, level=request.spec.level, steps=request.spec.steps)
            self.request = request = recorded_like(request, stored)
            traces.append(stored)
        warning = check_interpreter(request.command, os.environ)
        if warning is not None:
            self.warn(warning)
        self._foreseen = ""
        self._say_what_is_foreseen()
        self._output = output = OutputFolder(request.output)
        self._likely: list[Hypothesis] = []
        self._timed: list[str] = []
        first_number = len(traces) + 1
        with ExitStack() as stack:
            standard_input = stack.enter_context(StandardInput())
            copy = stack.enter_context(FreshCopy(Path.cwd(), output.path)) if request.fresh_copy else None
            self._series = RunSeries(request, output, standard_input, copy, first_number=first_number)
            new_runs = num_runs - len(traces)
            for number in range(1, new_runs + 1):
                self._make(traces, f"run-{number}", f"run {number} of {new_runs}")
                if self.runs[-1].stopped_by == FAIL_FAST:
                    break
            comparison = self._run_again(self._compare(traces), traces)
            if comparison.verdict is Verdict.SAME:
                comparison = self._vary(comparison, traces)
            if comparison.first_divergence is not None:
                self._likely = likely_hypotheses(comparison, traces)
                causes = tuple(likely_causes_left(self._likely))
                comparison = replace(comparison, diagnosis=replace(comparison.diagnosis, causes=causes))
                if self._may_look_closer(comparison, traces):
                    self.on_verdict(comparison)
            comparison = self._confirmed(comparison, traces)
            comparison = self._explained(comparison, standard_input, traces)
        if comparison.verdict is Verdict.SAME:
            printed = printed_difference([output.log(f"run-{number + 1}") for number in range(len(self.runs))])
            comparison = replace(comparison, printed=printed)
            if self._foreseen and not comparison.dead_differences:
                then = "Perhaps it did not run; what the program computes without tensors is not compared."
                then = then if printed is None else "It may be why printed numbers differ."
                self.warn(f"{self._foreseen} changed no tensor. {then}")
        return self._tidied(comparison)

    def _say_what_is_foreseen(self) -> None:
        """Warn of what lint finds before the runs, which may take long; only they show whether it changes results."""
        script, enabling = script_of(self.request.command), self.request.spec.enabling
        if script is None:
            return
        found = predicted_findings(
            script,
            has_fixed_hashes=fixes_hashes(os.environ),
            is_seeded=enabling is not None and enabling.seed is not None,
        )
        if not found:
            return
        first, *others = found
        self._foreseen = f"{first.file}:{first.line}"
        more = f" {len(others)} more: determinism lint {shlex.quote(str(script))}" if others else ""
        self.warn(f"{first.file}:{first.line}: {first.message} ({first.rule}, by lint){more}")

    @property
    def folder(self) -> Path:
        """The folder for traces, logs and reports of this check."""
        return self._output.path

    def _make(self, traces: list[Trace], name: str, title: str, spec: RunSpec | None = None) -> None:
        """Make one more run and open its trace."""
        trace = self._output.trace(name)
        log = self._output.log(name)
        is_shown = not (self.runs or self.hides_output)
        with ExitStack() as stack:
            why_stop: Callable[[], str | None] = never
            if self.request.fail_fast and traces:
                why_stop = stack.enter_context(FailFast(traces[0], trace)).why_stop
            seconds = max((run.seconds for run in self.runs), default=None)
            on_progress = self.announce(title, None if is_shown else log, seconds=seconds)
            make = partial(self._series.make, name, title, on_progress, spec=spec, log=log, is_shown=is_shown)
            result = summarized_run(self.runs, self.request.command, trace, partial(make, why_stop=why_stop))
        if is_shown and result.exit_status and is_unread():
            raise LaunchError(
                "output-unread",
                f"The program ended with {exit_phrase(result.exit_status)}, and the reader of its output is gone, as "
                "after `| head`. It may have failed for that reason alone, so no further runs were made. Send its "
                "output to a file.",
            )
        try:
            require_recorded(trace, result.exit_status)
        except LaunchError:
            self.runs[-1] = replace(self.runs[-1], trace=None)
            self._output.discard(name, with_log=False)
            self._output.remove_if_empty()
            raise
        traces.append(open_trace(trace))

    def _compare(self, traces: Sequence[Trace]) -> Comparison:
        request = self.request
        comparison = compare_runs(traces, strict=request.strict, allow_failure=request.allow_failure)
        racy = sorted({*self._timed, *(word for trace in traces for word in racy_work(trace))})
        return replace(comparison, leftovers=tuple(self._series.leftovers), racy=tuple(racy))

    def _run_again(self, comparison: Comparison, traces: list[Trace]) -> Comparison:
        """Make more runs while they are equal, if the program does racy work."""
        extra = 0
        if comparison.verdict is Verdict.SAME and self.request.num_runs is None:
            # Only for equal runs: a difference that two runs show presumably recurs, and few runs explain it.
            script = script_of(self.request.command)
            rules = [] if script is None else timed_rules(script, TIMED_RULES)
            self._timed = timed_work(traces[0], rules)
            comparison = replace(comparison, racy=sorted({*comparison.racy, *self._timed}))
        while (
            comparison.verdict is Verdict.SAME
            and comparison.racy
            and self.request.num_runs is None
            and extra < _MOST_EXTRA_RUNS
            and may_run_further(self.request.explain, self.runs)
        ):
            extra += 1
            self._make(traces, f"run-{len(self.runs) + 1}", f"extra run {extra} of up to {_MOST_EXTRA_RUNS}")
            comparison = self._compare(traces)
        return replace(comparison, extra_runs=extra)

    def _vary(self, plain: Comparison, traces: Sequence[Trace]) -> Comparison:
        """Make runs in which factors are perturbed on purpose; return their comparison if they differ.

        Unwritten memory may hold the same in recorded runs and vary in others. So memory is perturbed even
        unrequested when the program reads unwritten memory; then only a difference caused by that counts.
        """
        if self.request.vary:
            factors = possible_factors(self.request.vary, self.warn)
        else:
            factors = self._doubted(plain, traces)
        if not factors:
            return plain
        plain_runs, self.runs = self.runs, list(self.runs)
        varied: list[Trace] = []
        for number in range(1, VARIED_RUNS + 1):
            title = f"run {number} with {', '.join(factors)} perturbed"
            spec = with_intervention(self.request.spec, Intervention.perturb(*factors), number)
            self._make(varied, f"varied-run-{number}", title, spec)
            if len(varied) > 1:
                comparison = self._compare([varied[0], varied[-1]])
                first = comparison.first_divergence
                is_meant = bool(self.request.vary) or (first is not None and first.kind is Kind.UNINITIALIZED)
                if comparison.verdict is not Verdict.SAME and is_meant:
                    return _with_varied(comparison, factors)
        self.runs = plain_runs
        for trace in varied:
            self._output.discard(trace.folder.name)
        return _with_varied(plain, factors)

    def _doubted(self, comparison: Comparison, traces: Sequence[Trace]) -> list[str]:
        """Return the factors to perturb although the user did not request it."""
        if self.request.num_runs is not None or not may_run_further(self.request.explain, self.runs):
            return []
        if obstacle("memory", Action.PERTURBED) is not None:
            return []
        op = next((found for process in traces[0].processes if (found := read_unwritten(process)) is not None), None)
        if op is None:
            return []
        self.warn(
            f"{op} reads uninitialized memory. Its contents were the same in these runs; further runs fill it with other bytes."
        )
        return ["memory"]

    def _explained(self, comparison: Comparison, standard_input: StandardInput, traces: Sequence[Trace]) -> Comparison:
        is_wanted = (
            self._may_look_closer(comparison, traces) and not self.request.fail_fast and self.request.budget != 0
        )
        if not is_wanted and comparison.first_divergence is not None:
            limit = why_not_searched(comparison, self.request)
            return replace(comparison, diagnosis=replace(comparison.diagnosis, limit=limit))
        if is_wanted and not self.interrupt_status and comparison.first_divergence is not None:
            start = FirstStart.of(self._series)
            comparison = self._searched(comparison, standard_input, traces, start)
            if start is not None:
                comparison = replace(comparison, diagnosis=start.noted(comparison.diagnosis))
        return comparison

    def _searched(
        self, comparison: Comparison, standard_input: StandardInput, traces: Sequence[Trace], start: FirstStart | None
    ) -> Comparison:
        """Make further runs to find what makes the runs differ: if they are long, runs that end soon after the difference."""
        search = partial(self._search, comparison, standard_input, traces, start)
        short = short_runs(comparison, least_step_seconds(traces), traces)
        if short is None:
            return search()
        try:
            return search(short=short)
        except ShortRunsEqual:
            equal = f"Runs of the first {short.extent} were equal, so they cannot show the cause"
            if self.request.explain:
                self.warn(f"{equal}; continuing with whole runs.")
                return search()
            limit = f"{equal}. {search_commands(comparison, self.request)}"
            return replace(comparison, diagnosis=replace(comparison.diagnosis, limit=limit))

    def _search(
        self,
        comparison: Comparison,
        standard_input: StandardInput,
        traces: Sequence[Trace],
        start: FirstStart | None,
        short: ShortRuns | None = None,
    ) -> Comparison:
        request, run_seconds = self.request, max(run.idle_seconds for run in comparison.runs)
        exit_statuses = {run.exit_status for run in comparison.runs}
        linted = LintedCandidates(comparison, traces)
        which = "further runs" if short is None else f"runs of the first {short.extent}"
        if short is not None:
            run_seconds = short.seconds
            request = replace(request, spec=replace(request.spec, steps=short.steps))
            exit_statuses.add(0)  # the exit status of a program that is ended after `short.steps`
        budget = request.budget if request.budget is not None else default_budget(run_seconds)
        limit = _limit(budget, comparison)
        self.warn(f"Looking for the cause with {which}, for at most {limit}. Ctrl-C keeps the findings.")
        search: FactorSearch | Investigation | None = None
        try:
            with LaunchedExperiments(
                request,
                self._output,
                standard_input,
                self.announce,
                budget=budget,
                run_seconds=run_seconds,
                exit_statuses=frozenset(exit_statuses),
                is_shortened=short is not None,
                early=None if short is not None else early_runs(comparison, least_step_seconds(traces), traces),
                start=start,
            ) as runner:
                if comparison.varied:
                    search = FactorSearch(comparison.varied, runner)
                    search.run()
                    comparison = replace(comparison, diagnosis=search.diagnosis)
                search = Investigation(
                    comparison,
                    runner,
                    Intervention.perturb(*comparison.varied),
                    least_step_seconds(traces),
                    can_try_fixes=request.fix,
                    frameworks={str(p.description.get("framework")) for trace in traces for p in trace.processes},
                    likely=self._likely,
                    likely_of=lambda left: likely_hypotheses(replace(comparison, first_divergence=left), traces),
                    is_linted=linted,
                    has_linted_order=linted.fires("hash-order"),
                    command=longer_search(request, 2 * budget),
                    executions=executions(comparison.first_divergence, traces) if comparison.first_divergence else 1,
                    changed_files=() if request.fresh_copy else _changed_files(self._output, traces),
                )
                search.run()
        except (DeterminismError, KeyboardInterrupt) as error:
            known = comparison if search is None else replace(comparison, diagnosis=search.diagnosis)
            comparison, status = end_search_early(known, error, self.warn)
            self.interrupt_status = status if isinstance(error, Interrupted | KeyboardInterrupt) else 0
            return comparison
        diagnosis = search.diagnosis if short is None else short.noted(search.diagnosis)
        return replace(comparison, diagnosis=diagnosis)

    def _may_look_closer(self, comparison: Comparison, traces: Sequence[Trace]) -> bool:
        """Whether further runs may search for the cause: whole runs, or runs that end soon after the difference."""
        if not self.may_search(traces):
            return False
        short = short_runs(comparison, least_step_seconds(traces), traces) if self.request.explain is None else None
        is_soon = short is not None and short.seconds < LONGEST_UNASKED
        return is_soon or may_run_further(self.request.explain, self.runs)

    def _confirmed(self, comparison: Comparison, traces: list[Trace]) -> Comparison:
        self.runs = list(comparison.runs)
        # Further runs would lack the perturbation of those that differ.
        if (
            comparison.first_divergence is not None
            and self._may_look_closer(comparison, traces)
            and not comparison.varied
        ):
            runs = EvidenceRuns(self._series, self._output, self.announce, self.warn)
            comparison = runs.gather(comparison, traces, self._likely, with_values=self.request.budget != 0)
            self.interrupt_status = runs.interrupt_status
        return comparison

    def _tidied(self, comparison: Comparison) -> Comparison:
        """Remove the traces of equal runs, unless the user wants to keep them."""
        if comparison.verdict is not Verdict.SAME or self.request.keep:
            return comparison
        return without_traces(comparison, self._output)


def _with_varied(comparison: Comparison, factors: Sequence[str]) -> Comparison:
    ours = {f"variable {name}" for name in perturbed_variables(factors)}
    environment = [difference for difference in comparison.environment if difference[0] not in ours]
    return replace(comparison, environment=environment, diagnosis=replace(comparison.diagnosis, varied=tuple(factors)))
