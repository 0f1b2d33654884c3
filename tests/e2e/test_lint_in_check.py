"""`check` first tries the line that lint names: in one case it is the cause, in another it is not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.e2e.commands import TINY, run

PROGRAM = TINY / "registered.py"


def checked(folder: Path, how: str) -> dict[str, Any]:
    options = ("--budget", "120", "--no-fix", "--json", "report.json")
    ended = run(folder, "check", *options, "--", sys.executable, PROGRAM, how)
    assert ended.status == 1, ended.text
    report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return report


def line_of(mark: str) -> int:
    lines = PROGRAM.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


def test_the_line_that_lint_names_is_the_first_experiment(tmp_path: Path) -> None:
    report = checked(tmp_path, "order")
    (cause,) = report["causes"]
    assert (cause["id"], cause["status"], cause["sites"][0]["line"]) == ("hash-order", "confirmed", line_of("ORDER"))
    first = report["experiments"][0]
    assert (first["factor"], first["equal"]) == (f"set-order at registered.py:{line_of('ORDER')}", True)


def test_a_line_that_lint_names_but_is_not_the_cause_is_not_blamed(tmp_path: Path) -> None:
    report = checked(tmp_path, "noise")
    first = report["experiments"][0]
    assert (first["factor"], first["equal"]) == (f"set-order at registered.py:{line_of('ORDER')}", False)
    assert [(cause["id"], cause["status"]) for cause in report["causes"]] == [("generator-unseeded", "confirmed")]
    assert report["causes"][0]["sites"][0]["line"] == line_of("NOISE")


def test_a_line_that_lint_names_but_changes_no_tensor_is_mentioned_for_equal_runs(tmp_path: Path) -> None:
    """Such a program may print a different number each time."""
    program = tmp_path / "train.py"
    text = "import torch, random\nx = torch.ones(3).sum().item()\nprint(x + random.Random().randrange(10**7){shown})\n"
    program.write_text(text.format(shown=""))
    (tmp_path / "clean.py").write_text(
        "import torch, random\nprint(torch.ones(3).sum().item() + random.Random(1).random())\n"
    )
    ended = run(tmp_path, "check", sys.executable, "train.py")
    assert ended.status == 0 and "train.py:3 changed no tensor. It may be why printed numbers differ." in ended.text, (
        ended.text
    )
    assert "no tensor differs, but run 1 printed:" in ended.text
    program.write_text(text.format(shown=" > 0"))
    said = "changed no tensor. Perhaps it did not run; what the program computes without tensors is not compared."
    ended = run(tmp_path, "check", sys.executable, "train.py")
    assert ended.status == 0 and f"train.py:3 {said}" in ended.text, ended.text
    ended = run(tmp_path, "check", sys.executable, "clean.py")
    assert ended.status == 0 and said not in ended.text, ended.text
