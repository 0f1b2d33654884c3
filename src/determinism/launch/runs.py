"""Several runs under equal conditions: fresh copies of the folder, leftovers, stored runs."""

from __future__ import annotations

import json
import linecache
import math
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self

from determinism.comparison.result import Comparison, FileChange, Leftover, RunSummary
from determinism.compile_caches import compile_cache_of
from determinism.diagnose.experiments import Intervention
from determinism.errors import LaunchError, UsageError, exit_phrase
from determinism.launch.io import OutputFolder, StandardInput
from determinism.launch.program import INTERRUPTED, Interrupted, ProgressCallback, never
from determinism.launch.reading import LEFTOVERS_PREFIX
from determinism.launch.record import RunResult, record_program
from determinism.redaction import redacted_text
from determinism.run_spec import FactorRequest, ProbeRequest, RunSpec
from determinism.trace.files import make_private_folder, private
from determinism.trace.opening import open_trace
from determinism.trace.process import Trace
from determinism.trace.schema import MANIFEST_FILE, Frame

# What is to be checked, and how.


@dataclass(frozen=True)
class CheckRequest:
    """A program and how its runs are made and compared."""

    command: Sequence[str]
    num_runs: int | None = None
    """None: two, and more if they are equal although the program is racy."""
    spec: RunSpec = field(default_factory=RunSpec)
    """What every run records."""
    output: Path | None = None
    keep: bool = False
    strict: bool = False
    allow_failure: bool = False
    runs_from: Path | None = None
    explain: bool | None = None
    """Whether further runs may be made; None: if a run took less than a minute."""
    fix: bool = True
    """Whether fixes that can be applied from outside are tried."""
    budget: float | None = None
    """Seconds that looking for causes may take; None for what suits the length of a run."""
    vary: Sequence[str] = ()
    """Factors that are perturbed in further runs if the plain ones are equal."""
    before: str | None = None
    """A shell command that goes before each run."""
    fresh_copy: bool = False
    """Each run starts in a new copy of the working directory."""
    fail_fast: bool = False
    """Later runs end when they have shown a difference."""


# What an experiment changes about one run.


class RunningCheck(Protocol):
    """A check as it goes on: `Check`, or `NarrowCheck`."""

    runs: list[RunSummary]
    interrupt_status: int
    """Exit status if the user ended the search for causes, when the verdict was known; else 0."""

    def run(self) -> Comparison:
        """Come to a verdict."""

    @property
    def folder(self) -> Path:
        """Where it keeps what it made."""


def with_intervention(spec: RunSpec, intervention: Intervention, number: int, *, notes: Path | None = None) -> RunSpec:
    """Add to what a run is asked for what an experiment changes about it.

    Args:
        spec: What every run is asked for.
        intervention: What is fixed or perturbed. That it may need a fresh copy is not seen to here.
        number: Which run of the experiment it is, from 1; what is perturbed depends on it.
        notes: Folder for notes of what the program takes from outside; None if none are wanted.
    """
    factors = FactorRequest({factor: action.value for factor, action in intervention.factors}, number)
    probes = ProbeRequest(notes, intervention.in_order, changes=intervention.ordered_changes)
    if notes is not None:
        make_private_folder(notes, exist_ok=True)
    return replace(
        spec,
        factors=factors if factors.actions else None,
        probes=probes if probes.probes or probes.changes else None,
    )


MOST_BYTES = 4 << 30
"""More than this is data that belongs elsewhere, and copying it for each run would take longer than the run."""

_LEFT_OUT = frozenset({".determinism", "__pycache__"})
_LINKED = frozenset({".git"})
_MARKS_OF_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")


