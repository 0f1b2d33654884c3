"""Makes goldens of a program, runs it again to check them, and finds the op and line where a run leaves a golden."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Self

import numpy as np

from determinism.errors import LaunchError, TraceError, UsageError, exit_phrase
from determinism.golden.ledger import (
    NO_VALUE,
    Ledger,
    exists_already,
    grouped_digests,
    ledger_of,
    read_golden,
    require_writable,
    text_of,
    write_golden,
)
from determinism.golden.result import GoldenComparison, Place, compare_ledgers
from determinism.launch.interpreter import check_interpreter
from determinism.launch.io import StandardInput
from determinism.launch.program import Announce, unannounced
from determinism.launch.record import record_program, require_recorded
from determinism.run_spec import RunSpec
from determinism.trace.chunks import Chunk
from determinism.trace.opening import open_trace
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.schema import NONE, STEP_OP, Table
from determinism.types import NO_DIGEST, Level, Role, Stream, Verdict

MOST_OPERATIONS = 20_000
"""The most ops of the first step that are compared, including initialization."""


@dataclass(frozen=True)
class _Operation:
    digest: str
    chunk: Chunk
    row: int


def process_of(trace: Trace, key: str) -> ProcessTrace | None:
    """Return the process with this key; None if the trace has none."""
    ordered = (process for process in trace.processes if process.description.get("stream") == Stream.PROCESS)
    return next((process for process in ordered if process.key == key), None)


def operation_digests(process: ProcessTrace) -> list[str]:
    """Return digests of the results of the first step's ops, in order."""
    return [operation.digest for operation in _operations_of(process)]


def _operations_of(process: ProcessTrace) -> Iterator[_Operation]:
    count = 0
    for chunk in process.chunks():
        outputs = chunk.children["outputs"]
        is_op = np.isin(chunk.columns["role"], (Role.OP, Role.ESCAPE, Role.BATCH, Role.LOSS))
        for row in np.flatnonzero(is_op & (chunk.columns["step"] == 0)):
            values = [value.hex() for value in outputs.digests_of(int(row)) if value != NO_DIGEST]
            if values:
                yield _Operation(
                    values[0] if len(values) == 1 else grouped_digests(values, len(values))[0], chunk, int(row)
                )
                count += 1
                if count == MOST_OPERATIONS:
                    return
        if chunk.rows and int(chunk.columns["step"][-1]) > 0:
            return


def first_difference(process: ProcessTrace, stored: Sequence[str], size: int) -> Place | None:
    """Return the first op of the first step whose result differs from the golden; None if all agree.

    Args:
        process: Recorded op by op.
        stored: The digests stored in the golden, shortened.
        size: How many ops share a digest.
    """
    operations = list(_operations_of(process))
    if not stored or not operations:
        return None
    width = len(stored[0])
    present = [text[:width] for text in grouped_digests([operation.digest for operation in operations], size)]
    at = _first_parting(stored, present)
    if at is None:
        return None
    first, last = (min(number, len(operations) - 1) for number in (at * size, (at + 1) * size - 1))
    place = _place_of(process, operations[first])
    until = _place_of(process, operations[last]).frame
    is_range = size > 1 and until != place.frame
    return Place(place.op, place.step, place.frame, until if is_range else None)


def _first_parting(stored: Sequence[str], present: Sequence[str]) -> int | None:
    """Return where the second sequence differs from the first; insertions and deletions count only if nothing was replaced."""
    matcher = SequenceMatcher(None, stored, present, autojunk=False)
    partings = [(tag, start) for tag, _, _, start, _ in matcher.get_opcodes() if tag != "equal"]
    replaced = [start for tag, start in partings if tag == "replace"]
    starts = replaced or [start for _, start in partings]
    return min(starts[0], len(present) - 1) if starts else None


def origin_of_group(process: ProcessTrace, group: str, step: int) -> Place | None:
    """Return the op that gives a group its value at a step; None if unknown.

    Args:
        process: Recorded op by op.
        group: A column of the golden.
        step: The step.
    """
    roles = {"batches": Role.BATCH, "loss": Role.LOSS}
    for chunk in process.chunks():
        columns = chunk.columns
        ops = process.names.texts(Table.OP)
        at_step = columns["step"] == step
        wanted = at_step & (columns["role"] == roles.get(group, Role.STATE))
        for row in map(int, np.flatnonzero(wanted)):
            if group == "batches":
                return _place_of(process, _Operation("", chunk, row))
            if group == "loss" or ops[int(columns["op"][row])] == STEP_OP:
                return _producer(process, chunk, row, group)
        if chunk.rows and int(columns["step"][0]) > step:
            return None
    return None


