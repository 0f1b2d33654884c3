"""`determinism status` as users see it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import COMMAND, run

ALERT = (
    "RuntimeError: max_unpooling2d_forward_out does not have a deterministic implementation, but you set "
    "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation"
)


def documented(folder: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
    """The document that `determinism status --json` prints."""
    finished = run(folder, "status", "--json", *arguments)
    assert finished.status == status, finished.text
    document: dict[str, Any] = json.loads(finished.stdout)
    assert list(document) == ["schema", "trouble", "answers"]
    assert document["schema"] == "determinism.status/1"
    return document


def test_by_default_the_answer_is_for_the_installed_version(tmp_path: Path) -> None:
    import torch

    finished = run(tmp_path, "status", "torch.Tensor.scatter_add_")
    assert finished.status == 0
    assert f"torch.Tensor.scatter_add_ PyTorch {torch.__version__}, installed" in finished.text
    assert "cuda forward always" in finished.text
    assert "torch.use_deterministic_algorithms(True)" in finished.text
    assert "\x1b" not in finished.text


def test_a_version_that_is_not_installed_can_be_queried(tmp_path: Path) -> None:
    finished = run(tmp_path, "status", "bias_add", "--framework", "tensorflow", "--version", "2.0")
    assert finished.status == 0
    assert "tf.nn.bias_add TensorFlow 2.0 " in finished.text
    assert "fwr13y.d9m.tensorflow.enable_determinism()" in finished.text
    assert "TF_DETERMINISTIC_OPS" not in finished.text.partition("Deterministic mode in")[0]


def test_the_text_of_an_error_can_be_pasted(tmp_path: Path) -> None:
    finished = run(tmp_path, "status", ALERT)
    assert finished.status == 0
    assert finished.text.startswith("torch.nn.MaxUnpool1d PyTorch")
    assert "torch.nn.MaxUnpool2d PyTorch" in finished.text


def test_an_unknown_op_is_an_error_with_suggestions(tmp_path: Path) -> None:
    finished = run(tmp_path, "status", "torch.scater_add")
    assert finished.status == 2
    assert finished.stdout == b""
    assert "determinism: Nothing is known about an op called 'torch.scater_add'" in finished.text
    assert "Did you mean torch.Tensor.scatter_add_" in finished.text

    document = documented(tmp_path, "torch.scater_add", status=2)
    assert [trouble["id"] for trouble in document["trouble"]] == ["op-unknown"]
    assert document["answers"] == []


@pytest.mark.parametrize(
    "arguments", [[], ["--all", "conv2d"], ["conv2d", "--device", "gpu7"], ["conv2d", "--verdict", "bad"]]
)
def test_wrong_use_prints_the_usage(arguments: list[str], tmp_path: Path) -> None:
    finished = run(tmp_path, "status", *arguments)
    assert finished.status == 2
    assert "Usage: determinism status" in finished.text


def test_all_ops_with_one_verdict_are_listed(tmp_path: Path) -> None:
    finished = run(tmp_path, "status", "--all", "--framework", "torch", "--version", "2.13", "--verdict", "raises")
    lines = finished.stdout.decode().splitlines()
    assert finished.status == 0
    assert any(line.startswith("torch.nn.MaxUnpool2d ") for line in lines)
    assert not any(line.startswith("torch.cumprod") for line in lines)
    assert any(line.endswith(" ops.") and " statuses of " in line for line in lines)

    older = run(tmp_path, "status", "--all", "--framework", "torch", "--version", "2.12", "--verdict", "raises")
    assert len(older.stdout.splitlines()) != len(lines)


def test_every_json_key_is_documented(tmp_path: Path) -> None:
    (answer,) = documented(tmp_path, "torch.histc", "--version", "2.13", "--device", "cuda")["answers"]
    page = (Path(__file__).parents[2] / "docs" / "knowledge.md").read_text(encoding="utf-8")
    keys = {*answer, *answer["mode"], *answer["statuses"][0], *answer["statuses"][0]["sources"][0]}

    assert (answer["op"], answer["framework"], answer["version"], answer["installed"]) == (
        "torch.histc",
        "torch",
        "2.13",
        False,
    )
    assert {one["deterministic"] for one in answer["statuses"]} == {"raises", "deterministic"}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_all_answers_are_available_as_json(tmp_path: Path) -> None:
    answers = documented(tmp_path, "--all")["answers"]
    assert len(answers) > 150
    assert {answer["framework"] for answer in answers} >= {"torch", "tensorflow", "jax", "nccl", "python"}


def test_no_framework_is_imported(tmp_path: Path) -> None:
    for name in ("torch", "tensorflow", "jax", "numpy", "pyarrow"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('imported')")
    code = "from determinism.__main__ import main; import sys; sys.argv = ['determinism', 'status', 'conv2d']; main()"
    finished = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path])},
    )
    assert finished.returncode == 0, finished.stderr
    assert "imported" not in finished.stderr


def test_it_answers_quickly(tmp_path: Path) -> None:
    """Measure processor time, since a busy machine adds to wall-clock time; allow more where Python itself starts slowly."""
    plain = min(processor_seconds([sys.executable, "-c", "pass"], tmp_path) for _ in range(10))
    answering = min(processor_seconds([*COMMAND, "status", "scatter_add"], tmp_path) for _ in range(10))
    assert answering < 0.200 * max(1.0, plain / 0.012)


def processor_seconds(command: list[str], folder: Path) -> float:
    """The processor time of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_it_loads_few_modules() -> None:
    code = (
        "import sys; from determinism.__main__ import main; sys.argv = ['determinism', 'status', 'scatter_add']\n"
        "try: main()\nexcept SystemExit: print('loaded', *sys.modules)"
    )
    loaded = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        .stdout.split("loaded ")[-1]
        .split()
    )
    assert "determinism.knowledge.query" in loaded
    assert {"rich", "numpy", "pyarrow", "email", "importlib.metadata", "packaging", "torch", "difflib"} & {
        *loaded
    } == set()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("torch.Tensor.scatter_add", "torch.Tensor.scatter_add_"), ("scatter_add_", "torch.Tensor.scatter_add_")],
)
def test_a_shell_completes_names_of_ops(typed: str, offered: str) -> None:
    asked = {"_DETERMINISM_COMPLETE": "bash_complete", "COMP_WORDS": f"determinism status {typed}", "COMP_CWORD": "2"}
    finished = subprocess.run(
        [sys.executable, "-m", "determinism"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **asked},
    )
    assert finished.stdout.splitlines()[0] == f"plain,{offered}", finished.stderr
