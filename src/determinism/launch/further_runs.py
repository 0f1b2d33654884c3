"""Further runs of a check after the verdict, how long they may take, and when a run may end because it differs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from determinism.comparison.divergence import Diagnosis, Divergence, Evidence, Status
from determinism.comparison.ordered import compare_common_steps
from determinism.comparison.partners import alone
from determinism.comparison.result import ORDER_OF_SETS, Comparison
from determinism.diagnose.confirm import (
    MOST_BYTES,
    REPEATS,
    capture_request,
    confirmed,
    needs_confirmation,
    needs_values,
    read_capture,
    with_further_values,
)
from determinism.diagnose.experiments import Hypothesis, is_never_seeded
from determinism.diagnose.reproducer import NotReproducible, write_reproducer
from determinism.environment import fixes_hashes
from determinism.errors import DeterminismError, TraceError
from determinism.launch import runs
from determinism.launch.io import OutputFolder
from determinism.launch.program import Announce, Interrupted, interrupt_status
from determinism.launch.runs import TICK_SECONDS, CheckRequest, RunSeries, file_notes
from determinism.redaction import redacted
from determinism.trace.files import make_private_folder
from determinism.trace.opening import snapshot_live_trace
from determinism.trace.process import Trace
from determinism.trace.reader import StoredProcess
from determinism.trace.schema import CAPTURED_INPUTS_FILE, CAPTURED_OUTPUTS_FILE, FAIL_FAST, PROCESSES_FOLDER

# How long further runs take, and the messages if none are made.

_BUDGET_RUNS = 30
_LEAST_BUDGET = 60.0
_MOST_BUDGET = 900.0
_WORTHWHILE = 0.8
"""Runs are shortened only if they then take at most this fraction of the time."""


def default_budget(run_seconds: float) -> float:
    """Return the seconds for further runs if the user gives none."""
    return min(max(_BUDGET_RUNS * run_seconds, _LEAST_BUDGET), _MOST_BUDGET)


def duration(seconds: float) -> str:
    """Format a duration in seconds or minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


@dataclass(frozen=True)
class ShortRuns:
    """Runs of a long program that end soon after the first difference."""

    steps: int
    seconds: float
    """Approximate seconds per run."""
    whole_steps: int
    """Number of steps of a whole run."""

    @property
    def extent(self) -> str:
        """How far the runs go, in words."""
        return f"{self.steps:,} of {self.whole_steps:,} steps"

    def noted(self, diagnosis: Diagnosis) -> Diagnosis:
        """Note in a diagnosis how far the runs behind it went."""
        fixes = tuple(replace(fix, steps=self.steps) if fix.verified else fix for fix in diagnosis.fixes)
        said = f"The search ran the first {self.extent}; check the changed program to its end."
        limit = said if diagnosis.limit is None else f"{diagnosis.limit} {said}"
        return replace(diagnosis, fixes=fixes, limit=limit)


@dataclass
class FirstStart:
    """The state from which the first run started, if later runs read leftovers; experiments try to start from it."""

    omitted: frozenset[str]
    """Files omitted from copies of the working directory so that they are as that run found it; empty if impossible."""
    earlier: Sequence[tuple[int, int]]
    """Intervals in which leftovers were changed: a run that reads such a file did not start from this state."""
    is_reached: bool
    """Whether the runs of experiments are believed to have started from this state."""

    @classmethod
    def of(cls, series: RunSeries) -> FirstStart | None:
        """Return the state from which the first run of a check started; None if all started from the same state."""
        if all(one.cache is not None for one in series.leftovers):
            return None
        # Copies made from now on have later change times.
        earlier = (series.began, time.time_ns() - int(TICK_SECONDS * 1e9))
        return cls(series.to_omit, [earlier], bool(series.to_omit))

    def give_up(self) -> None:
        """Give up, as no copy can be made: runs that do not require a copy start as the later runs did."""
        self.omitted, self.is_reached = frozenset(), False

    def noted(self, diagnosis: Diagnosis) -> Diagnosis:
        """Note in the verified fixes how their runs started; starting from the same state is a fix of its own.

        If copies omitted the leftovers but runs in them read leftovers anyway, those runs say nothing about that fix.
        """
        how = "without what earlier runs had left" if self.is_reached else "from other files than run 1"
        shows_nothing = bool(self.omitted) and not self.is_reached
        fixes = tuple(
            replace(fix, verified=fix.verified and not shows_nothing)
            if fix.identifier == _LEFTOVER
            else replace(fix, title=f"{fix.title}; each run started {how}" if fix.verified else fix.title)
            for fix in diagnosis.fixes
        )
        causes = tuple(
            replace(cause, status=Status.LIKELY) if shows_nothing and cause.identifier == _LEFTOVER else cause
            for cause in diagnosis.causes
        )
        return replace(diagnosis, fixes=fixes, causes=causes)


