"""`determinism bisect` on planted histories: it finds the commit that changed the results, and leaves the user's files alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.commands import TINY, Finished, run

FILES = {
    "train.py": """\
import torch

from data import batches
from model import Model

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in batches(8):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
    "model.py": """\
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.dropout = torch.nn.Dropout(0.1)
        self.second = torch.nn.Linear(8, 1)

    def forward(self, inputs):
        hidden = self.first(inputs)
        hidden = torch.relu(hidden)
        hidden = self.dropout(hidden)
        return self.second(hidden)
""",
    "data.py": """\
import torch


def batches(size):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(3 * size, 4, generator=generator)
    targets = inputs.sum(1, keepdim=True)
    for start in range(0, len(inputs), size):
        yield inputs[start : start + size], targets[start : start + size]
""",
    "notes.txt": "",
}


TINY_FILES = {
    "train.py": f"""\
import sys

sys.path.append({str(TINY)!r})
import tinyframe as frame

from model import Model

frame.manual_seed(0)
model = Model(lr=0.1)
for _ in range(3):
    model.step(frame.randn(8))
""",
    "model.py": """\
import tinyframe as frame


class Model:
    def __init__(self, lr):
        self.rate = frame.full(8, lr)
        self.weight = frame.randn(8)

    def step(self, inputs):
        self.weight = frame.subtract(self.weight, frame.multiply(self.rate, inputs))
        frame.step(weight=self.weight)
""",
    "notes.txt": "",
}
"""The same with the tiny framework: neither the commits that are tried nor the state of the user's files depends on the framework."""


class Edit(NamedTuple):
    """A commit that replaces a piece of text in a file."""

    file: str
    old: str
    new: str
    subject: str = "change"


class History(NamedTuple):
    """The commits after the first, and which of them must be found."""

    name: str
    commits: Sequence[Edit | str]
    """`note`: a commit that changes no code that runs."""
    bad: int
    """Number of the commit that changes the results, from 1."""


NOTE = "note"
SEED = Edit("train.py", "manual_seed(0)", "manual_seed(7)")
BROKEN = Edit("train.py", "model = Model(", "model = Modle(", "broken")
REPAIRED = Edit("train.py", "model = Modle(", "model = Model(", "repaired")
RENAMED = Edit("model.py", "self.first", "self.inner", "renamed a layer")
LOSS = "    loss = torch.nn.functional.mse_loss(model(inputs), targets)"
SPLIT = Edit(
    "train.py", LOSS, f"    output = model(inputs)\n{LOSS.replace('model(inputs)', 'output')}", "output has a name"
)


def after(count: int, edit: Edit, count_later: int = 1) -> tuple[list[Edit | str], int]:
    """Return `count` harmless commits, the edit and `count_later` harmless commits; and the number of the edit."""
    return [*[NOTE] * count, edit, *[NOTE] * count_later], count + 1


HISTORIES = [
    History("seed", *after(3, SEED, 3)),
    History("learning rate", *after(1, Edit("train.py", "lr=0.1", "lr=0.11"), 2)),
    History("order of layers", *after(2, Edit("model.py", "        hidden = torch.relu(hidden)\n        hidden = self.dropout(hidden)", "        hidden = self.dropout(hidden)\n        hidden = torch.relu(hidden + 0.1)"))),
    History("dropout", *after(4, Edit("model.py", "Dropout(0.1)", "Dropout(0.2)"))),
    History("initialization", *after(2, Edit("model.py", "Linear(8, 1)\n", "Linear(8, 1)\n        torch.nn.init.zeros_(self.second.bias)\n"))),
    History("dtype", *after(1, Edit("train.py", "torch.manual_seed(0)", "torch.set_default_dtype(torch.float64)\ntorch.manual_seed(0)"))),
    History("order of an addition", *after(2, Edit("data.py", "inputs.sum(1, keepdim=True)", "(((inputs[:, 3:] + inputs[:, 2:3]) + inputs[:, 1:2]) + inputs[:, :1])"))),
    History("order of the data", *after(3, Edit("data.py", "range(0, len(inputs), size)", "reversed(range(0, len(inputs), size))"))),
    History("size of the batches", *after(5, Edit("train.py", "batches(8)", "batches(6)"))),
    History("optimizer", *after(2, Edit("train.py", "SGD(model.parameters(), lr=0.1)", "SGD(model.parameters(), lr=0.1, momentum=0.9)"))),
    History("loss", *after(6, Edit("train.py", "mse_loss", "l1_loss"))),
    History("data in an imported module", *after(2, Edit("data.py", "manual_seed(1)", "manual_seed(2)"))),
    History("a refactoring before it", [RENAMED, NOTE, SPLIT, SEED, NOTE], 4),
    History("a refactoring after it", [NOTE, SEED, RENAMED, SPLIT, NOTE], 2),
    History("a broken commit before it", [NOTE, BROKEN, REPAIRED, SEED, NOTE], 4),
    History("broken commits after it", [NOTE, SEED, NOTE, BROKEN, NOTE, REPAIRED, NOTE], 2),
    History("undone and made again", [Edit("train.py", "lr=0.1", "lr=0.3"), Edit("train.py", "lr=0.3", "lr=0.1"), NOTE, NOTE, SEED], 5),
    History("a scheduler that acts late", *after(2, Edit("train.py", "    optimizer.step()\n", "    optimizer.step()\n    optimizer.param_groups[0]['lr'] *= 0.9\n"))),
    History("number of threads of no effect, then a gradient clipped", [Edit("train.py", "import torch\n", "import torch\n\ntorch.set_num_threads(1)\n"), NOTE, Edit("train.py", "    optimizer.step()", "    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)\n    optimizer.step()"), NOTE], 3),
    History("sixteen commits", *after(10, Edit("train.py", "loss.backward()", "(loss * 1.5).backward()"), 4)),
]  # fmt: skip


