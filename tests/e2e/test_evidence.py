"""What further runs keep of the first divergence: the tensors of both runs, and the size of the difference."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from determinism.launch.io import OutputFolder, StandardInput
from determinism.launch.runs import CheckRequest, RunSeries
from tests.e2e.checking import check, check_command


@pytest.mark.parametrize(
    ("program", "kind", "inputs"),
    [
        ("late_dropout", "rng", {"self", "default_generator_state"}),
        pytest.param("random_scale", "argument", {"self"}, marks=pytest.mark.thorough("kinds")),
        pytest.param("numpy_write", "mutation", {"self", "mat1", "mat2"}, marks=pytest.mark.thorough("kinds")),
    ],
)
def test_values_of_two_further_runs_are_kept(program: str, kind: str, inputs: set[str], tmp_path: Path) -> None:
    report = check(tmp_path, program, options=("--budget", "0.01", "--explain", "--output", "traces"))
    first = report["first_divergence"]
    assert first["kind"] == kind
    assert report["evidence"] == {"source": "runs", "folder": str(tmp_path / "traces" / "evidence"), "note": ""}
    assert report["reproducer"] is None
    (output,) = first["outputs"]
    kept = [load_file(tmp_path / "traces" / "evidence" / f"run-{run}" / "outputs.safetensors") for run in (1, 2)]
    mine, other = (run["output_0"] for run in kept)
    assert list(mine.shape) == output["shape"]
    assert output["elements_different"] == int((mine.view("u4") != other.view("u4")).sum()) > 0
    assert output["max_abs"] == float(abs(mine.astype("f8") - other.astype("f8")).max())
    example = output["examples"][0]
    place = tuple(example["index"])
    assert (example["first"], example["second"]) == (f"{mine[place]:.9g}", f"{other[place]:.9g}")
    assert output["repeats"] is output["distinct"] is None
    for run in (1, 2):
        assert set(load_file(tmp_path / "traces" / "evidence" / f"run-{run}" / "inputs.safetensors")) == inputs


def test_two_further_runs_that_agree_do_not_give_the_size_of_the_difference(tmp_path: Path) -> None:
    report = check(
        tmp_path,
        "second_time",
        options=(
            "--budget",
            "0.01",
            "--explain",
        ),
    )
    first = report["first_divergence"]
    assert (first["kind"], first["op"]) == ("argument", "aten::mul.Tensor")
    assert report["evidence"]["note"] == (
        "Two further runs had equal values here, so the size of the difference is not known."
    )
    (output,) = first["outputs"]
    assert output["elements_different"] is output["max_abs"] is output["examples"] is None


def test_a_further_run_that_never_ends_is_stopped(tmp_path: Path) -> None:
    request = CheckRequest([sys.executable, "-c", "import time; time.sleep(600)"])
    output = OutputFolder(tmp_path / "traces")
    with StandardInput() as standard_input:
        series = RunSeries(request, output, standard_input, None, first_number=1)
        began = time.monotonic()
        series.make_capturing("run", "run", None, log=output.log("run"), capture={}, seconds=1.0)
    assert 1.0 <= time.monotonic() - began < 60


def test_a_program_that_removes_a_file_at_exit_is_not_stopped_before(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import atexit, os, sys, torch\n"
        "if os.path.exists('train.lock'):\n"
        "    sys.exit('It is running already.')\n"
        "open('train.lock', 'w').close()\n"
        "atexit.register(os.remove, 'train.lock')\n"
        "print(torch.full((3,), hash('salted') % 10**9 / 7).sum().item())\n"
    )
    options = ("--explain", "--budget", "0.01", "--output", "traces")
    report = check_command(tmp_path, [sys.executable, "train.py"], options=options).report
    assert report["first_divergence"]["outputs"][0]["elements_different"] == 3
    assert report["evidence"]["source"] == "runs"
    assert not (tmp_path / "train.lock").exists()