class FreshCopy:
    """A copy of a folder at one place, which every run finds as the first one did; a context that removes it.

    Relative paths lead to the same things as ever, also those with `..`: around the copy stand links to what stands
    around the folder. Symbolic links are kept; those that lead within the folder lead within the copy. Virtual
    environments and `.git` are links to the original.
    """

    def __init__(self, original: Path, left_out: Path, omitted: Collection[str] = ()) -> None:
        """Nothing is copied yet.

        Args:
            original: The folder, absolute.
            left_out: Where the traces go, absolute; it is not copied.
            omitted: Files and folders that are not copied either, absolute.
        """
        self.original = original
        self._left_out = left_out
        self._omitted = omitted

    def __enter__(self) -> Self:
        """Make the place for the copy.

        Raises:
            LaunchError: It cannot be made.
        """
        try:
            self._root = Path(tempfile.mkdtemp(prefix="determinism-")).resolve()
            self.folder = self._root / self.original.relative_to(self.original.anchor)
            self._link_surroundings()
        except OSError as error:
            raise _failed(self.original, error) from None
        return self

    def __exit__(self, *exception: object) -> None:
        _remove(self._root)

    def renew(self) -> None:
        """Make the copy again, from what the folder holds now.

        Raises:
            LaunchError: There is too much to copy, or something cannot be copied.
        """
        try:
            self.check_size()
            _remove(self.folder)
            self._copy(self.original, self.folder)
        except OSError as error:
            raise _failed(self.original, error) from None

    def _link_surroundings(self) -> None:
        for inner in [self.original, *self.original.parents][:-1]:
            place = self._root / inner.parent.relative_to(inner.anchor)
            place.mkdir(parents=True, exist_ok=True)
            for entry in _entries(inner.parent):
                if entry.name != inner.name and Path(entry.path) != self._root:
                    (place / entry.name).symlink_to(entry.path)

    def check_size(self) -> None:
        """See that there is not too much to copy.

        Raises:
            LaunchError: There is, or it cannot be told.
        """
        try:
            size = sum(_sizes(self.original, self._is_copied))
            room = shutil.disk_usage(self._root).free
        except OSError as error:
            raise _failed(self.original, error) from None
        if size <= min(MOST_BYTES, room):
            return
        limit = f"the {room:,} bytes that {self._root} has left" if room < MOST_BYTES else f"{MOST_BYTES:,} bytes"
        raise LaunchError(
            "copy-too-large",
            f"{self.original} holds {size:,} bytes, more than {limit}, so it was not copied and the run was not made. "
            "Keep data elsewhere and use symbolic links to it, which are not copied, or use --before 'rm ...' "
            "instead of --fresh-copy to remove what a run leaves behind.",
        )

    def _is_copied(self, entry: os.DirEntry[str]) -> bool:
        is_ours = Path(entry.path) in (self._left_out, self._root)
        is_left_out = entry.name in _LEFT_OUT or is_ours or entry.path in self._omitted
        return not is_left_out and not _is_linked(entry)

    def _copy(self, source: Path, target: Path) -> None:
        target.mkdir()
        for entry in os.scandir(source):
            to = target / entry.name
            if entry.path in self._omitted:
                continue
            if entry.is_symlink():
                to.symlink_to(self._retargeted(Path(entry.path)))
            elif _is_linked(entry):
                to.symlink_to(entry.path)
            elif not self._is_copied(entry):
                continue
            elif entry.is_dir():
                self._copy(Path(entry.path), to)
            elif entry.is_file():
                # Pipes and sockets belong to the processes that made them.
                shutil.copy2(entry.path, to)
        shutil.copystat(source, target)
        target.chmod(stat.S_IMODE(target.stat().st_mode) | stat.S_IRWXU)

    def _retargeted(self, link: Path) -> Path:
        """Where the copy of a link leads: into the copy, if the link leads into the folder."""
        target = Path(os.path.normpath(link.parent / link.readlink()))
        if target.is_relative_to(self.original):
            return self.folder / target.relative_to(self.original)
        return target


