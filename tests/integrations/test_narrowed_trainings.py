"""A difference in a training with Lightning or the Transformers Trainer is narrowed from one of the trainer's checkpoints."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.commands import run

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.thorough("trainers")
@pytest.mark.parametrize("name", ["lightning_resumed", "hugging_face_resumed"])
def test_the_window_begins_at_a_checkpoint_of_the_trainer(name: str, tmp_path: Path) -> None:
    program = PROGRAMS / f"{name}.py"
    options = ("--no-explain", "--steps", "80", "--json", "report.json")
    words = (sys.executable, str(program), "{steps}", "{save}", "{load}")
    finished = run(tmp_path, "narrow", *options, "--", *words)

    assert finished.status == 1, finished.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    narrowing = report["narrowing"]
    assert (narrowing["step"], narrowing["checkpoint"], narrowing["pinned"]) == (60, 58, True), finished.stderr
    assert len(narrowing["windows"]) == 1
    site, *_ = report["causes"][0]["sites"]
    assert site["file"] == str(program)
