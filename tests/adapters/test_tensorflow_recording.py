"""The recording of a TensorFlow program: every op with its line, inputs and result, in program order."""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from determinism.digest import digest_bytes
from determinism.types import Phase, Role
from tests.tensorflow_runs import Recorded, program, recorded


def test_an_eager_op_is_a_record_with_the_digest_of_its_result(tmp_path: Path) -> None:
    found = recorded(tmp_path, lambda: tf.sort(tf.constant([3.0, 1.0, 2.0])))
    made = found.ops("tf::TopKV2")[0].outputs[0]
    assert made.digest == digest_bytes(np.float32([-1.0, -2.0, -3.0]))


def test_ops_of_a_function_are_in_program_order_with_their_lines(tmp_path: Path) -> None:
    @tf.function
    def compute(x: tf.Tensor) -> tf.Tensor:
        ordered = tf.cumsum(x)
        return tf.reduce_sum(tf.scatter_nd([[0], [2], [2]], ordered, [4])) + tf.linalg.det(tf.eye(2))

    found = recorded(tmp_path, lambda: compute(tf.constant([1.0, 2.0, 3.0])))
    order = [one.op for one in found.entries if one.op in ("tf::Cumsum", "tf::ScatterNd", "tf::MatrixDeterminant")]
    assert order == ["tf::Cumsum", "tf::ScatterNd", "tf::MatrixDeterminant"]
    first = compute.python_function.__code__.co_firstlineno
    assert found.lines("tf::Cumsum") == [first + 2]
    assert found.lines("tf::ScatterNd") == [first + 3]
    (scattered,) = found.ops("tf::ScatterNd")
    assert scattered.inputs[-1].producer == found.ops("tf::Cumsum")[0].number


