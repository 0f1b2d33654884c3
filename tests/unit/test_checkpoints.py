"""Whether the code that saves a checkpoint takes the state of a part, according to its source."""

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
def test_parts_that_the_saving_function_takes_are_recognised(
    part: str, line: int, is_saved: bool, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(TEXT, encoding="utf-8")
    assert is_saved_by(part, str(file), line) is is_saved


@pytest.mark.parametrize("content", [None, b"def (", b"\xff\xfe\x00", b"x = 1\n"])
def test_no_part_is_recognised_in_an_unreadable_file(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    if content is not None:
        file.write_bytes(content)
    assert not is_saved_by("rng-torch", str(file), 1)


def test_the_advice_says_how_to_load_the_part() -> None:
    text = fix_of_loading("rng-torch")
    assert PARTS["rng-torch"].load in text and "{" not in text
