"""Repeated runs under equal conditions: fresh copies of the folder, leftovers, stored runs."""

from __future__ import annotations

import json
import linecache
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self, Unpack

from determinism.comparison.result import Comparison, FileChange, Leftover, RunSummary
from determinism.compile_caches import compile_cache_of
from determinism.diagnose.experiments import Intervention
from determinism.errors import LaunchError, UsageError, exit_phrase
from determinism.launch.io import OutputFolder, StandardInput
from determinism.launch.program import Interrupted, ProgressCallback, Watching, interrupt_status
from determinism.launch.reading import LEFTOVERS_PREFIX
from determinism.launch.record import RunResult, record_program
from determinism.redaction import redacted_text
from determinism.run_spec import FactorRequest, ProbeRequest, RunSpec
from determinism.trace.files import make_private_folder, private
from determinism.trace.opening import open_trace
from determinism.trace.process import Trace
from determinism.trace.schema import MANIFEST_FILE, Frame

# The program to check, and how.


@dataclass(frozen=True)
class CheckRequest:
    """A program and how its runs are made and compared."""

    command: Sequence[str]
    num_runs: int | None = None
    """None: two, plus more if those are equal although the program is racy."""
    spec: RunSpec = field(default_factory=RunSpec)
    """What every run records."""
    output: Path | None = None
    keep: bool = False
    strict: bool = False
    allow_failure: bool = False
    runs_from: Path | None = None
    explain: bool | None = None
    """Whether further runs may be made; None: only if each run took less than a minute."""
    fix: bool = True
    """Whether fixes that can be applied from outside are tried."""
    budget: float | None = None
    """Seconds that the search for causes may take; None for a default that depends on the length of a run."""
    vary: Sequence[str] = ()
    """Factors to perturb in further runs if the plain ones are equal."""
    before: str | None = None
    """A shell command to run before each run."""
    fresh_copy: bool = False
    """Each run starts in a new copy of the working directory."""
    fail_fast: bool = False
    """Later runs end as soon as they have shown a difference."""


# What an experiment changes about one run.


class RunningCheck(Protocol):
    """A check in progress: `Check` or `NarrowCheck`."""

    runs: list[RunSummary]
    interrupt_status: int
    """Exit status if the user ended the search for causes after the verdict was known; else 0."""

    def run(self) -> Comparison:
        """Reach a verdict."""

    @property
    def folder(self) -> Path:
        """The folder for its traces, logs and reports."""


def with_intervention(spec: RunSpec, intervention: Intervention, number: int, *, notes: Path | None = None) -> RunSpec:
    """Add an experiment's changes to the spec of a run.

    Args:
        spec: The spec that all runs share.
        intervention: What is fixed or perturbed. If it needs a fresh copy, the caller makes one.
        number: Number of the run within the experiment, from 1; it determines how factors are perturbed.
        notes: Folder for notes of what the program takes from outside; None for no notes.
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
"""A larger folder holds data that belongs elsewhere, and copying it for each run would take longer than the run."""

_LEFT_OUT = frozenset({".determinism", "__pycache__"})
_LINKED = frozenset({".git"})
_MARKS_OF_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")


@dataclass
class FreshCopy:
    """A copy of a folder, at a fixed path, that every run finds in the same state; a context manager that removes it.

    Relative paths, including those with `..`, resolve as before: the copy is surrounded by links to what surrounds
    the folder. Symbolic links are kept; those into the folder point into the copy. Virtual environments and `.git`
    are links to the original. All paths are absolute.
    """

    original: Path
    left_out: Path
    """The folder for traces, which is not copied."""
    omitted: Collection[str] = ()
    """Files and folders that are not copied either."""

    def __enter__(self) -> Self:
        """Create the folder that will hold the copy.

        Raises:
            LaunchError: It cannot be created.
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
        """Make the copy again, from the current contents of the folder.

        Raises:
            LaunchError: There is too much to copy, or a file cannot be copied.
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
        """Check that there is not too much to copy.

        Raises:
            LaunchError: There is too much, or the size cannot be determined.
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
        is_ours = Path(entry.path) in (self.left_out, self._root)
        is_left_out = entry.name in _LEFT_OUT or is_ours or entry.path in self.omitted
        return not is_left_out and not _is_linked(entry)

    def _copy(self, source: Path, target: Path) -> None:
        target.mkdir()
        for entry in os.scandir(source):
            to = target / entry.name
            if entry.path in self.omitted:
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
        """The target for the copy of a link: in the copy if the link points into the folder."""
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
    """The entries of a folder; none if it cannot be listed."""
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
    """Remove a copy with everything that the program made in it, without following links."""
    for place, names, _ in os.walk(folder):
        for name in names:
            inner = os.path.join(place, name)
            if not os.path.islink(inner):
                # The contents of a read-only folder could not be removed.
                os.chmod(inner, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)


