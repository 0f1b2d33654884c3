"""The advice about a checkpoint names our callback for the trainer that the program uses, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from determinism.diagnose.checkpoints import NOT_LOADED, callback_advice

LIGHTNING = "import lightning as L\n\nL.Trainer(max_steps=4).fit(model, loader)\n"
HUGGING_FACE = "from transformers import Trainer\n\nTrainer(model).train()\n"


def advice(folder: Path, identifier: str, *sources: str) -> str:
    files = [folder / f"{number}.py" for number, _ in enumerate(sources)]
    for file, source in zip(files, sources, strict=True):
        file.write_text(source, encoding="utf-8")
    return callback_advice(identifier, map(str, files))


@pytest.mark.parametrize(
    ("identifier", "source", "module"),
    [
        ("rng-torch", LIGHTNING, "determinism.integrations.lightning"),
        ("rng-numpy", LIGHTNING.replace("lightning", "pytorch_lightning"), "determinism.integrations.lightning"),
        ("sampler-position", LIGHTNING, "determinism.integrations.lightning"),
        ("rng-python", HUGGING_FACE, "determinism.integrations.hugging_face"),
        ("sampler-position", HUGGING_FACE, "determinism.integrations.hugging_face"),
        ("rng-torch", HUGGING_FACE.replace("Trainer", "Seq2SeqTrainer"), "determinism.integrations.hugging_face"),
    ],
)
def test_the_callback_of_the_trainer_is_named(tmp_path: Path, identifier: str, source: str, module: str) -> None:
    assert f"DeterminismCallback of {module}" in advice(tmp_path, identifier, "import os", source)


@pytest.mark.parametrize(
    ("identifier", "source"),
    [
        # The callback does not save it.
        ("optimizer", LIGHTNING),
        ("rng-torch", "import torch\n\nmodel(batch).backward()\n"),
        # A tokenizer or a model, in a loop of the program's own.
        ("rng-torch", "import transformers\n\ntransformers.AutoModel.from_config(config)\n"),
        ("rng-torch", "from .transformers import Trainer\n\nTrainer(model).train()\n"),
        ("rng-torch", "not Python"),
    ],
)
def test_no_callback_is_named_where_none_helps(tmp_path: Path, identifier: str, source: str) -> None:
    assert advice(tmp_path, identifier, source) == ""


def test_a_callback_that_is_used_already_is_not_named(tmp_path: Path) -> None:
    used = "from determinism.integrations.lightning import DeterminismCallback\n"

    assert advice(tmp_path, "rng-torch", LIGHTNING, used) == ""
    assert callback_advice("rng-torch", [str(tmp_path / "gone.py")]) == ""


def test_a_call_that_may_never_run_is_not_said_to_have_run() -> None:
    """The call is read from the source: it may be in a branch that was not taken."""
    assert "contains a call of {save}" in NOT_LOADED and "Check that the call is reached" in NOT_LOADED
