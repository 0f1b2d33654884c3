"""The benchmarks for GPUs: their models have the right sizes, their code runs, and without a GPU they say so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_the_models_have_the_published_numbers_of_parameters() -> None:
    import gpu_models

    with torch.device("meta"):
        resnet = gpu_models.resnet50()
        gpt = gpu_models.GPT(gpu_models.GPT2_SMALL)
    assert sum(parameter.numel() for parameter in resnet.parameters()) == 25_557_032
    # GPT-2 small has 124,439,808; here the head has separate weights.
    assert sum(parameter.numel() for parameter in gpt.parameters()) == 124_439_808 + 50_257 * 768


@pytest.mark.parametrize("level", ["op", "step", "host"])
def test_recorded_steps_are_compared_with_plain_ones(level: str) -> None:
    import gpu_models
    import gpu_overhead

    size = gpu_models.Size(layers=1, width=16, heads=2, tokens=8, batch=2, vocabulary=50)
    training = gpu_models.gpt2_small(torch.device("cpu"), torch.float32, size)
    found = gpu_overhead.measure(training, level, blocks=1, steps=2)
    # Level step has one record for all tensors of a group.
    assert found["records_per_step"] > (2 if level == "step" else 20)
    assert gpu_overhead.row(found | {"precision": "float32"})["recorded at"] == level


def test_resnet_trains() -> None:
    import gpu_models

    training = gpu_models.resnet50_images(torch.device("cpu"), torch.float32, batch=1, pixels=64)
    training.model.eval()
    assert training.step() > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["device_digest.py", "gpu_overhead.py"])
def test_without_a_gpu_nothing_is_measured_and_the_error_says_so(name: str) -> None:
    done = subprocess.run([sys.executable, str(FOLDER / name)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "finds no GPU here, so nothing was measured" in done.stderr