_LEFTOVER = "leftover-file"


def short_runs(comparison: Comparison, step_seconds: float | None, traces: Sequence[Trace] = ()) -> ShortRuns | None:
    """Return how far runs must go to show a difference; None if a whole run takes less than a minute or must be made.

    Args:
        comparison: Comparison of plain runs that differ.
        step_seconds: Seconds per step; None if not measured.
        traces: Traces of the plain runs. A program that removes its own files would leave them behind if ended early.
    """
    is_long = max(run.idle_seconds for run in comparison.runs) >= runs.LONGEST_UNASKED
    if not is_long or any(_removes_files(trace.folder) for trace in traces):
        return None
    return _runs_up_to_the_difference(comparison, step_seconds)


def early_runs(comparison: Comparison, step_seconds: float | None, traces: Sequence[Trace]) -> ShortRuns | None:
    """Return how far runs must go to show a difference; None if they would not be clearly shorter than whole runs.

    Args:
        comparison: Comparison of plain runs that differ.
        step_seconds: Seconds per step; None if not measured.
        traces: Traces of the plain runs. A program that removes its own files would leave them behind if ended early.
    """
    if step_seconds is None or any(_removes_files(trace.folder) for trace in traces):
        return None
    return _runs_up_to_the_difference(comparison, step_seconds)


def _removes_files(trace: Path) -> bool:
    """Whether a run removed files that a later run may look for; temporary files, whose names are new, do not count."""
    temporary, own = Path(tempfile.gettempdir()), Path.cwd()
    removed = [Path(str(note["removed"])) for note in file_notes(trace) if "removed" in note]
    return any(path.is_relative_to(own) or not path.is_relative_to(temporary) for path in removed)


def _runs_up_to_the_difference(comparison: Comparison, step_seconds: float | None) -> ShortRuns | None:
    seconds = max(run.idle_seconds for run in comparison.runs)
    first, visible, whole = comparison.first_divergence, comparison.first_visible, comparison.recorded.steps
    if first is None or visible is None:
        return None
    # A loss or parameter that differs at the end of a step also differs in a run that ends there.
    steps = max(first.step, visible.step) + 2
    needed = seconds * steps / max(whole, 1) if step_seconds is None else seconds - step_seconds * (whole - steps)
    if steps >= whole or needed > seconds * _WORTHWHILE:
        return None
    return ShortRuns(steps, max(needed, 0.0), whole)


def why_not_searched(comparison: Comparison, request: CheckRequest) -> str:
    """Say why no further runs looked for the cause, then list the commands that request them, one per line."""
    seconds = max(run.idle_seconds for run in comparison.runs)
    asked = "--no-explain" if request.explain is False else "--budget 0"
    reason = (
        "--fail-fast ends runs as soon as they differ" if request.fail_fast
        else f"{asked} was given" if request.explain is False or request.budget == 0
        else f"a run took {duration(seconds)}, and for runs of {duration(runs.LONGEST_UNASKED)} or more the search "
            "needs to be requested"
    )  # fmt: skip
    return f"No cause was searched for: {reason}. {search_commands(comparison, request)}"