def _failed(original: Path, error: OSError) -> LaunchError:
    return LaunchError(
        "copy-failed",
        f"{original} cannot be copied ({error}), so the run was not made. Fix that, or use --before 'rm ...' instead "
        "of --fresh-copy to remove what a run leaves behind.",
    )


# Whether to make more runs than a verdict needs, to explain it.

LONGEST_UNASKED = 60.0


def end_search_early(
    comparison: Comparison, error: BaseException, warn: Callable[[str], None]
) -> tuple[Comparison, int]:
    """Keep what is known when the search for causes ends early, by an error or because the user ended it.

    Returns:
        The comparison, which now says so, and the exit status of the command if the user ended it.
    """
    limit = "The search for the cause was interrupted; the report shows what it had found."
    comparison = replace(comparison, diagnosis=replace(comparison.diagnosis, limit=limit))
    if isinstance(error, Interrupted | KeyboardInterrupt):
        warn("Interrupted during the search for the cause; its findings so far are kept.")
    else:
        warn(f"The search for the cause was stopped. {getattr(error, 'message', str(error))}")
    return comparison, interrupt_status(error)


def without_traces(comparison: Comparison, output: OutputFolder) -> Comparison:
    """Remove the traces of a check's runs from its folder, and the folder itself if nothing else is in it.

    Returns:
        The comparison, whose runs no longer have traces.
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
    """Whether more runs may be made: as `--explain` and `--no-explain` say, or if each one so far took less than a minute."""
    return explain if explain is not None else max(run.idle_seconds for run in runs) < LONGEST_UNASKED


# Files that one run of a check leaves behind and a later one reads: those runs did not start from the same state.

TICK_SECONDS = 0.02
"""File systems take timestamps from a clock that lags by up to this much."""
_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})


class RunTimes:
    """When each run of a check began and ended, which shows in which run a file was changed."""

    def __init__(self, first_number: int) -> None:
        """Take the number of the first run to make; 2 if a stored run precedes it."""
        self.ended: list[tuple[int, int]] = []
        """Start and end of each finished run, in nanoseconds since 1970."""
        self._first_number = first_number
        self._writes = _Writes()

    @property
    def made(self) -> frozenset[str]:
        """Files that did not exist before a run wrote or removed them."""
        return self._writes.made

    @contextmanager
    def run(self) -> Iterator[None]:
        """Time the next run; changes to files right before and after it do not count as its own."""
        begin = time.time_ns()
        yield
        end = time.time_ns()
        time.sleep(TICK_SECONDS)
        self.ended.append((begin, end))

    def leftovers(self, trace: Path, *, fresh_copy: bool) -> list[Leftover]:
        """Files that the latest run, perhaps in a copy of the working directory, read and earlier runs had written."""
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
    """Files that runs were seen to write, and whether they existed before."""

    def __init__(self) -> None:
        self._begin = time.time_ns()
        self._by: dict[str, set[int]] = {}
        self._existed: dict[str, bool] = {}

    def add(self, run: int, trace: Path) -> None:
        """Add what the processes of a run noted; call this in the order of the runs."""
        changes = [note for note in file_notes(trace) if isinstance(note.get("at"), int)]
        for note in sorted(changes, key=lambda note: int(note["at"])):
            for how in ("wrote", "removed"):
                if isinstance(path := note.get(how), str):
                    self._existed.setdefault(path, note.get("existed") is not False)
                    if how == "wrote":
                        self._by.setdefault(path, set()).add(run)

    @property
    def made(self) -> frozenset[str]:
        """Files that did not exist before a run wrote or removed them."""
        return frozenset(path for path, existed in self._existed.items() if not existed)

    def change(self, file: str, run: int) -> FileChange:
        """Return how a run changed a file."""
        path = os.path.realpath(file)
        # Contents of a folder that was renamed into place when complete were not seen being written under this name.
        path = next((one for one in (path, *map(str, Path(path).parents)) if run in self._by.get(one, ())), "")
        if not path:
            return FileChange.UNSEEN
        # Removing a link leaves its target, and removing packages is up to those who installed them.
        is_own = not os.path.islink(file) and not _PACKAGE_FOLDERS.intersection(Path(path).parts)
        if is_own and os.path.isdir(path):
            # A user's own folder that is renamed brings its older contents along.
            overwritten = {Path(one).name for one in self._by if self._existed[one]}
            is_own = _all_made_since(path, self._begin, overwritten)
        return FileChange.CREATED if is_own and not self._existed[path] else FileChange.OVERWRITTEN


_MOST_IN_FOLDER = 10_000


def _all_made_since(folder: str, begin: int, overwritten: Collection[str]) -> bool:
    """Whether everything in a folder is known to have been made by runs.

    Args:
        folder: Path of the folder.
        begin: When the first run began, in nanoseconds since 1970.
        overwritten: Names of files that existed before they were written, perhaps in a folder with another name.
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
"""How many files and folders are examined; a folder with more is not used by one program alone."""


