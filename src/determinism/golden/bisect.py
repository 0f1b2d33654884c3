"""Finds the commit that changed what a program computes: `git bisect` in its own work tree, so that the user's files stay untouched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from determinism.errors import DeterminismError, LaunchError, UsageError
from determinism.golden.launch import GoldenRequest, GoldenRuns, git, run_git, with_place
from determinism.golden.ledger import Ledger, read_golden
from determinism.golden.result import GoldenComparison, answer, compare_ledgers, comparison_document
from determinism.launch.interpreter import find_executable, find_interpreter
from determinism.launch.program import Announce, unannounced
from determinism.types import Verdict


class Mark(StrEnum):
    """The result of testing a commit, in git's words."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"


@dataclass(frozen=True)
class Commit:
    """A commit of the user's repository."""

    hash: str
    subject: str
    date: str

    @property
    def short(self) -> str:
        """The first digits of its hash."""
        return self.hash[:12]


@dataclass(frozen=True)
class Tested:
    """A commit that was tested."""

    commit: Commit
    mark: Mark
    reason: str
    comparison: GoldenComparison | None = None


@dataclass(frozen=True)
class ChangedLine:
    """A line that a commit added, removed or changed."""

    file: str
    line: int
    """In the new file; for a removed line, a line next to it."""
    text: str
    """With a leading `+` or `-`."""


@dataclass(frozen=True)
class BisectResult:
    """The result of the search.

    Attributes:
        commits: The first bad commit; several if skipped commits lie between it and the last good one.
        tested: Every commit that was tested, in order.
        comparison: The golden compared with the first bad commit; None if that commit is not certain.
        lines: What that commit changed, starting with lines in the op's file.
    """

    commits: tuple[Commit, ...]
    tested: tuple[Tested, ...]
    comparison: GoldenComparison | None = None
    lines: tuple[ChangedLine, ...] = ()

    @property
    def is_certain(self) -> bool:
        """Whether a single commit was found."""
        return len(self.commits) == 1


@dataclass(frozen=True)
class BisectRequest:
    """What to search for."""

    command: Sequence[str]
    good: str
    bad: str
    golden: Path | None = None
    """None: use what the program computes at the good commit."""
    steps: int | None = None


