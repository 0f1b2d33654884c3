"""The search in a function that XLA compiles finds the op that varies at any depth, and none in a function that does not vary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from determinism.digest import digest_bytes
from determinism.frameworks import array_capture
from determinism.frameworks.tensorflow.compiled import CompiledCall
from determinism.frameworks.tensorflow.functions import Library
from determinism.frameworks.tensorflow.session import earlier_functions
from tests.e2e.checking import line
from tests.e2e.programs.tensorflow import racing_call
from tests.tensorflow_runs import recorded

PROGRAM = "tensorflow/racing_call"


def failed(name: str, error: Exception) -> None:
    raise AssertionError(name) from error


def call_of(function: Any, *arguments: Any) -> CompiledCall:
    """A call of a function with the current contents of its variables."""
    concrete = function.get_concrete_function(*arguments)
    name = concrete.function_def.signature.name
    library = Library(failed)
    for inner, graph in earlier_functions():
        library.made(inner, graph)
    library.made(name, concrete.graph)
    variables = {id(one.handle): one for one in concrete.graph.variables}
    given = [(one.numpy(), False) for one in arguments if tf.is_tensor(one)]
    for external, _ in concrete.graph.captures:
        variable = variables.get(id(external))
        given.append((external.numpy(), False) if variable is None else (variable.numpy(), True))
    return CompiledCall(library, name, given, [content for content, _ in given], (), returns_variables=True)


@pytest.mark.parametrize(
    ("how", "functions"),
    [("plain", ()), ("called", ("summed",)), ("looped", ("while",)), ("chosen", ("cond",))],
)
def test_the_op_that_varies_is_found_with_its_line(how: str, functions: tuple[str, ...]) -> None:
    place = call_of(racing_call.step, racing_call.rows, how).varying_place(60)

    assert place is not None
    assert (place["op"], place["inside"]) == ("tf::XlaCustomCall[add_in_any_order]", functions)
    assert (place["line"], Path(place["file"]).name) == (line(PROGRAM, "SITE race"), "racing_call.py")


def test_a_function_that_does_not_vary_has_no_varying_op() -> None:
    assert call_of(racing_call.step, racing_call.rows, "stable").varying_place(60) is None


def test_running_a_call_returns_new_variable_contents_and_leaves_the_variables_alone() -> None:
    weights = tf.Variable([1.0, 2.0])

    @tf.function(jit_compile=True)
    def step(by: tf.Tensor) -> tf.Tensor:
        weights.assign_sub(by * weights)
        return tf.reduce_sum(weights)

    call = call_of(step, tf.constant(0.5))

    assert [one.tolist() for one in call.run()] == [1.5, [0.5, 1.0]]
    assert [one.tolist() for one in call.run()] == [1.5, [0.5, 1.0]]
    assert weights.numpy().tolist() == [1.0, 2.0]


def test_values_that_do_not_fit_into_memory_together_are_examined_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_capture, "_MOST_BYTES_INSIDE", racing_call.ELEMENTS * 4 + 1)

    place = call_of(racing_call.step, racing_call.rows, "plain").varying_place(60)

    assert place is not None and place["op"] == "tf::XlaCustomCall[add_in_any_order]"


def test_a_gradient_has_the_line_of_its_forward_op() -> None:
    @tf.function(jit_compile=True)
    def step(values: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = tf.reduce_sum((values @ values) ** 3)  # LINE product
        return tape.gradient(loss, values)

    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    expected = next(at for at, text in enumerate(lines, 1) if text.endswith("# LINE product"))
    products = [one for one in call_of(step, tf.ones([3, 3])).places() if one["op"] == "tf::MatMul"]

    assert [(one["line"], one["file"]) for one in products] == [(expected, __file__)]


def test_the_record_names_the_arguments_and_the_variables_that_it_read(tmp_path: Path) -> None:
    weights = tf.Variable([1.0, 2.0], name="weights")

    @tf.function(jit_compile=True)
    def step(samples: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        weights.assign_sub(rate * samples)
        return tf.reduce_sum(weights)

    found = recorded(tmp_path, lambda: step(tf.constant([1.0, 1.0]), tf.constant(0.5)))
    (record,) = found.ops("tf::step")

    assert record.input_paths == ("samples", "rate", "weights:0")
    assert [one.digest for one in record.outputs] == [
        digest_bytes(np.array(one, np.float32)) for one in (2.0, [0.5, 1.5])
    ]
