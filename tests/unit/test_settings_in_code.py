"""The settings that a program makes itself, as far as its source shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from determinism.knowledge.settings import Effect, Setting
from determinism.launch.doctor import settings_in_code

ALGORITHMS = "torch.use_deterministic_algorithms"
CUDNN = "torch.backends.cudnn.deterministic"


def missing_after(folder: Path, source: str, *, warn_only: bool = False) -> set[str]:
    """The settings that are still missing."""
    (folder / "train.py").write_text(source, encoding="utf-8")
    names = (ALGORITHMS, CUDNN, "seed", "PYTHONHASHSEED")
    settings = [Setting(name, "torch", None, None, Effect.MISSING, "", "") for name in names]
    found = settings_in_code(folder / "train.py").applied_to(settings, warn_only=warn_only)
    assert {one.effect for one in found} <= {Effect.MISSING, Effect.PROGRAM}
    return {one.name for one in found if one.effect is Effect.MISSING}


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("import lightning as L\nL.Trainer(deterministic=True)", {ALGORITHMS}),
        ("from pytorch_lightning import Trainer\nTrainer(max_epochs=1, deterministic=True)", {ALGORITHMS}),
        ("from lightning import seed_everything\nseed_everything(1, workers=True)", {"seed"}),
        ("from transformers import TrainingArguments\nTrainingArguments('out', full_determinism=True)", {ALGORITHMS, CUDNN}),
        ("import transformers\ntransformers.enable_full_determinism(1)", {ALGORITHMS, CUDNN, "seed"}),
        ("from accelerate.utils import set_seed\nset_seed(1)", {"seed"}),
        ("import determinism\ndeterminism.enable(seed=1)", {ALGORITHMS, CUDNN, "seed"}),
        ("import determinism\ndeterminism.enable(seed=args.seed)", {ALGORITHMS, CUDNN, "seed"}),
        ("import determinism\ndeterminism.enable()", {ALGORITHMS, CUDNN}),
        ("from determinism.integrations.ignite import DeterminismHandler\nDeterminismHandler(seed=1)", {ALGORITHMS, CUDNN, "seed"}),
        # Calls of something else, or calls that do not make the settings.
        ("import lightning as L\nL.Trainer(deterministic=False)", set()),
        ("import lightning as L\nL.Trainer(deterministic=args.deterministic)", set()),
        ("import lightning as L\nL.Trainer()", set()),
        ("import lightning as L\nL.Trainer(deterministic='warn')", set()),
        ("from mine import Trainer\nTrainer(deterministic=True)", set()),
        ("import determinism, faulthandler\nfaulthandler.enable()", set()),
        ("import lightning as L\nL.Trainer(", set()),
    ],
)  # fmt: skip
def test_settings_made_by_a_call_are_not_missing(source: str, made: set[str], tmp_path: Path) -> None:
    assert missing_after(tmp_path, source) == {ALGORITHMS, CUDNN, "seed", "PYTHONHASHSEED"} - made


def test_the_warn_only_mode_is_set_only_by_a_call_that_requests_it(tmp_path: Path) -> None:
    warns = "import lightning as L\nL.Trainer(deterministic='warn')"
    raises = "import lightning as L\nL.Trainer(deterministic=True)"
    assert ALGORITHMS not in missing_after(tmp_path, warns, warn_only=True)
    assert ALGORITHMS in missing_after(tmp_path, raises, warn_only=True)


def test_a_line_names_the_call_its_place_and_its_limits(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from transformers import TrainingArguments\n\nTrainingArguments(full_determinism=True)\n"
    )
    (line,) = settings_in_code(tmp_path / "train.py").lines
    assert line.startswith("TrainingArguments(full_determinism=True), train.py:3: torch.use_deterministic_algorithms")
    assert line.endswith("it seeds when the Trainer is created: a model that was built before is not seeded")
    assert settings_in_code(tmp_path / "absent.py").lines == ()
