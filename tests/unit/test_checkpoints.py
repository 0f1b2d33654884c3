"""Whether the code that saves a checkpoint takes the state of a part, read from its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from determinism.diagnose.checkpoints import PARTS, fix_of_loading, is_saved_by

TEXT = """
import torch, random, numpy as np

def save(model, sched, path):
    torch.save({"model": model.state_dict(), "sched": sched.state_dict(),
                "rng": torch.get_rng_state()}, path)

def draw():
    return random.getstate(), np.random.get_state()
"""


@pytest.mark.parametrize(
    ("part", "line", "is_saved"),
    [
        ("rng-torch", 5, True), ("rng-torch", 6, True), ("scheduler", 5, True), ("scaler", 5, False), ("rng-python", 5, False),
        ("rng-numpy", 9, True), ("rng-python", 9, True), ("rng-torch", 9, False), ("rng-python", 2, True), ("number", 5, False),
    ],
)  # fmt: skip
def test_what_the_function_that_saves_takes(part: str, line: int, is_saved: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(TEXT, encoding="utf-8")
    assert is_saved_by(part, str(file), line) is is_saved


@pytest.mark.parametrize("content", [None, b"def (", b"\xff\xfe\x00", b"x = 1\n"])
def test_of_a_file_that_cannot_be_read_nothing_is_said(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    if content is not None:
        file.write_bytes(content)
    assert not is_saved_by("rng-torch", str(file), 1)


def test_the_advice_names_how_it_is_loaded() -> None:
    text = fix_of_loading("rng-torch")
    assert PARTS["rng-torch"].load in text and "{" not in text