def _producer(process: ProcessTrace, chunk: Chunk, row: int, group: str) -> Place | None:
    """Return the op that made the first input of a record, or the first input that belongs to a held group."""
    inputs = chunk.children["inputs"]
    positions = list(inputs.of(row))
    if group not in ("loss",):
        kinds = _held_kinds(process, chunk, row)
        singular = {
            "optimizer": "optimizer state",
            "parameters": "parameter",
            "gradients": "gradient",
            "buffers": "buffer",
        }
        positions = [at for at, kind in zip(positions, kinds, strict=False) if kind == singular.get(group)]
    for at in positions:
        distance = int(inputs.columns["producer"][at])
        if distance:
            found, index = process.record(chunk.number(row) - distance)
            return _place_of(process, _Operation("", found, index))
    return None


def _held_kinds(process: ProcessTrace, chunk: Chunk, row: int) -> list[str]:
    text = process.names.text(Table.ARGUMENTS, int(chunk.columns["arguments"][row])) or ""
    try:
        return [str(kind) for kind, _ in json.loads(text)]
    except (ValueError, TypeError):
        return []


def _place_of(process: ProcessTrace, operation: _Operation) -> Place:
    columns, row = operation.chunk.columns, operation.row
    stack = int(columns["forward_stack"][row])
    frames = process.names.stack(stack if stack != NONE else int(columns["stack"][row]))
    op = process.names.texts(Table.OP)[int(columns["op"][row])]
    return Place(op, int(columns["step"][row]), frames[0] if frames else None)


@dataclass(frozen=True)
class GoldenRequest:
    """A program, and how long to run it."""

    command: Sequence[str]
    steps: int | None = None
    copied: tuple[str, str] | None = None
    """The folder that the program runs in, and the folder that it copies; None for the working directory."""
    environment: Mapping[str, str] | None = None
    """The environment that it would have without recording; None for the current one."""


@dataclass
class GoldenRuns:
    """Makes the runs of one request, within a context; each trace is removed once it has been read."""

    request: GoldenRequest
    announce: Announce = unannounced
    warn: Callable[[str], None] = lambda message: None
    commit: str = NO_VALUE
    hides_output: bool = False
    """Whether the program's output is hidden in the first run, too."""
    _made: int = field(default=0, init=False)
    _level: Level = field(default=Level.STEP, init=False)
    _standard_input: StandardInput = field(default_factory=StandardInput, init=False)

    def __enter__(self) -> Self:
        self._standard_input.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._standard_input.__exit__(*exception)

    def ledger(self, title: str, *, steps: int | None = None) -> Ledger:
        """Run the program, and keep the state after each step.

        Args:
            title: Name of the run.
            steps: After how many steps it ends, if the request does not say.

        Raises:
            DeterminismError: It cannot be run or recorded, or it failed.
        """
        most = self.request.steps or steps
        if self._level is Level.STEP:
            with self._run(title, Level.STEP, most) as trace:
                try:
                    return ledger_of(trace, commit=self.commit)
                except UsageError:
                    if not _is_jax(trace):
                        raise
            # JAX holds no state that could be recorded after a step: the results of its ops are kept instead.
            self._level = Level.OP
        with self._run(f"{title} of JAX", Level.OP, most) as trace:
            return ledger_of(trace, commit=self.commit)

    @contextmanager
    def recorded(self, title: str, steps: int) -> Iterator[Trace]:
        """Run the program for a few steps, recorded op by op.

        Args:
            title: Name of the run.
            steps: After how many steps it ends.

        Raises:
            DeterminismError: It cannot be run or recorded, or it failed.

        Yields:
            The trace.
        """
        most = self.request.steps
        with self._run(title, Level.OP, steps if most is None else min(steps, most)) as trace:
            yield trace

    @contextmanager
    def _run(self, title: str, level: Level, steps: int | None) -> Iterator[Trace]:
        if not self._made:
            warning = check_interpreter(self.request.command, os.environ)
            if warning is not None:
                self.warn(warning)
        folder = Path(tempfile.mkdtemp(prefix="determinism-"))
        log = folder / "run.log" if self._made or self.hides_output else None
        self._made += 1
        spec = RunSpec(folder / "run", level=level.value, steps=steps, copied=self.request.copied)
        try:
            result = record_program(
                self.request.command,
                spec,
                log=log,
                on_progress=self.announce(title, log, part="" if log is None else "output not shown"),
                stdin=self._standard_input,
                environment=self.request.environment,
            )
            if result.exit_status:
                raise _failed(title, result.exit_status, log)
            require_recorded(folder / "run", result.exit_status)
            yield open_trace(folder / "run")
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _is_jax(trace: Trace) -> bool:
    return any(process.description.get("framework") == "jax" for process in trace.processes)


def _failed(title: str, status: int, log: Path | None) -> LaunchError:
    lines: list[str] = []
    if log is not None:
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        lines = text.splitlines()[-3:]
    return LaunchError(
        "golden-program-failed",
        f"In the {title}, the program ended with {exit_phrase(status)}, so nothing was compared. First make it run to "
        "completion.",
        *lines,
    )


