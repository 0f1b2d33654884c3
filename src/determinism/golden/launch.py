"""Makes goldens of a program, and runs it again to check them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from determinism.errors import LaunchError, TraceError, UsageError
from determinism.exit_status import exit_phrase
from determinism.golden.compare import compare_ledgers
from determinism.golden.ledger import NO_VALUE, Ledger, exists_already, ledger_of, read_golden, text_of, write_golden
from determinism.golden.operations import first_difference, operation_digests, origin_of_group, process_of
from determinism.golden.result import GoldenComparison, Place
from determinism.launch.interpreter import check_interpreter
from determinism.launch.io import StandardInput
from determinism.launch.program import Announce, unannounced
from determinism.launch.record import record_program
from determinism.launch.unrecorded import require_recorded
from determinism.run_spec import RunSpec
from determinism.trace.opening import open_trace
from determinism.trace.reader import Trace
from determinism.types import Level, Verdict


@dataclass(frozen=True)
class GoldenRequest:
    """A program, and how long it runs."""

    command: Sequence[str]
    steps: int | None = None
    copied: tuple[str, str] | None = None
    """The folder that the program runs in, and the one that it is a copy of; None for the working directory."""
    environment: Mapping[str, str] | None = None
    """The one that it would have without recording; None for the current one."""


@dataclass
class GoldenRuns:
    """Makes the runs of one request, a context; their traces are removed when they have been read."""

    request: GoldenRequest
    announce: Announce = unannounced
    warn: Callable[[str], None] = lambda message: None
    commit: str = NO_VALUE
    hides_output: bool = False
    """Whether what the program prints is hidden in the first run, too."""
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
            title: What the run is called.
            steps: After how many steps it ends, where the request does not say.

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
            # It holds no state that could be looked at after a step: what its ops give is kept instead.
            self._level = Level.OP
        with self._run(f"{title} of JAX", Level.OP, most) as trace:
            return ledger_of(trace, commit=self.commit)

    @contextmanager
    def recorded(self, title: str, steps: int) -> Iterator[Trace]:
        """Run the program, recorded op by op, for a few steps.

        Args:
            title: What the run is called.
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
        f"In the {title} the program ended with {exit_phrase(status)}, so nothing was compared. First make it run to "
        "its end.",
        *lines,
    )


def create_golden(runs: GoldenRuns, path: Path, *, update: bool = False) -> GoldenComparison | None:
    """Write the golden of a program, after a second run has shown that it can be met.

    Args:
        runs: Makes the runs.
        path: The file.
        update: Whether a file that is there may be replaced.

    Raises:
        DeterminismError: There is a file, or the program cannot be run or recorded.

    Returns:
        How the second run differs from the first; None if it does not, and the golden was written.
    """
    if path.exists() and not update:
        raise exists_already(path)
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
    """Without the generators whose states vary although nothing else does: what is drawn from them has no effect."""
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

    Args:
        runs: Makes the runs.
        path: The golden.

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
    """Add the op and line of the first difference, from a run that is recorded op by op up to there.

    Args:
        comparison: What is known.
        golden: What is expected.
        runs: Makes the run.
    """
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
    """The commit that a folder is at, and whether files were changed since; `NO_VALUE` outside of git.

    Args:
        folder: Where the program is run.
        golden: A file that does not count among what was changed.
    """
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
"""Variables that are set within a hook of git, and lead to the work tree that it belongs to."""


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
    """What a command of git prints; None if it fails or git is missing."""
    try:
        done = run_git(folder, *arguments)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