def changed_files(folder: Path, left_out: Path, since: float) -> list[str]:
    """The sorted relative paths of changed files in a folder; only of files that a fresh copy would contain.

    Args:
        folder: Where the programs ran.
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
            # Another program may delete a file at any time.
            with suppress(OSError):
                file = entry.stat()
                is_output = (file.st_dev, file.st_ino) in shown
                if stat.S_ISREG(file.st_mode) and file.st_size and file.st_ctime > since and not is_output:
                    found.append(str(Path(entry.path).relative_to(folder)))
    return sorted(found)


def _own_output() -> set[tuple[int, int]]:
    """Device and inode of the files to which the output of this command, and so of the first run, is redirected."""
    found = set()
    for descriptor in (1, 2):
        with suppress(OSError):
            status = os.fstat(descriptor)
            found.add((status.st_dev, status.st_ino))
    return found


def file_notes(trace: Path) -> Iterator[dict[str, Any]]:
    """Yield the notes of a run's processes on files that they wrote, removed or read."""
    for path in sorted(trace.glob(f"{LEFTOVERS_PREFIX}*.jsonl")):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            continue
        for line in lines:
            try:
                note = json.loads(line)
            except ValueError:
                # The process was killed while writing.
                continue
            if isinstance(note, dict):
                yield note


def _notes(trace: Path) -> dict[tuple[int, str], Frame | None]:
    """Where each leftover was read first, by the run that changed it and its path."""
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


# The command that prepares a run.