def search_commands(comparison: Comparison, request: CheckRequest) -> str:
    """Return the commands that search for the cause, one per line, with their time limits."""
    seconds = max(run.idle_seconds for run in comparison.runs)
    first, whole = comparison.first_divergence, comparison.recorded.steps
    lines = [_search_command(request, default_budget(seconds))]
    if first is not None and first.step + 2 < whole and seconds >= runs.LONGEST_UNASKED:
        steps = first.step + 2
        lines.insert(0, _search_command(request, default_budget(seconds * steps / whole), "--steps", str(steps)))
    return "\n".join(["To search:", *lines])


def longer_search(request: CheckRequest, budget: float) -> str:
    """Return the command that searches for the cause with a budget in seconds."""
    varied = [word for name in request.vary for word in ("--vary", name)]
    options = ["--explain", "--budget", f"{budget:.0f}", *varied]
    return shlex.join(["determinism", "check", *options, "--", *redacted(list(request.command))])


def _search_command(request: CheckRequest, budget: float, *options: str) -> str:
    command = shlex.join(["determinism", "check", "--explain", *options, "--", *redacted(list(request.command))])
    return f"{command}  # up to {duration(budget)}"


# Further runs that capture the record where two runs diverge, and the evidence that they yield.

EVIDENCE_FOLDER = "evidence"
REPRODUCER_FOLDER = "reproducer"
_SECONDS, _TIMES_AS_LONG = 60.0, 5
"""A further run is stopped after these seconds plus this multiple of the longest run: it inspects each op in Python,
which may take three times as long as recording below Python."""


