"""`determinism check` on TensorFlow and Keras programs: the verdict, the first divergence, and its cause."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.checking import PROGRAMS, check_command
from tests.e2e.running import ENVIRONMENT


def checked(folder: Path, program: str, *words: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """Check a program of `programs/tensorflow`, and return the report."""
    command = [sys.executable, str(PROGRAMS / "tensorflow" / f"{program}.py"), *words]
    return check_command(folder, command, options=options, environment=ENVIRONMENT).report


def checked_until_different(folder: Path, program: str, *words: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """Check until an op varies, and return the report: on a busy machine, threads may not overlap."""
    for _ in range(20):
        report = checked(folder, program, *words, options=options)
        if report["verdict"] != "same":
            break
    return report


def test_a_fit_with_deterministic_ops_is_the_same(tmp_path: Path) -> None:
    report = checked(tmp_path, "op_determinism")
    assert report["verdict"] == "same"
    assert report["recorded"]["blind_spots"] == []
    assert report["recorded"]["steps"] == 8
    assert len(report["runs"]) == 2


def test_a_missing_seed_is_found_and_its_fix_verified(tmp_path: Path) -> None:
    report = checked(tmp_path, "missing_seed", options=("--budget", "600"))
    first = report["first_divergence"]
    assert (first["kind"], first["op"], first["step"]) == ("rng", "tf::RandomStandardNormal", 0)
    assert first["site"]["code"] == "weights = tf.Variable(tf.random.normal([4, 1]))"
    assert [(cause["id"], cause["status"]) for cause in report["causes"]] == [("seed-missing-tensorflow", "confirmed")]
    assert report["fixes"][0]["verified"]


@pytest.mark.thorough("tensorflow")
def test_a_generator_seeded_by_the_system_is_found_and_its_fix_verified(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import tensorflow as tf\ngenerator = tf.random.Generator.from_non_deterministic_state()\n"
        "print(generator.normal([4]).numpy())\n"
    )
    options = ("--budget", "600")
    report = check_command(tmp_path, [sys.executable, str(program)], options=options, environment=ENVIRONMENT).report
    causes = [(cause["id"], cause["status"], cause["sites"][0]["line"]) for cause in report["causes"]]
    assert causes == [("generator-unseeded", "confirmed", 2)]
    assert report["fixes"][0]["verified"]


def test_an_op_that_varies_is_repeated_on_its_inputs(tmp_path: Path) -> None:
    for _ in range(10):
        report = checked_until_different(tmp_path, "varying_ops", "crop", options=("--budget", "1"))
        if all(output["distinct"] not in (None, 1) for output in report["first_divergence"]["outputs"]):
            break
    first = report["first_divergence"]
    assert (first["kind"], first["op"], first["phase"]) == ("op", "tf::CropAndResizeGradImage", "backward")
    assert first["inputs_equal"] is True
    assert first["outputs"][0]["distinct"] > 1
    for _ in range(20):
        script = subprocess.run([sys.executable, report["reproducer"], "10"], capture_output=True, text=True)
        if script.returncode:
            break
    assert script.returncode == 1
    assert "distinct results in 10 repeats on equal inputs" in script.stdout


def test_a_scatter_with_duplicate_indices_is_found_where_the_variable_is_written(tmp_path: Path) -> None:
    report = checked_until_different(tmp_path, "varying_ops", "scatter", options=("--no-explain",))
    first = report["first_divergence"]
    assert first is not None
    assert (first["kind"], first["op"]) == ("op", "tf::ResourceScatterAdd")
    assert first["site"]["code"].startswith("totals.scatter_add(")


def test_the_order_of_a_set_is_found(tmp_path: Path) -> None:
    first = checked(tmp_path, "set_order")["first_divergence"]
    assert first["kind"] == "order"
    assert first["site"]["line"] == 13


def test_data_that_differs_is_named_by_the_argument_of_the_function(tmp_path: Path) -> None:
    report = checked(tmp_path, "batch_of_the_clock", options=("--budget", "1"))
    first = report["first_divergence"]
    assert first["kind"] == "data"
    (named,) = first["inputs"]
    assert (named["path"], named["dtype"], named["shape"]) == ("targets", "float32", [8, 2])
    assert (named["elements_different"], named["extent"]) == (4, [[3, 4], [0, 1]])
    assert [one["label"] for one in report["story"] if one["text"].startswith("targets: ")] == ["input 2"]


DATED = """
import os, time, tensorflow as tf
tf.keras.utils.set_random_seed(0)
weights = tf.Variable(tf.random.normal((4, 1)))
manager = tf.train.CheckpointManager(tf.train.Checkpoint(w=weights), os.path.join("runs", str(time.time_ns())), max_to_keep=2)
for step in range(2):
    weights.assign_sub(0.1 * tf.random.normal((4, 1)))
    manager.save()
manager.checkpoint.restore(manager.latest_checkpoint)
print(float(tf.reduce_sum(weights)))
"""
TEXT = """
import time, tensorflow as tf
print(tf.strings.upper(tf.constant(f"at {time.time_ns()}")).numpy())
"""
SESSION = """
import tensorflow as tf
tf.keras.utils.set_random_seed(0)
start = tf.random.normal((4,))
graph = tf.Graph()
with graph.as_default():
    given = tf.compat.v1.placeholder(tf.float32, (4,))
    total = given + tf.random.normal((4,))
    with tf.compat.v1.Session(graph=graph) as session:
        print(session.run(total, {given: start.numpy()}))
"""


def of_text(folder: Path, text: str) -> dict[str, Any]:
    (folder / "program.py").write_text(text)
    return check_command(
        folder, [sys.executable, "program.py"], options=("--no-explain",), environment=ENVIRONMENT
    ).report


def test_the_path_of_a_checkpoint_is_not_a_result(tmp_path: Path) -> None:
    assert of_text(tmp_path, DATED)["verdict"] == "same"


def test_a_string_that_the_program_reads_is_a_result(tmp_path: Path) -> None:
    report = of_text(tmp_path, TEXT)
    assert (report["verdict"], report["first_divergence"]["kind"]) == ("different", "data")


def test_graphs_that_a_session_runs_are_a_blind_spot(tmp_path: Path) -> None:
    report = of_text(tmp_path, SESSION)
    assert [(one["id"], one["count"]) for one in report["recorded"]["blind_spots"]] == [("session", 1)]


def test_a_checkpoint_left_by_an_earlier_run_is_seen_although_c_code_reads_it(tmp_path: Path) -> None:
    report = checked(tmp_path, "resuming", "checkpoint")
    assert report["verdict"] == "different"
    left = {(Path(one["file"]).name, one["changed_in"], one["read_in"], one["change"]) for one in report["leftovers"]}
    assert left == {("checkpoint", 1, 2, "created"), ("ckpt-1.index", 1, 2, "created")}
    (tmp_path / "kept" / "checkpoint").unlink()
    again = checked(tmp_path, "resuming", "checkpoint", options=("--fresh-copy",))
    assert again["verdict"] == "same" and again["leftovers"] == []


@pytest.mark.thorough("tensorflow")
def test_a_file_that_is_read_unseen_is_confirmed_by_a_copy_of_the_folder(tmp_path: Path) -> None:
    report = checked(tmp_path, "resuming", "weights", options=("--budget", "600"))
    assert report["leftovers"] == []
    assert [(cause["id"], cause["status"]) for cause in report["causes"]] == [("leftover-file", "confirmed")]
    assert any("last.weights.h5" in text for text in report["causes"][0]["evidence"])