def create_golden(runs: GoldenRuns, path: Path, *, update: bool = False) -> GoldenComparison | None:
    """Write the golden of a program, once a second run has shown that it is reproducible.

    Raises:
        DeterminismError: The file exists, or the program cannot be run or recorded.

    Returns:
        How the second run differs from the first; None if it does not, and the golden was written.
    """
    if path.exists() and not update:
        raise exists_already(path)
    require_writable(path)
    runs.commit = origin_of(Path.cwd(), path)
    first = runs.ledger("first run")
    second = runs.ledger("second run")
    first = _with_stable_generators(first, second)
    comparison = compare_ledgers(first, second)
    if comparison.verdict is not Verdict.SAME:
        return replace(comparison, is_nondeterministic=True)
    with runs.recorded("run with ops", 1) as trace:
        processes = [replace(process, operations=_operations(trace, process.key)) for process in first.processes]
    write_golden(path, text_of(replace(first, processes=processes)), update=update)
    return None


def _operations(trace: Trace, key: str) -> Sequence[str]:
    process = process_of(trace, key)
    return () if process is None else operation_digests(process)


def _with_stable_generators(first: Ledger, second: Ledger) -> Ledger:
    """Drop the generators whose states vary although nothing else does: what is drawn from them has no effect."""
    if _agree_apart_from_generators(first, second):
        processes = []
        for process in first.processes:
            other = second.process(process.key)
            states = [] if other is None else list(zip(process.generator_states, other.generator_states, strict=False))
            kept = tuple(
                place for place in process.generators
                if all(place < min(len(mine), len(its)) and mine[place] == its[place] for mine, its in states)
            )  # fmt: skip
            processes.append(process.counting(kept))
        return replace(first, processes=processes)
    return first


def _agree_apart_from_generators(first: Ledger, second: Ledger) -> bool:
    difference = compare_ledgers(first, second).difference
    return difference is not None and difference.group == "generators"


def check_golden(runs: GoldenRuns, path: Path) -> GoldenComparison:
    """Run a program and compare it with its golden; if it differs, run it again to find out why and where.

    Raises:
        DeterminismError: The golden cannot be read, or the program cannot be run or recorded.
    """
    golden = read_golden(path)
    runs.commit = origin_of(Path.cwd(), path)
    first = runs.ledger("run", steps=golden.steps)
    comparison = compare_ledgers(golden, first)
    if comparison.difference is None:
        return comparison
    second = runs.ledger("second run", steps=golden.steps)
    is_repeated = compare_ledgers(golden, second).difference == comparison.difference and (
        compare_ledgers(_with_stable_generators(first, second), second).verdict is Verdict.SAME
    )
    comparison = replace(comparison, is_nondeterministic=not is_repeated)
    return comparison if comparison.is_nondeterministic else with_place(comparison, golden, runs)


def with_place(comparison: GoldenComparison, golden: Ledger, runs: GoldenRuns) -> GoldenComparison:
    """Add the op and line of the first difference, from a run that is recorded op by op until then."""
    difference = comparison.difference
    stored = None if difference is None else golden.process(difference.process)
    if difference is None or stored is None:
        return comparison
    try:
        with runs.recorded("run with ops", difference.step + 1) as trace:
            place, is_first = _place(
                trace, stored.key, difference.group, difference.step, stored.operations, stored.operations_per_digest
            )
    except (LaunchError, TraceError) as error:
        if error.identifier == "interrupted":
            raise
        return comparison
    return replace(comparison, place=place, is_first_op=is_first)


def _place(
    trace: Trace, key: str, group: str, step: int, stored: Sequence[str], size: int
) -> tuple[Place | None, bool]:
    process = process_of(trace, key)
    if process is None:
        return None, False
    first = first_difference(process, stored, size) if step == 0 else None
    return (first, True) if first is not None else (origin_of_group(process, group, step), False)


def origin_of(folder: Path, golden: Path | None = None) -> str:
    """Return the commit that a folder is at, and whether files but the golden have changed since; `NO_VALUE` outside git."""
    commit = git(folder, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return NO_VALUE
    changed = (git(folder, "status", "--porcelain", "--untracked-files=no", "-z") or "").split("\0")
    own = "" if golden is None else golden.name
    is_changed = any(line and not ((own and line.endswith(f"/{own}")) or line[3:] == own) for line in changed)
    return f"{commit.strip()}{' with uncommitted changes' if is_changed else ''}"


_OF_HOOKS = frozenset(
    ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")
)
"""Variables that git sets for its hooks, and that point to the hook's work tree."""


def run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in a folder, with messages in English and without the user's hooks.

    Raises:
        OSError: It cannot be started.
    """
    command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false", *arguments]
    environ = {name: value for name, value in os.environ.items() if name not in _OF_HOOKS}
    return subprocess.run(
        command, cwd=folder, env={**environ, "LC_ALL": "C"}, capture_output=True, text=True, errors="replace", check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command; None if it fails or git is missing."""
    try:
        done = run_git(folder, *arguments)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