@dataclass
class EvidenceRuns:
    """The further runs of one check."""

    series: RunSeries
    output: OutputFolder
    """Where traces, logs and evidence go."""
    announce: Announce
    warn: Callable[[str], None]
    """Called with a message when a run could not be finished."""
    interrupt_status: int = field(default=0, init=False)
    """Exit status if the user ended a run, after which no more are made; else 0."""

    def __post_init__(self) -> None:
        self._most_bytes = min(MOST_BYTES, self.series.max_disk or MOST_BYTES)
        self._seconds = self._plain_seconds = 0.0
        self._may_end_early = True

    def gather(
        self,
        comparison: Comparison,
        traces: Sequence[Trace],
        likely: Sequence[Hypothesis] = (),
        *,
        with_values: bool = True,
    ) -> Comparison:
        """Examine the first divergence again; return the comparison with the evidence.

        Args:
            comparison: Comparison of the runs.
            traces: Traces of the same runs.
            likely: The most likely reasons for the difference.
            with_values: Whether two runs may be made for the values at a divergence not caused by the op itself.
        """
        self._plain_seconds = max(run.idle_seconds for run in comparison.runs)
        self._seconds = _SECONDS + _TIMES_AS_LONG * self._plain_seconds
        self._may_end_early = not any(_removes_files(trace.folder) for trace in traces)
        first = comparison.first_divergence
        try:
            if first is not None and needs_confirmation(first):
                comparison = self._confirmed(comparison, first, traces)
            first = comparison.first_divergence
            # The size of the difference between unseeded random numbers says nothing.
            is_noise = first is not None and any(is_never_seeded(one, first) for one in likely)
            if first is not None and with_values and needs_values(first) and not (is_noise or self.interrupt_status):
                comparison = self._with_values(comparison, first, traces)
        except KeyboardInterrupt as interrupt:
            # Between runs, when there is no program to end; the verdict is known anyway.
            self._was_interrupted(interrupt, "values were compared")
        return comparison

    def _confirmed(self, comparison: Comparison, first: Divergence, traces: Sequence[Trace]) -> Comparison:
        name = "confirming-run"
        try:
            capture = self._capture(name, "confirming run", first, traces, repeats=REPEATS)
            comparison = confirmed(comparison, capture)
            if capture is not None and comparison.first_divergence is not None and not capture["changed_inputs"]:
                kept = self._keep(name, first.stream or first.process, self.output.path / EVIDENCE_FOLDER)
                evidence = self._evidence(capture.get("saved"), comparison.first_divergence, kept)
                comparison = replace(comparison, diagnosis=replace(comparison.diagnosis, evidence=evidence))
        except DeterminismError as error:
            # The findings of the other runs hold without this evidence.
            if not self._was_interrupted(error, "the op was repeated"):
                self.warn(f"The confirming run was not finished, so its evidence is missing. {error.message}")
        self.output.discard(name, with_log=False)
        return comparison

    def _was_interrupted(self, error: BaseException, what: str) -> bool:
        """Return whether the user ended a run before its purpose was achieved; if so, note it and warn."""
        if not isinstance(error, Interrupted | KeyboardInterrupt):
            return False
        self.interrupt_status = interrupt_status(error)
        self.warn(f"Interrupted before {what}; the findings so far are kept.")
        return True

    def _with_values(self, comparison: Comparison, first: Divergence, traces: Sequence[Trace]) -> Comparison:
        """Make two further runs that keep the tensors of the record, and compare them."""
        folders: list[Path] = []
        reason = None
        paths: dict[str, str | None] = {}
        for number in (1, 2):
            name = f"evidence-run-{number}"
            try:
                capture = self._capture(name, f"evidence run {number} of 2", first, traces, repeats=0)
                kept = self._keep(name, first.process, self.output.path / EVIDENCE_FOLDER / f"run-{number}")
            except DeterminismError as error:
                if not self._was_interrupted(error, "values were compared"):
                    self.warn(
                        f"The differing values were not compared, because a run was not finished. {error.message}"
                    )
                return comparison
            finally:
                self.output.discard(name, with_log=False)
            reason = reason or (capture or {}).get("saved", {}).get("left_out")
            paths = (capture or {}).get("inputs") or {}
            if kept is None:
                break
            folders.append(kept)
        return with_further_values(comparison, folders, reason, paths)

    def _capture(
        self, name: str, title: str, first: Divergence, traces: Sequence[Trace], *, repeats: int
    ) -> dict[str, Any] | None:
        process = next(p for p in traces[first.records_of].processes if p.key == (first.stream or first.process))
        log = self.output.log(name)
        request = capture_request(
            process, first, repeats=repeats, most_bytes=self._most_bytes, ends=self._may_end_early
        )
        on_progress = self.announce(title, log, seconds=self._plain_seconds)
        self.series.make_capturing(name, title, on_progress, log=log, capture=request, seconds=self._seconds)
        return read_capture(self.output.trace(name), process.key)

    def _keep(self, name: str, process: str, folder: Path) -> Path | None:
        """Move the tensors out of a trace that will be removed; return their folder if there are any."""
        source = self.output.trace(name) / PROCESSES_FOLDER / process
        files = [source / file for file in (CAPTURED_INPUTS_FILE, CAPTURED_OUTPUTS_FILE) if (source / file).is_file()]
        for file in files:
            make_private_folder(folder, exist_ok=True)
            file.replace(folder / file.name)
        return folder if files else None

    def _evidence(self, saved: dict[str, Any] | None, first: Divergence, kept: Path | None) -> Evidence:
        """Return the evidence of the confirming run: the tensors, and a script if the op varied."""
        left_out = None if saved is None else saved["left_out"]
        note = f"Not all tensors were kept, because {left_out}." if left_out else ""
        evidence = Evidence("repeats", None if kept is None else str(kept), note)
        moves = all((output.distinct or 0) < 2 for output in first.outputs)
        if moves and all((output.distinct_alignments or 0) < 2 for output in first.outputs):
            return evidence
        try:
            if saved is None or saved["call"] is None or kept is None:
                raise NotReproducible((saved or {}).get("reason") or "the call was not saved")
            path = write_reproducer(
                self.output.path / REPRODUCER_FOLDER,
                kept / CAPTURED_INPUTS_FILE,
                saved["call"],
                origin=_origin(first),
                seen=_seen(first, moves=moves),
                repeats=REPEATS,
                moves=moves,
            )
            return replace(evidence, reproducer=str(path))
        except (NotReproducible, OSError) as error:
            return replace(evidence, note=f"No script to reproduce it was written, because {error}.")


def _origin(first: Divergence) -> str:
    """Return where the op is, without folders that exist only on this machine."""
    place = f"step {first.step}, {first.phase}"
    return place if first.site is None else f"{Path(first.site.file).name}:{first.site.line}, {place}"