def test_each_iteration_of_a_loop_is_recorded_with_the_result_of_the_previous_one(tmp_path: Path) -> None:
    @tf.function
    def compute(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = tf.cumsum(x)
        return x

    found = recorded(tmp_path, lambda: compute(tf.ones([4])))
    sums = found.ops("tf::Cumsum")
    assert [one.inputs[0].producer for one in sums[1:]] == [one.number for one in sums[:-1]]
    assert sums[-1].outputs[0].digest == digest_bytes(np.cumsum(np.cumsum(np.cumsum(np.ones(4, np.float32)))))


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_only_the_branch_that_ran_is_recorded(tmp_path: Path, value: float) -> None:
    @tf.function
    def compute(x: tf.Tensor) -> tf.Tensor:
        return tf.cumsum(x) if tf.reduce_sum(x) > 0.0 else tf.math.cumprod(x)

    found = recorded(tmp_path, lambda: compute(tf.fill([2], value)))
    assert (len(found.ops("tf::Cumsum")), len(found.ops("tf::Cumprod"))) == ((1, 0) if value > 0.0 else (0, 1))


def test_gradients_have_the_backward_phase_and_the_name_of_their_layer(tmp_path: Path) -> None:
    found = recorded(tmp_path, program("keras_fit", "seeded"))
    backward = [one for one in found.entries if one.phase == Phase.BACKWARD]
    assert {one.module for one in backward if one.op == "tf::BiasAddGrad"} == {"sequential_1/dense_1"}
    assert {Phase(one.phase) for one in found.entries} >= {Phase.INIT, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}


def test_a_step_ends_with_the_optimizer_and_names_the_held_tensors(tmp_path: Path) -> None:
    found = recorded(tmp_path, program("keras_fit", "seeded"))
    ends = found.ops("determinism::step")
    assert [one.step for one in ends] == [0, 1, 2, 3, 4, 5]
    assert '["parameter", "sequential/dense/kernel"]' in ends[0].arguments
    assert '["optimizer state", "adam/' in ends[0].arguments
    written = {one.number for one in found.entries if "Assign" in one.op}
    assert {value.producer for value in ends[-1].inputs} <= written


def test_the_producer_of_a_variable_is_its_last_write(tmp_path: Path) -> None:
    def run() -> None:
        variable = tf.Variable([1.0, 2.0])
        variable.assign_add([1.0, 1.0])
        tf.cumsum(variable)

    found = recorded(tmp_path, run)
    (added,) = found.ops("tf::AssignAddVariableOp")
    assert added.outputs[0].digest == digest_bytes(np.float32([2.0, 3.0]))
    assert found.ops("tf::Cumsum")[0].inputs[0].producer == added.number


def test_batches_list_the_stages_of_their_pipeline(tmp_path: Path) -> None:
    def run() -> None:
        for batch in tf.data.Dataset.range(4).map(lambda x: x + 1, num_parallel_calls=2).batch(2):
            batch.numpy()

    batches = [one for one in recorded(tmp_path, run).entries if one.role is Role.BATCH]
    assert len(batches) == 2
    assert batches[0].arguments.startswith("Range(test_tensorflow_recording.py:")
    assert "ParallelMap(deterministic=default" in batches[0].arguments


@pytest.mark.parametrize(("deterministic", "racy"), [(False, ["unordered data pipeline"]), (True, None), (None, None)])
def test_options_that_allow_any_order_of_elements_are_noted(
    deterministic: bool | None, racy: list[str] | None, tmp_path: Path
) -> None:
    """Otherwise two runs that happen to agree would be judged equal without a further run."""

    def run() -> None:
        options = tf.data.Options()
        if deterministic is not None:
            options.deterministic = deterministic
        for value in tf.data.Dataset.range(3).map(lambda x: x + 1, num_parallel_calls=2).with_options(options):
            value.numpy()

    assert recorded(tmp_path, run).trace.processes[0].description.get("racy") == racy


def test_a_function_compiled_by_xla_is_one_record_and_a_blind_spot(tmp_path: Path) -> None:
    @tf.function(jit_compile=True)
    def compute(x: tf.Tensor) -> tf.Tensor:
        return tf.cumsum(x)

    found = recorded(tmp_path, lambda: compute(tf.ones([3])))
    assert [spot["id"] for spot in found.blind_spots] == ["xla"]
    assert found.ops("tf::compute")[0].outputs[0].digest == digest_bytes(np.float32([1.0, 2.0, 3.0]))
    assert not found.ops("tf::Cumsum")


def test_recording_does_not_run_unused_ops(tmp_path: Path) -> None:
    @tf.function
    def compute(x: tf.Tensor) -> tf.Tensor:
        tf.linalg.inv(tf.zeros([2, 2]) * x)
        return x + 1.0

    assert float(compute(tf.constant(1.0))) == 2.0
    assert not recorded(tmp_path, lambda: compute(tf.constant(1.0))).ops("tf::MatrixInverse")


def test_an_error_in_a_function_has_the_same_message_as_unrecorded(tmp_path: Path) -> None:
    @tf.function
    def compute(x: tf.Tensor) -> tf.Tensor:
        return tf.linalg.inv(x)

    def message() -> str:
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            compute(tf.zeros([2, 2]))
        return str(caught.value)

    expected = message()
    found: list[str] = []
    recorded(tmp_path, lambda: found.append(message()))
    assert found == [expected]


def test_a_failure_of_the_recorder_is_a_blind_spot_and_does_not_reach_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("determinism.frameworks.tensorflow.recorder.eager_argument_text", fail)
    found: Recorded = recorded(tmp_path, lambda: tf.cumsum(tf.ones([2])))
    assert found.blind_spots[0]["reason"] == "RuntimeError: planted"


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("is_mirrored", [False, True])
def test_a_read_of_a_variable_by_keras_counts_as_a_read_by_the_program(tmp_path: Path, is_mirrored: bool) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"]) if is_mirrored else tf.distribute.get_strategy()

    def read() -> None:
        with strategy.scope():
            keras.ops.convert_to_numpy(keras.Variable(keras.random.normal((3,))))

    found = recorded(tmp_path, read)
    (escaped,) = [one for one in found.entries if one.role == Role.ESCAPE]
    assert escaped.inputs[0].producer in {one.number for one in found.entries if one.role == Role.OP}
    assert not found.blind_spots


def test_a_function_traced_before_the_recording_is_recorded_with_lines_and_steps(tmp_path: Path) -> None:
    """The recording begins in the middle of the program."""
    weight = tf.Variable([1.0, 2.0])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([weight])

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cumsum(weight))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    step()
    found = recorded(tmp_path, step)
    first = step.python_function.__code__.co_firstlineno
    assert set(found.lines("tf::Cumsum")) == {first + 3, first + 4}
    assert len(found.ops("determinism::step")) == 1