class _WorkTree:
    """A work tree of the user's repository in a temporary folder; leaving the context removes it, along with the state of `git bisect`."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._parent = Path(tempfile.mkdtemp(prefix="determinism-bisect-")).resolve()
        self.folder = self._parent / repository.name

    def __enter__(self) -> Self:
        done = run_git(
            self._repository, "worktree", "add", "--quiet", "--detach", "--no-checkout", str(self.folder), "HEAD"
        )
        if done.returncode:
            shutil.rmtree(self._parent, ignore_errors=True)
            raise _failed("worktree add", done)
        return self

    def __exit__(self, *exception: object) -> None:
        # Without `--force`, git would refuse to remove a tree that the program wrote to.
        run_git(self._repository, "worktree", "remove", "--force", str(self.folder))
        shutil.rmtree(self._parent, ignore_errors=True)
        run_git(self._repository, "worktree", "prune")

    def git(self, *arguments: str) -> str:
        """Run git in the tree.

        Raises:
            LaunchError: It fails.
        """
        done = run_git(self.folder, *arguments)
        if done.returncode:
            raise _failed(" ".join(arguments[:2]), done)
        return done.stdout

    def check_out(self, commit: str) -> None:
        """Check out the files of a commit, and nothing else."""
        self.git("checkout", "--quiet", "--force", "--detach", commit)
        self.clean()

    def clean(self) -> None:
        """Remove what a run left behind, so that the next commit does not find it."""
        self.git("reset", "--quiet", "--hard")
        self.git("clean", "-ffdxq")


@dataclass
class Bisection:
    """A search in progress."""

    request: BisectRequest
    announce: Announce = unannounced
    say: Callable[[str], None] = lambda message: None
    """Receives each tested commit and its result."""
    tested: list[Tested] = field(default_factory=list)

    def run(self) -> BisectResult:
        """Search.

        Raises:
            DeterminismError: The search cannot begin or cannot finish.
        """
        repository, below = _repository()
        golden = None if self.request.golden is None else read_golden(self.request.golden)
        good, bad = (_commit(repository, revision) for revision in (self.request.good, self.request.bad))
        if good.hash == bad.hash or git(repository, "merge-base", "--is-ancestor", good.hash, bad.hash) is None:
            raise UsageError(
                "bisect-order",
                f"--good {self.request.good} ({good.short}) is not before --bad {self.request.bad} ({bad.short}), so "
                "nothing was searched. Give a good commit that is an ancestor of the bad one.",
            )
        if (git(repository, "status", "--porcelain", "--untracked-files=no") or "").strip():
            self.say(
                "Uncommitted changes are not part of any commit, so this search ignores them and leaves them as they "
                "are."
            )
        with _WorkTree(repository) as tree:
            return self._search(tree, _Place(repository, below), golden, good, bad)

    def _search(self, tree: _WorkTree, place: _Place, golden: Ledger | None, good: Commit, bad: Commit) -> BisectResult:
        runs = _Runs(self, tree, place)
        if golden is None:
            golden = runs.reference(good)
        else:
            self._require(runs.test(good, golden), Mark.GOOD, "--good")
        self._require(runs.test(bad, golden), Mark.BAD, "--bad")
        tree.check_out(bad.hash)
        output = tree.git("bisect", "start", "--no-checkout", bad.hash, good.hash)
        while (found := _first_bad(output)) is None:
            commit = _commit(tree.folder, "BISECT_HEAD")
            tested = runs.test(commit, golden)
            output = _bisect_output(run_git(tree.folder, "bisect", tested.mark.value, commit.hash))
        commits = tuple(_commit(tree.folder, revision) for revision in found)
        if len(commits) != 1:
            return BisectResult(commits, tuple(self.tested))
        known = next((one.comparison for one in self.tested if one.commit == commits[0]), None)
        comparison = known and runs.explained(commits[0], known, golden)
        return BisectResult(
            commits, tuple(self.tested), comparison, tuple(_changed_lines(tree.folder, commits[0], comparison))
        )

    def _require(self, tested: Tested, mark: Mark, option: str) -> None:
        if tested.mark is mark:
            return
        what = {Mark.GOOD: "agrees with", Mark.BAD: "differs from"}[mark]
        hint = (
            "Files that are not committed, including data, are missing in the search: name them by absolute paths, "
            "or commit them."
            if tested.mark is Mark.SKIP
            else "Give a different commit, or make the golden again at a commit that is known to be right."
        )
        raise UsageError(
            "bisect-ends",
            f"{option} {tested.commit.short} is {tested.mark} and not {mark}: {tested.reason}. A search needs a commit that {what} the "
            f"golden there, so nothing was searched. {hint}",
        )


@dataclass(frozen=True)
class _Place:
    repository: Path
    below: Path
    """The working directory, relative to the top of the repository."""


class _Runs:
    """Tests commits in the work tree."""

    def __init__(self, bisection: Bisection, tree: _WorkTree, place: _Place) -> None:
        self._bisection = bisection
        self._tree = tree
        self._place = place

    def reference(self, commit: Commit) -> Ledger:
        """Return what the program computes at the good commit, in place of a golden."""
        self._tree.check_out(commit.hash)
        with self._runs() as runs:
            first = runs.ledger(f"reference run of {commit.short}")
            second = runs.ledger(f"second run of {commit.short}")
        if compare_ledgers(first, second).verdict is not Verdict.SAME:
            raise UsageError(
                "bisect-nondeterministic",
                f"Two runs of --good {commit.short} differ from each other, so it cannot serve as the reference, and "
                "nothing was searched. Find the cause with `determinism check` first.",
            )
        return first

    def test(self, commit: Commit, golden: Ledger) -> Tested:
        """Test a commit, and report the result."""
        self._tree.check_out(commit.hash)
        tested = self._tried(commit, golden)
        self._bisection.tested.append(tested)
        self._bisection.say(f"{commit.short} {tested.mark.value.ljust(4)}  {commit.subject}  ({tested.reason})")
        return tested

    def _tried(self, commit: Commit, golden: Ledger) -> Tested:
        try:
            with self._runs() as runs:
                comparison = compare_ledgers(golden, runs.ledger(f"run of {commit.short}", steps=golden.steps))
        except DeterminismError as error:
            if error.identifier == "interrupted":
                raise
            return Tested(commit, Mark.SKIP, f"cannot be tested: {_first_sentence(error)}")
        difference = comparison.difference
        if difference is None:
            return Tested(commit, Mark.GOOD, "same", comparison)
        reason = f"differs at step {difference.step}: {difference.group}"
        return Tested(commit, Mark.BAD, reason, replace(comparison, commits=(golden.commit, commit.short)))

    def explained(self, commit: Commit, comparison: GoldenComparison, golden: Ledger) -> GoldenComparison:
        """Add the op and line of the first difference."""
        self._tree.check_out(commit.hash)
        with self._runs() as runs:
            second = compare_ledgers(golden, runs.ledger(f"second run of {commit.short}", steps=golden.steps))
            if second.difference != comparison.difference:
                return replace(comparison, is_nondeterministic=True)
            return self._with_own_paths(with_place(replace(comparison, is_nondeterministic=False), golden, runs))

    def _with_own_paths(self, comparison: GoldenComparison) -> GoldenComparison:
        """Replace the temporary work tree by the user's repository in paths outside the working directory."""
        place, there = comparison.place, str(self._tree.folder)
        if place is None or place.frame is None or not place.frame.file.startswith(f"{there}{os.sep}"):
            return comparison
        file = f"{self._place.repository}{place.frame.file[len(there) :]}"
        return replace(comparison, place=replace(place, frame=place.frame._replace(file=file)))

    def _runs(self) -> GoldenRuns:
        request = self._bisection.request
        folder = self._tree.folder / self._place.below
        if not folder.is_dir():
            raise LaunchError("bisect-no-folder", f"This commit has no folder {self._place.below}.")
        copied = (str(folder), str(self._place.repository / self._place.below))
        command = [self._word_there(word, folder) for word in request.command]
        golden_request = GoldenRequest(command, request.steps, copied, self._environment)
        return GoldenRuns(golden_request, self._bisection.announce, hides_output=True)

    def _word_there(self, word: str, folder: Path) -> str:
        """Redirect a path into the user's files to those of the commit; other words, such as `.venv/bin/python`, stay."""
        if "/" not in word:
            return word
        mine = Path(os.path.normpath(Path.cwd() / word))
        root = self._place.repository
        if not mine.is_relative_to(root) or not mine.exists():
            return word
        there = self._tree.folder / mine.relative_to(root)
        return (str(there) if Path(word).is_absolute() else word) if there.exists() else str(mine)

    @cached_property
    def _environment(self) -> dict[str, str]:
        """The environment of the runs, in which packages installed from the user's files are imported from the commit's."""
        root, there = self._place.repository, self._tree.folder
        folders = [
            str(there / Path(folder).relative_to(root))
            for folder in _import_folders(self._bisection.request.command)
            if Path(folder).is_relative_to(root) and "site-packages" not in folder
        ]
        own = os.environ.get("PYTHONPATH")
        return (
            {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, *([own] if own else [])])}
            if folders
            else {**os.environ}
        )