def _seen(first: Divergence, *, moves: bool) -> str:
    counts = [output.distinct_alignments if moves else output.distinct for output in first.outputs]
    repeats = max((output.repeats or 0) for output in first.outputs)
    return f"there it gave {max(count or 0 for count in counts)} distinct results in {repeats} repeats"


# Work after which two equal runs prove little, so that more are made.


_OF_SETS = "hash-order"
TIMED_RULES = {
    "clock": "what the clock decides",
    "completion-order": "results in the order in which they arrive",
    "thread-race": "sums that threads share",
    "machine-state": "choices by the load of the machine or its free memory",
    "program-output": "what another program draws at random",
    "query-result": "rows that a database draws at random",
    _OF_SETS: ORDER_OF_SETS,
}
"""Lint rules about timing and chance, with the work that each finds."""


def timed_work(trace: Trace, rules: Sequence[str]) -> list[str]:
    """Return the work of a run that may depend on timing, judged by its appearance and by the rules in `TIMED_RULES` that fire."""
    is_salted = not fixes_hashes(os.environ)
    return [
        *(TIMED_RULES[rule] for rule in rules if is_salted or rule != _OF_SETS),
        *(["child processes that work side by side"] if _gets_from_children(trace) else []),
    ]


_STARTED_BY_MULTIPROCESSING = re.compile(r"(.+)\.[A-Za-z]*Process-\d+")


def _gets_from_children(trace: Trace) -> bool:
    """Whether a process and several of its children compute: it may use the children's results as they arrive."""
    # Each process has one record that says how it ended.
    computing = [process.key for process in trace.processes if (process.description.get("records") or 0) > 1]
    parents = Counter(found[1] for key in computing if (found := _STARTED_BY_MULTIPROCESSING.fullmatch(key)))
    return any(count > 1 and parent in computing for parent, count in parents.items())


def racy_work(trace: Trace) -> list[str]:
    """Return the work in a run whose outcome depends on timing, as seen by the recorders."""
    return [str(word) for process in trace.processes for word in process.description.get("racy") or []]


# Follows a run in progress to find out as soon as it differs from the first one.

_LEAST_SECONDS = 0.5
_SHARE = 10
"""The pause between comparisons is this many times the processor time of a comparison, so that they barely slow the program."""


class FailFast:
    """Repeatedly compares a run in progress with the first run, in a thread; a context manager for that run.

    Only whole steps are compared, and only live differences count, so a difference now is a difference at the end. For
    threads and pools, whose records come in any order, only what reaches the rest of the program is compared. Programs
    that are started side by side are left out, since which one is which is known only at the end.
    """

    def __init__(self, first: Trace, folder: Path) -> None:
        """Compare nothing yet.

        Args:
            first: The first run.
            folder: Trace folder of the run that is about to begin.
        """
        self._first = {process.key: process for process in alone(first)}
        self._folder = folder
        self._pictures = folder.with_name(f"{folder.name}.pictures")
        self._ended = threading.Event()
        self._differs = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="fail fast", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
        shutil.rmtree(self._pictures, ignore_errors=True)

    def why_stop(self) -> str | None:
        """Return the reason to stop the run, once it differs."""
        return FAIL_FAST if self._differs.is_set() else None

    def _follow(self) -> None:
        pause = _LEAST_SECONDS
        while not self._ended.wait(pause):
            # On a busy machine a comparison mostly waits, which costs the program nothing.
            began = time.thread_time()
            if any(self._process_differs(key) for key in self._first):
                self._differs.set()
                return
            # The first comparison also imports modules, so its time says nothing about the next one.
            pause = max(_LEAST_SECONDS, min(2 * pause, _SHARE * (time.thread_time() - began)))

    def _process_differs(self, key: str) -> bool:
        picture = self._pictures / key
        try:
            if self._ended.is_set() or not snapshot_live_trace(self._folder / PROCESSES_FOLDER / key, picture):
                return False
            # Uses its own reader, since the first run is also read elsewhere.
            processes = (StoredProcess(self._first[key].folder), StoredProcess(picture))
            return compare_common_steps(*processes).divergence is not None
        except (TraceError, OSError):
            # The process is just starting or ending; the comparison after its end will report any real problem.
            return False