def test_ops_of_other_threads_are_a_blind_spot(tmp_path: Path) -> None:
    def run() -> None:
        thread = threading.Thread(target=lambda: tf.cumsum(tf.ones([2])), name="beside")
        thread.start()
        thread.join()

    found = recorded(tmp_path, run)
    assert [(spot["id"], spot["what"]) for spot in found.blind_spots] == [("thread", "beside")]
    assert not found.ops("tf::Cumsum")


_calls: list[int] = []


def counted(value: np.ndarray[Any, Any]) -> Any:  # LINE counted
    _calls.append(int(value))
    return value


@cache
def seeds_of_a_layer() -> Any:
    """What a random layer of Keras draws its seeds from: a variable, which each call changes."""
    return keras.random.SeedGenerator(1)


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (lambda x: tf.numpy_function(counted, [x], tf.int64), "runs Python: counted at test_tensorflow_recording.py:"),
        (lambda x: tf.py_function(counted, [x], tf.int64), "runs Python: counted at test_tensorflow_recording.py:"),
        (lambda x: tf.cond(x > 1, lambda: tf.random.uniform([], 0, 9, tf.int64), lambda: x), "draws random numbers"),
        (lambda x: keras.random.uniform([], seed=seeds_of_a_layer()) + tf.cast(x, "float32"), "draws random numbers"),
    ],
    ids=["numpy_function", "py_function", "draw in a branch", "seeds of a layer"],
)
@pytest.mark.parametrize("in_parallel", [False, True])
def test_a_stage_that_may_vary_is_named_with_the_reason(
    stage: Any, words: str, in_parallel: bool, tmp_path: Path
) -> None:
    def run() -> None:
        calls = 2 if in_parallel else None
        samples = tf.data.Dataset.range(3).map(lambda x: x + 1).map(stage, num_parallel_calls=calls)
        for value in samples.prefetch(1):
            value.numpy()

    found = recorded(tmp_path, run)
    (stages,) = {one.arguments for one in found.ops("tf::IteratorGetNext")}

    # The stage that only adds is not listed.
    assert stages.count("Map(") == 1
    assert stages.rpartition(" > ")[2].startswith("ParallelMap(" if in_parallel else "Map(")
    assert words in stages
    if words.endswith(":"):
        lines = Path(__file__).read_text(encoding="utf-8").splitlines()
        assert f"{words}{next(at for at, text in enumerate(lines, 1) if text.endswith('# LINE counted'))}" in stages
    assert (found.trace.processes[0].description.get("racy") is not None) == in_parallel


def test_a_stage_that_draws_by_the_seed_of_each_element_may_not_vary(tmp_path: Path) -> None:
    def run() -> None:
        samples = tf.data.Dataset.range(3).map(lambda x: tf.random.stateless_uniform([], [x, 1]), num_parallel_calls=2)
        for value in samples:
            value.numpy()

    (stages,) = {one.arguments for one in recorded(tmp_path, run).ops("tf::IteratorGetNext")}
    assert "ParallelMap(" in stages and "draws random numbers" not in stages
