"""Two recordings of a TensorFlow program are the same if it is deterministic, and diverge where it varies."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.python.ops import stateful_random_ops

import determinism
from determinism.comparison.runs import compare_runs
from determinism.types import Kind, Phase, Verdict
from tests.tensorflow_runs import compared, compared_until_different, printed, program, recorded


@pytest.fixture(autouse=True)
def no_seed_is_left_from_another_test() -> None:
    tf.random.set_seed(None)


SAME = [
    ("keras_fit", "seeded"), ("keras_fit", "seeded", "compiled"), ("missing_seed", "seeded"), ("custom_loop",), ("nested_functions",),
    ("stateful_map", "stateless"), ("parallel_map", "in-order"), ("set_order", "sorted"),
]  # fmt: skip


@pytest.mark.parametrize("words", SAME, ids=" ".join)
def test_a_deterministic_program_is_the_same_and_prints_its_usual_output(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    run = program(*words)
    first, second = (recorded(tmp_path, run) for _ in range(2))
    comparison = compare_runs([first.trace, second.trace])
    assert comparison.verdict is Verdict.SAME, comparison.first_divergence
    assert first.output == second.output == printed(run)


def test_a_draw_without_a_seed_is_the_first_divergence(tmp_path: Path) -> None:
    first = compared(tmp_path, program("missing_seed")).first_divergence
    assert first is not None and first.site is not None
    assert (first.kind, first.op, first.step) == (Kind.RNG, "tf::RandomStandardNormal", 0)
    assert "tf.random.normal" in first.site.code


def test_a_layer_that_keras_seeds_itself_is_the_first_divergence(tmp_path: Path) -> None:
    first = compared(tmp_path, program("keras_fit")).first_divergence
    assert first is not None and first.site is not None
    assert (first.kind, first.op, first.phase) == (Kind.RNG, "keras::make_default_seed", Phase.INIT.label)
    assert first.site.code == 'keras.layers.Dense(16, activation="relu"),'


def test_a_draw_in_a_function_without_a_seed_is_the_first_divergence(tmp_path: Path) -> None:
    def run() -> tf.Tensor:
        return tf.function(lambda: tf.cumsum(tf.random.uniform([3])))()

    first = compared(tmp_path, run).first_divergence
    assert first is not None
    assert (first.kind, first.op) == (Kind.RNG, "tf::RandomUniform")


def test_elements_in_a_different_order_are_a_data_difference_of_the_batch(tmp_path: Path) -> None:
    first = compared_until_different(tmp_path, program("parallel_map")).first_divergence
    assert first is not None and first.site is not None
    assert (first.kind, first.op) == (Kind.DATA, "tf::IteratorGetNext")
    assert "ParallelMap(deterministic=false, parallel_map.py" in first.detail
    assert "for batch in data" in first.site.code


@pytest.mark.parametrize(
    ("which", "op", "phase"),
    [
        ("crop", "tf::CropAndResizeGradImage", Phase.BACKWARD),
        ("stitch", "tf::ParallelDynamicStitch", Phase.FORWARD),
        ("scatter", "tf::ResourceScatterAdd", Phase.FORWARD),
        ("eager-scatter", "tf::ResourceScatterAdd", Phase.INIT),
    ],
)
def test_an_op_that_varies_is_named_with_its_line(tmp_path: Path, which: str, op: str, phase: Phase) -> None:
    first = compared_until_different(tmp_path, program("varying_ops", which)).first_divergence
    assert first is not None and first.site is not None
    assert (first.kind, first.op, first.phase) == (Kind.OP, op, phase.label)
    assert Path(first.site.file).name == "varying_ops.py"


def test_a_difference_is_followed_through_a_scatter_to_a_later_read(tmp_path: Path) -> None:
    """A variable that was scattered into hands out copies, so every read has a different address."""
    messages = iter([1.0, 2.0])

    def run() -> tf.Tensor:
        totals = tf.Variable(tf.zeros([4]))
        totals.scatter_add(tf.IndexedSlices(tf.fill([2], next(messages)), tf.constant([0, 3])))
        return tf.reduce_sum(totals)

    first = compared(tmp_path, run).first_divergence
    assert first is not None
    assert (first.kind, first.op) == (Kind.DATA, "tf::Fill")


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("look", ["Shape", "Size", "Rank", "ZerosLike", "OnesLike", "Sign"])
def test_looking_at_the_shape_is_not_reading(look: str, in_graph: bool, tmp_path: Path) -> None:
    """A program in a temporary folder of its own lists other file names in each run, and as many of them."""
    messages = iter([1.0, 2.0])

    def looked(given: tf.Tensor) -> tf.Tensor:
        return getattr(tf.raw_ops, look)(**{"x" if look in ("OnesLike", "ZerosLike", "Sign") else "input": given})

    def run() -> tf.Tensor:
        return (tf.function(looked) if in_graph else looked)(tf.fill([2], next(messages)))

    comparison = compared(tmp_path, run)
    if look == "Sign":
        assert comparison.verdict is Verdict.DIFFERENT and comparison.absorbed
    else:
        assert comparison.verdict is Verdict.SAME and comparison.dead_differences


def test_an_argument_that_differs_is_named(tmp_path: Path) -> None:
    axes = iter([0, 1])

    def run() -> tf.Tensor:
        return tf.one_hot([0, 0], 2, axis=next(axes))

    first = compared(tmp_path, run).first_divergence
    assert first is not None
    assert (first.kind, first.op) == (Kind.ARGUMENT, "tf::OneHot")


def test_a_number_baked_into_a_function_is_an_argument(tmp_path: Path) -> None:
    numbers = iter([2.0, 3.0])

    def run() -> tf.Tensor:
        number = next(numbers)
        return tf.function(lambda x: tf.clip_by_value(tf.cumsum(x), 0.0, number))(tf.ones([5]))

    first = compared(tmp_path, run).first_divergence
    assert first is not None
    assert first.kind is Kind.ARGUMENT
    assert "2.0" in first.detail and "3.0" in first.detail


def test_a_difference_that_nothing_reads_is_dead(tmp_path: Path) -> None:
    def run() -> tf.Tensor:
        weights = tf.Variable(tf.random.normal([3]))
        weights.assign([1.0, 2.0, 3.0])
        return tf.cumsum(weights)

    comparison = compared(tmp_path, run)
    assert comparison.verdict is Verdict.SAME
    assert comparison.dead_differences > 0


def test_the_state_of_a_generator_before_it_was_seeded_does_not_count_as_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> tf.Tensor:
        monkeypatch.setattr(stateful_random_ops, "global_generator", tf.random.Generator.from_non_deterministic_state())
        with determinism.enable(seed=1):
            return tf.cumsum(tf.random.get_global_generator().uniform([3]))

    comparison = compared(tmp_path, run)
    assert comparison.verdict is Verdict.SAME, comparison.first_divergence