def prepare(command: str, title: str, *, folder: Path | None, log: Path) -> None:
    """Run a shell command without recording it.

    Args:
        command: The command line for the shell.
        title: Title of the run that it prepares.
        folder: Where to run it; None for the working directory.
        log: File for its output.

    Raises:
        LaunchError: The command failed.
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


# The runs of a check, one after another, each from the same state.


@dataclass
class RunSeries:
    """The runs of one check."""

    request: CheckRequest
    output: OutputFolder
    """Where traces and logs go."""
    standard_input: StandardInput
    copy: FreshCopy | None
    """Where each run starts; None for the working directory itself."""
    _: KW_ONLY
    first_number: int
    """Number of the first run, as reports count."""
    earlier: InitVar[Sequence[tuple[int, int]]] = ()
    """Start and end, in nanoseconds since 1970, of other runs whose files are leftovers too."""

    def __post_init__(self, earlier: Sequence[tuple[int, int]]) -> None:
        self.leftovers: list[Leftover] = []
        self._times = RunTimes(self.first_number)
        self._times.ended += earlier
        # A run that captures one record inherits only which steps are recorded.
        self._captured = RunSpec(first_step=self.request.spec.first_step, window=self.request.spec.window)

    @property
    def began(self) -> int:
        """When the first run began, in nanoseconds since 1970; 0 if there were no runs."""
        return min((begin for begin, _ in self._times.ended), default=0)

    @property
    def to_omit(self) -> frozenset[str]:
        """Files to omit from a copy of the working directory so that it is as the first run found it.

        Empty if no run read leftovers, or if omitting files is not enough: one is elsewhere or was overwritten.
        """
        read = [one for one in self.leftovers if one.cache is None]
        if not all(one.is_copied and one.change is FileChange.CREATED for one in read):
            return frozenset()
        return self._times.made.union(one.file for one in read) if read else frozenset()

    @property
    def max_disk(self) -> int | None:
        """Bytes that the trace of a run may take; None for no limit."""
        return self.request.spec.max_disk

    def make(
        self,
        name: str,
        title: str,
        on_progress: ProgressCallback | None,
        *,
        spec: RunSpec | None = None,
        **watching: Unpack[Watching],
    ) -> RunResult:
        """Make one run.

        Args:
            name: Name of its trace.
            title: What messages call the run if it cannot be made.
            on_progress: As for `run_program`.
            spec: Spec for a run of an experiment; None for the spec that all runs share.
            **watching: As for `run_program`.

        Raises:
            LaunchError: It cannot be prepared or started, or the user ended it.
            TraceError: The trace cannot be written.
        """
        copied = self._prepare(name, title)
        trace = self.output.trace(name)
        spec = replace(
            spec or self.request.spec, trace_folder=trace, copied=copied, earlier_runs=tuple(self._times.ended)
        )
        with self._times.run():
            result = record_program(
                self.request.command, spec, on_progress=on_progress, stdin=self.standard_input, **watching
            )
        self.leftovers += self._times.leftovers(trace, fresh_copy=self.copy is not None)
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
        """Make a run only to capture one record in detail.

        Args:
            name: Name of its trace.
            title: What messages call the run if it cannot be made.
            on_progress: As for `run_program`.
            log: File for its output.
            capture: Which record to capture.
            seconds: Time limit of the run, not counting time in which it waits for a processor. The process that
                captured the record ends at once, and others may wait for it forever.

        Raises:
            LaunchError: It cannot be prepared or started, or the user ended it.
            TraceError: The trace cannot be written.
        """
        copied = self._prepare(name, title)
        record_program(
            self.request.command,
            replace(self._captured, trace_folder=self.output.trace(name), capture=capture, copied=copied),
            log=log,
            on_progress=on_progress,
            stdin=self.standard_input,
            most_seconds=seconds,
        )

    def _prepare(self, name: str, title: str) -> tuple[str, str] | None:
        """Set up the state that every run starts from; return the copy to run in and the folder that was copied."""
        folder = None
        if self.copy is not None:
            self.copy.renew()
            folder = self.copy.folder
        if self.request.before is not None:
            prepare(self.request.before, title, folder=folder, log=self.output.preparation_log(name))
        return None if folder is None else (str(folder), str(Path.cwd()))


# A stored run as the first run of a check.


def open_stored_run(folder: Path, *, level: str, steps: int | None) -> Trace:
    """Open the trace in a folder that `record` or `check --keep` wrote.

    Args:
        folder: A trace, or the output folder of a check, whose first run is then used.
        level: Level at which the new runs will be recorded.
        steps: Number of steps for which the new runs will be recorded; None for all.

    Raises:
        TraceError: There is no trace.
        UsageError: It was recorded differently from how the new runs would be.
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
    """The request, adapted so that its runs record the state in their ledgers at the same steps as a stored run."""
    every = stored.state_every
    return request if every is None else replace(request, spec=replace(request.spec, state_every=every))


def _extent(steps: int | None) -> str:
    return "to its end" if steps is None else f"for {steps} step{'' if steps == 1 else 's'}"