def _first_sentence(error: DeterminismError) -> str:
    text = error.lines[-1] if error.identifier == "golden-program-failed" and len(error.lines) > 1 else error.message
    return text.strip().partition(". ")[0].rstrip(".")


_IMPORT_FOLDERS = (
    "import os, sys; found = sys.path[1:]; maps = [getattr(m, 'MAPPING', {}) for n, m in sys.modules.items() if n.startswith('__editable__')]; "
    "found += [os.path.dirname(path) for mapping in maps for path in mapping.values()]; print('\\0'.join(found))"
)
"""Prints where an interpreter looks for modules, including editable installs."""


def _import_folders(command: Sequence[str]) -> list[str]:
    try:
        interpreter = find_interpreter(find_executable(command[0], os.environ), command[1:], os.environ)
        if interpreter is None:
            return []
        done = subprocess.run(
            [interpreter.path, "-c", _IMPORT_FOLDERS],
            cwd="/",
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
    except (LaunchError, OSError, subprocess.SubprocessError):
        # Starting the program will report what is wrong.
        return []
    return [os.path.realpath(folder) for folder in done.stdout.strip("\n").split("\0") if os.path.isabs(folder)]


# Git's output.


def _repository() -> tuple[Path, Path]:
    """Return the top of the repository around the working directory, and the working directory relative to it."""
    top = git(Path.cwd(), "rev-parse", "--show-toplevel")
    if top is None:
        raise UsageError(
            "bisect-no-repository",
            f"{Path.cwd()} is not in a git repository, or git is missing, so there are no commits to search. Run it in the repository of the program.",
        )
    root = Path(top.rstrip("\n")).resolve()
    return root, Path.cwd().resolve().relative_to(root)


def _commit(folder: Path, revision: str) -> Commit:
    # `--end-of-options`: a revision must not be mistaken for an option.
    name = git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    text = None if name is None else git(folder, "log", "-1", "--format=%H%x00%s%x00%as", name.strip())
    if text is None:
        raise UsageError(
            "bisect-revision",
            f"{revision!r} is not a commit of this repository, so nothing was searched. Give a hash, a tag or a branch.",
        )
    return Commit(*text.rstrip("\n").split("\0", 2))


def _failed(what: str, done: subprocess.CompletedProcess[str]) -> LaunchError:
    said = " ".join((done.stderr or done.stdout).split())[:300]
    return LaunchError(
        "bisect-git", f"git {what} failed ({said}), so the search ended without a commit. Your files are as they were."
    )


_FIRST_BAD = re.compile(r"^([0-9a-f]{40,64}) is the first bad commit", re.MULTILINE)
_ONLY_SKIPPED = "only 'skip'ped commits left"
_HASH = re.compile(r"^[0-9a-f]{40,64}$", re.MULTILINE)


def _bisect_output(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode and _ONLY_SKIPPED not in done.stdout:
        raise _failed("bisect", done)
    return done.stdout


def _first_bad(output: str) -> list[str] | None:
    """Return the commits that git has narrowed the search to; None while others remain to be tested."""
    if (found := _FIRST_BAD.search(output)) is not None:
        return [found[1]]
    return _HASH.findall(output) if _ONLY_SKIPPED in output else None


_MOST_LINES = 6
_MOST_KEPT_LINES = 1000
_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@")


def _changed_lines(folder: Path, commit: Commit, comparison: GoldenComparison | None) -> list[ChangedLine]:
    """Return the lines that a commit changed, starting with those in the op's file."""
    text = (
        git(
            folder,
            "show",
            "--format=",
            "--unified=0",
            "--no-color",
            "--no-ext-diff",
            "--first-parent",
            "-m",
            commit.hash,
        )
        or ""
    )
    lines: list[ChangedLine] = []
    file, number = "", 0
    for line in text.splitlines():
        if line.startswith("+++ ") or (line.startswith("--- ") and line != "--- /dev/null"):
            file = line[6:] if line != "+++ /dev/null" else file
        elif (hunk := _HUNK.match(line)) is not None:
            number = int(hunk[1])
        elif line.startswith(("+", "-")) and line[1:].strip():
            lines.append(ChangedLine(file, number, f"{line[0]} {line[1:].strip()}"))
            number += line[0] == "+"
    frame = None if comparison is None or comparison.place is None else comparison.place.frame
    if frame is not None:
        lines.sort(key=lambda one: (not frame.file.endswith(f"/{one.file}"), not one.file.endswith(".py")))
    return lines[:_MOST_KEPT_LINES]


# Reports.


def answer_lines(result: BisectResult) -> list[str]:
    """Return the lines shown to the user at the end."""
    if not result.is_certain:
        lines = [
            "No single commit found: those between the last good and the first bad one cannot be tested. It is one of:"
        ]
        return lines + [f"  {commit.short}  {commit.date}  {commit.subject}" for commit in result.commits]
    (commit,) = result.commits
    lines = [f"First bad commit: {commit.hash}", "", f"  {commit.date}  {commit.subject}"]
    lines += [f"  {line.file}:{line.line}  {line.text}" for line in result.lines[:_MOST_LINES]]
    if len(result.lines) > _MOST_LINES:
        lines.append(f"  and {len(result.lines) - _MOST_LINES} more lines: git show {commit.short}")
    skipped = sum(one.mark is Mark.SKIP for one in result.tested)
    if skipped:
        lines.append(f"  {skipped} of {len(result.tested)} commits could not be tested")
    return lines if result.comparison is None else [*lines, "", *answer(result.comparison)]


def bisect_document(result: BisectResult) -> dict[str, Any]:
    """Return the result as JSON, in the form that `docs/goldens.md` describes."""
    return {
        "format": "determinism.bisect/1",
        "commits": [vars(commit) for commit in result.commits],
        "tested": [{"commit": one.commit.hash, "mark": one.mark.value, "reason": one.reason} for one in result.tested],
        "lines": [vars(line) for line in result.lines],
        "comparison": None if result.comparison is None else comparison_document(result.comparison),
    }