def git(folder: Path, *arguments: str) -> str:
    """Run git without the user's settings."""
    environment = {
        **os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org",
        "GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.org",
    }  # fmt: skip
    command = ["git", "-c", "init.defaultBranch=main", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def commit(folder: Path, change: Edit | str) -> str:
    """Make a commit and return its hash."""
    if isinstance(change, str):
        notes = folder / "notes.txt"
        notes.write_text(notes.read_text(encoding="utf-8") + "note\n", encoding="utf-8")
        subject = "note"
    else:
        file = folder / change.file
        text = file.read_text(encoding="utf-8")
        assert change.old in text
        file.write_text(text.replace(change.old, change.new), encoding="utf-8")
        subject = change.subject
    git(folder, "commit", "-q", "-a", "-m", subject)
    return git(folder, "rev-parse", "HEAD").strip()


def begin(folder: Path, files: Mapping[str, str] = TINY_FILES) -> str:
    """Create the repository, unless there is one, and its first commit; return the hash of the commit."""
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return git(folder, "rev-parse", "HEAD").strip()


def bisect(folder: Path, good: str, *options: str) -> Finished:
    """Run `determinism bisect` on the program."""
    return run(folder, "bisect", "--good", good, "--json", "result.json", *options, "--", sys.executable, "train.py")


def found(folder: Path) -> list[str]:
    """Return the commits that the last search found."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return [one["hash"] for one in result["commits"]]


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(
            history,
            id=history.name.replace(" ", "-"),
            marks=[] if history.name == "learning rate" else [pytest.mark.thorough("bisect")],
        )
        for history in HISTORIES
    ],
)
def test_the_commit_that_changed_the_results_is_found(tmp_path: Path, history: History) -> None:
    good = begin(tmp_path, FILES)
    hashes = [commit(tmp_path, change) for change in history.commits]
    finished = bisect(tmp_path, good)
    assert finished.status == 0, finished.text
    assert found(tmp_path) == [hashes[history.bad - 1]], finished.text
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    bad = history.commits[history.bad - 1]
    assert isinstance(bad, Edit)
    assert {line["file"] for line in result["lines"]} == {bad.file}
    assert result["comparison"]["nondeterministic"] is False
    assert git(tmp_path, "worktree", "list", "--porcelain").count("worktree ") == 1


def test_a_merge_is_searched_and_the_users_files_are_unchanged(tmp_path: Path) -> None:
    good = begin(tmp_path)
    commit(tmp_path, NOTE)
    git(tmp_path, "checkout", "-q", "-b", "side", good)
    bad = commit(tmp_path, Edit("train.py", "lr=0.1", "lr=0.2", "other rate"))
    git(tmp_path, "checkout", "-q", "main")
    git(tmp_path, "merge", "-q", "--no-ff", "-m", "merge", "side")
    (tmp_path / "train.py").write_text("an unfinished change", encoding="utf-8")
    (tmp_path / "untracked").write_text("kept", encoding="utf-8")
    before = git(tmp_path, "status", "--porcelain"), git(tmp_path, "rev-parse", "HEAD"), git(tmp_path, "branch", "-a")
    finished = bisect(tmp_path, good, "--bad", "main")
    (tmp_path / "result.json").rename(tmp_path.parent / "result.json")
    assert before == (
        git(tmp_path, "status", "--porcelain"),
        git(tmp_path, "rev-parse", "HEAD"),
        git(tmp_path, "branch", "-a"),
    )
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == "an unfinished change"
    assert "Uncommitted changes are not part of any commit" in finished.text
    assert found(tmp_path.parent) == [bad], finished.text
    result = json.loads((tmp_path.parent / "result.json").read_text(encoding="utf-8"))
    assert {line["file"] for line in result["lines"]} == {"train.py"}
    assert result["comparison"]["nondeterministic"] is False


def test_a_change_hidden_behind_broken_commits_is_a_range(tmp_path: Path) -> None:
    good = begin(tmp_path)
    broken = [commit(tmp_path, change) for change in (BROKEN, SEED)]
    last = commit(tmp_path, REPAIRED)
    finished = bisect(tmp_path, good)
    assert finished.status == 1, finished.text
    assert sorted(found(tmp_path)) == sorted([*broken, last])
    assert "cannot be tested" in finished.text


def test_ends_that_are_not_good_and_bad_are_refused(tmp_path: Path) -> None:
    good = begin(tmp_path)
    last = commit(tmp_path, NOTE)
    same = bisect(tmp_path, good)
    assert same.status == 2
    assert f"--bad {last[:12]} is good and not bad" in same.text
    assert "is not before --bad" in bisect(tmp_path, last, "--bad", good).text
    assert "'nowhere' is not a commit" in bisect(tmp_path, "nowhere").text


def test_a_golden_is_the_reference_in_a_subfolder(tmp_path: Path) -> None:
    folder = tmp_path / "below"
    folder.mkdir()
    git(tmp_path, "init", "-q")
    good = begin(folder)
    created = run(folder, "golden", "create", "train.golden", "--steps", "2", "--", sys.executable, "train.py")
    assert created.status == 0, created.text
    commit(folder, NOTE)
    bad = commit(folder, SEED)
    commit(folder, NOTE)
    finished = bisect(folder, good, "--golden", "train.golden")
    assert finished.status == 0, finished.text
    assert found(folder) == [bad]
    assert "manual_seed(7)" in finished.text
    assert str(tmp_path) not in finished.stdout.decode()