def _is_linked(entry: os.DirEntry[str]) -> bool:
    if not entry.is_dir(follow_symlinks=False):
        return False
    return entry.name in _LINKED or any(
        os.path.exists(os.path.join(entry.path, mark)) for mark in _MARKS_OF_ENVIRONMENTS
    )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, as far as it may be listed."""
    try:
        return list(os.scandir(folder))
    except OSError:
        return []


def _sizes(folder: Path, is_copied: Callable[[os.DirEntry[str]], bool]) -> Iterator[int]:
    for entry in os.scandir(folder):
        if entry.is_symlink() or not is_copied(entry):
            continue
        if entry.is_dir():
            yield from _sizes(Path(entry.path), is_copied)
        elif entry.is_file():
            yield entry.stat().st_size


def _remove(folder: Path) -> None:
    """Remove a copy with whatever the program made in it; links are not followed."""
    for place, names, _ in os.walk(folder):
        for name in names:
            inner = os.path.join(place, name)
            if not os.path.islink(inner):
                # A folder that may not be written to would keep its content.
                os.chmod(inner, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)


def _failed(original: Path, error: OSError) -> LaunchError:
    return LaunchError(
        "copy-failed",
        f"{original} cannot be copied ({error}), so the run was not made. Fix that, or use --before 'rm ...' instead "
        "of --fresh-copy to remove what a run leaves behind.",
    )


# Whether runs beyond those that a verdict takes may be made to explain it.

LONGEST_UNASKED = 60.0


def broken_off(comparison: Comparison, error: BaseException, warn: Callable[[str], None]) -> tuple[Comparison, int]:
    """Keep what is known when the search for causes ends early.

    Args:
        comparison: What is known.
        error: `Interrupted` or `KeyboardInterrupt` if the user ended it.
        warn: Gets a sentence for the terminal.

    Returns:
        The comparison, which says so, and the exit status of the command if the user ended it.
    """
    limit = "The search for the cause was interrupted; the report shows what it had found."
    comparison = replace(comparison, diagnosis=replace(comparison.diagnosis, limit=limit))
    if isinstance(error, Interrupted | KeyboardInterrupt):
        warn("Interrupted during the search for the cause; its findings so far are kept.")
    else:
        warn(f"The search for the cause was stopped. {getattr(error, 'message', str(error))}")
    return comparison, error.exit_status if isinstance(error, Interrupted) else INTERRUPTED


def without_traces(comparison: Comparison, output: OutputFolder) -> Comparison:
    """Remove the traces that the runs of a check left in its folder, and the folder if nothing else is in it.

    Args:
        comparison: Of the runs.
        output: The folder.

    Returns:
        The comparison, whose runs have no traces any more.
    """
    runs = []
    for run in comparison.runs:
        if run.trace is not None and Path(run.trace).parent == output.path:
            output.discard(Path(run.trace).name)
            run = replace(run, trace=None)
        runs.append(run)
    output.remove_if_empty()
    return replace(comparison, runs=tuple(runs))


def may_run_further(explain: bool | None, runs: Iterable[RunSummary]) -> bool:
    """Whether more runs may be made; without a word of the user, if each one so far took less than a minute.

    Args:
        explain: What the user asked for with `--explain` and `--no-explain`; None if nothing.
        runs: Those that were made.
    """
    return explain if explain is not None else max(run.idle_seconds for run in runs) < LONGEST_UNASKED


# What one run of a check leaves on the disk and a later one reads: then the runs did not start alike.

TICK_SECONDS = 0.02
"""File systems take the time from a clock that lags by up to this much."""
_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})


class RunTimes:
    """When each run of a check began and ended, by which a file tells in which run it was changed."""

    def __init__(self, first_number: int) -> None:
        """Take the number of the first run that is made; 2 if a stored one stands before it."""
        self.ended: list[tuple[int, int]] = []
        """Begin and end of each run that is over, in nanoseconds since 1970."""
        self._first_number = first_number
        self._writes = _Writes()

    @property
    def made(self) -> frozenset[str]:
        """What was not there before a run wrote or removed it."""
        return self._writes.made

    @contextmanager
    def run(self) -> Iterator[None]:
        """The next run; what is done to files right before and after it does not count as its own."""
        begin = time.time_ns()
        yield
        end = time.time_ns()
        time.sleep(TICK_SECONDS)
        self.ended.append((begin, end))

    def leftovers(self, trace: Path, *, fresh_copy: bool) -> list[Leftover]:
        """What the run that ended last read of the earlier ones.

        Args:
            trace: Its trace.
            fresh_copy: Whether it started in a copy of the working directory.
        """
        working_directory = Path.cwd()
        number = self._first_number + len(self.ended) - 1
        self._writes.add(len(self.ended) - 1, trace)
        return [
            Leftover(
                file,
                self._first_number + run,
                number,
                not fresh_copy and Path(file).is_relative_to(working_directory),
                site,
                self._writes.change(file, run),
                None if (cache := compile_cache_of(file, os.environ)) is None else cache.owner,
                os.path.isdir(file),
            )
            for (run, file), site in sorted(_notes(trace).items())
        ]


class _Writes:
    """Files that runs were seen to write, and whether these existed before any of them did so."""

    def __init__(self) -> None:
        self._begin = time.time_ns()
        self._by: dict[str, set[int]] = {}
        self._existed: dict[str, bool] = {}

    def add(self, run: int, trace: Path) -> None:
        """Add what the processes of a run noted; runs come in their order."""
        changes = [note for note in file_notes(trace) if isinstance(note.get("at"), int)]
        for note in sorted(changes, key=lambda note: int(note["at"])):
            for how in ("wrote", "removed"):
                if isinstance(path := note.get(how), str):
                    self._existed.setdefault(path, note.get("existed") is not False)
                    if how == "wrote":
                        self._by.setdefault(path, set()).add(run)

    @property
    def made(self) -> frozenset[str]:
        """What was not there before any of them did so."""
        return frozenset(path for path, existed in self._existed.items() if not existed)

    def change(self, file: str, run: int) -> FileChange:
        """How a file came to change during a run."""
        path = os.path.realpath(file)
        # What is in a folder that was given its name when it was complete came with it.
        path = next((one for one in (path, *map(str, Path(path).parents)) if run in self._by.get(one, ())), "")
        if not path:
            return FileChange.UNSEEN
        # To remove a link leaves the file that it leads to, and packages are for those who installed them to remove.
        is_own = not os.path.islink(file) and not _PACKAGE_FOLDERS.intersection(Path(path).parts)
        if is_own and os.path.isdir(path):
            # Whoever renames a folder of the user's own takes what is in it along.
            overwritten = {Path(one).name for one in self._by if self._existed[one]}
            is_own = _all_made_since(path, self._begin, overwritten)
        return FileChange.CREATED if is_own and not self._existed[path] else FileChange.OVERWRITTEN


_MOST_IN_FOLDER = 10_000


def _all_made_since(folder: str, begin: int, overwritten: Collection[str]) -> bool:
    """Whether everything in a folder is known to have been made by runs.

    Args:
        folder: It.
        begin: When the first of them began, in nanoseconds since 1970.
        overwritten: Names of files that were there before they were written, perhaps in a folder of another name.
    """
    waiting, seen = [folder], 0
    try:
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    seen += 1
                    is_older = entry.stat(follow_symlinks=False).st_ctime_ns < begin
                    if is_older or seen > _MOST_IN_FOLDER or entry.name in overwritten:
                        return False
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    except OSError:
        return False
    return True


_MOST_ENTRIES = 20_000
"""So many files and folders are looked at; what has more is no folder of a program alone."""


def changed_files(folder: Path, left_out: Path, since: float) -> list[str]:
    """The files in a folder that have changed, relative to it and in order; only those that a fresh copy of it would hold.

    Args:
        folder: Where programs ran.
        left_out: Where their traces went.
        since: Seconds since 1970.
    """
    found: list[str] = []
    waiting, seen = [folder], 0
    shown = _own_output()
    while waiting and seen < _MOST_ENTRIES:
        for entry in _entries(waiting.pop()):
            seen += 1
            is_ours = Path(entry.path) == left_out or entry.name in _LEFT_OUT or _is_linked(entry)
            if is_ours or entry.is_symlink():
                continue
            if entry.is_dir():
                waiting.append(Path(entry.path))
                continue
            # Another program may delete a file at any moment.
            with suppress(OSError):
                file = entry.stat()
                is_output = (file.st_dev, file.st_ino) in shown
                if stat.S_ISREG(file.st_mode) and file.st_size and file.st_ctime > since and not is_output:
                    found.append(str(Path(entry.path).relative_to(folder)))
    return sorted(found)


def _own_output() -> set[tuple[int, int]]:
    """Device and inode of the files that the output of this command and of the first run goes to, where it is redirected."""
    found = set()
    for descriptor in (1, 2):
        with suppress(OSError):
            status = os.fstat(descriptor)
            found.add((status.st_dev, status.st_ino))
    return found


def file_notes(trace: Path) -> Iterator[dict[str, Any]]:
    """What the processes of a run noted about files that they wrote, removed, or read."""
    for path in sorted(trace.glob(f"{LEFTOVERS_PREFIX}*.jsonl")):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            continue
        for line in lines:
            try:
                note = json.loads(line)
            except ValueError:
                # The process was killed while it wrote.
                continue
            if isinstance(note, dict):
                yield note


def _notes(trace: Path) -> dict[tuple[int, str], Frame | None]:
    """The run that changed it and the path of each file that was read, and where it was read first."""
    found: dict[tuple[int, str], Frame | None] = {}
    for note in file_notes(trace):
        if isinstance(note.get("run"), int) and isinstance(note.get("file"), str):
            found.setdefault((note["run"], note["file"]), _frame(note.get("site")))
    return found


def _frame(site: list[Any] | None) -> Frame | None:
    if site is None:
        return None
    file, line, function = str(site[0]), int(site[1]), str(site[2])
    return Frame(file, line, function, linecache.getline(file, line).strip())


# Runs the command that prepares a run.


def prepare(command: str, title: str, *, folder: Path | None, log: Path) -> None:
    """Run a shell command, which is not recorded.

    Args:
        command: For the shell.
        title: What run it prepares.
        folder: Where it runs; None for the working directory.
        log: The file for its output.

    Raises:
        LaunchError: It failed.
        OSError: The log cannot be written.
    """
    environment = None if folder is None else {**os.environ, "PWD": str(folder)}
    with open(log, "wb", opener=private) as output:
        ended = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
    if ended.returncode:
        raise LaunchError(
            "before-failed",
            f"The command given with --before ended with {exit_phrase(ended.returncode)}, so {title} was not made:",
            redacted_text(command),
            f"Its output is in {log}. Fix it, or append `|| true` if it may fail.",
        )


# Makes the runs of a check, one after the other, each from the same start.


class RunSeries:
    """The runs of one check."""

    def __init__(
        self,
        request: CheckRequest,
        output: OutputFolder,
        standard_input: StandardInput,
        copy: FreshCopy | None,
        *,
        first_number: int,
        earlier: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Nothing is run yet.

        Args:
            request: What is to be run.
            output: Where traces and logs go.
            standard_input: What each run reads.
            copy: Where each run starts; None for the working directory itself.
            first_number: The number of the first run, as reports count.
            earlier: Begin and end of runs of others, in nanoseconds since 1970, whose files are leftovers as well.
        """
        self.leftovers: list[Leftover] = []
        self._request = request
        self._output = output
        self._standard_input = standard_input
        self._copy = copy
        self._times = RunTimes(first_number)
        self._times.ended += earlier
        # A run that looks at one record takes nothing over but from where on ops are recorded.
        self._captured = RunSpec(first_step=request.spec.first_step, window=request.spec.window)

    @property
    def began(self) -> int:
        """When the first run began, in nanoseconds since 1970; 0 if there was none."""
        return min((begin for begin, _ in self._times.ended), default=0)

    @property
    def to_omit(self) -> frozenset[str]:
        """What a copy of the working directory must lack to be as the first run found it.

        Nothing if no run read what an earlier one had left, or if a copy cannot be so: a file is elsewhere, or held something else before.
        """
        read = [one for one in self.leftovers if one.cache is None]
        if not all(one.is_copied and one.change is FileChange.CREATED for one in read):
            return frozenset()
        return self._times.made.union(one.file for one in read) if read else frozenset()

    @property
    def max_disk(self) -> int | None:
        """Bytes that a run may leave; None for as many as it likes."""
        return self._request.spec.max_disk

    def make(
        self,
        name: str,
        title: str,
        on_progress: ProgressCallback | None,
        *,
        log: Path | None,
        is_shown: bool = False,
        why_stop: Callable[[], str | None] = never,
        most_seconds: float = math.inf,
        spec: RunSpec | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> RunResult:
        """Make one run.

        Args:
            name: Of its trace.
            title: What it is called when it cannot be made.
            on_progress: Gets records and step about ten times a second.
            log: File for its output; None passes it through.
            is_shown: Whether its output is passed through as well.
            why_stop: Asked about ten times a second; the run is stopped when it gives a reason, such as `fail-fast`.
            most_seconds: After which it is stopped, not counting those in which it waits for a processor.
            spec: What it is asked for in an experiment; None for what all runs are.
            environment: The one it has; None for the current one.

        Raises:
            LaunchError: It cannot be prepared or started, or the user ended it.
            TraceError: The trace cannot be written.
        """
        copied = self._prepare(name, title)
        trace = self._output.trace(name)
        spec = replace(
            spec or self._request.spec, trace_folder=trace, copied=copied, earlier_runs=tuple(self._times.ended)
        )
        with self._times.run():
            result = record_program(
                self._request.command,
                spec,
                log=log,
                is_shown=is_shown,
                on_progress=on_progress,
                stdin=self._standard_input,
                why_stop=why_stop,
                most_seconds=most_seconds,
                environment=environment,
            )
        self.leftovers += self._times.leftovers(trace, fresh_copy=self._copy is not None)
        return result

    def make_capturing(
        self,
        name: str,
        title: str,
        on_progress: ProgressCallback | None,
        *,
        log: Path,
        capture: dict[str, Any],
        seconds: float,
    ) -> None:
        """Make a run that looks at one record closely; it counts for nothing else.

        Args:
            name: Of its trace.
            title: What it is called when it cannot be made.
            on_progress: Gets records and step about ten times a second.
            log: File for its output.
            capture: Which record.
            seconds: After which it is stopped, not counting those in which it waits for a processor. The process that looked at the record ends at once, and others may wait
                for it for ever.

        Raises:
            LaunchError: It cannot be prepared or started, or the user ended it.
            TraceError: The trace cannot be written.
        """
        copied = self._prepare(name, title)
        record_program(
            self._request.command,
            replace(self._captured, trace_folder=self._output.trace(name), capture=capture, copied=copied),
            log=log,
            on_progress=on_progress,
            stdin=self._standard_input,
            most_seconds=seconds,
        )

    def _prepare(self, name: str, title: str) -> tuple[str, str] | None:
        """Bring about the start that every run has; returns the copy to run in, and what it is a copy of."""
        folder = None
        if self._copy is not None:
            self._copy.renew()
            folder = self._copy.folder
        if self._request.before is not None:
            prepare(self._request.before, title, folder=folder, log=self._output.preparation_log(name))
        return None if folder is None else (str(folder), str(Path.cwd()))


# A run that was recorded before, as the first one of a check.


def open_stored_run(folder: Path, *, level: str, steps: int | None) -> Trace:
    """Open the trace in a folder that `record`, or `check --keep`, wrote.

    Args:
        folder: The trace, or the output folder of a check, whose first run is then used.
        level: At which the new runs will be recorded.
        steps: For how many steps they will be.

    Raises:
        TraceError: There is none.
        UsageError: It was recorded in another way than the new run would be.
    """
    runs = sorted(folder.glob(f"run-*/{MANIFEST_FILE}"))
    trace = open_trace(runs[0].parent if runs else folder)
    levels = {str(process.description["level"]) for process in trace.processes}
    if levels and levels != {level}:
        its_level = min(levels)
        raise UsageError(
            "levels-differ",
            f"{trace.folder} was recorded at level {its_level}, but the new run would be at level {level}, so nothing "
            f"was run. Give --level {its_level}.",
        )
    removed = max((process.first_step for process in trace.processes if process.num_removed), default=0)
    if removed:
        raise UsageError(
            "stored-run-removed",
            f"{trace.folder} has no ops of the steps before {removed:,}: they were removed to stay within --max-disk. "
            "A new run would have them all, so nothing was run. Record the new run in the same way, and compare both "
            "with determinism compare.",
        )
    its_steps = trace.manifest.get("steps")
    if its_steps != steps:
        wanted = "Leave --steps out" if its_steps is None else f"Give --steps {its_steps}"
        raise UsageError(
            "steps-differ",
            f"{trace.folder} was recorded {_extent(its_steps)}, but the new run would be recorded {_extent(steps)}, "
            f"so nothing was run. {wanted}.",
        )
    return trace


def recorded_like(request: CheckRequest, stored: Trace) -> CheckRequest:
    """A request whose runs have the state in their ledgers at the same steps as a stored one."""
    every = stored.state_every
    return request if every is None else replace(request, spec=replace(request.spec, state_every=every))


def _extent(steps: int | None) -> str:
    return "to its end" if steps is None else f"for {steps} step{'' if steps == 1 else 's'}"
