"""The steps of a JAX program are detected: the training function is the one whose results are passed to it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import determinism
from determinism.comparison.runs import compare_runs
from determinism.trace.schema import Table
from determinism.types import Role, Verdict
from tests.jax_runs import Recorded, recorded

STEPS = 4


def batches() -> Any:
    generator = np.random.default_rng(0)
    for _ in range(STEPS):
        yield generator.normal(size=(16, 8)).astype("f"), generator.normal(size=(16, 4)).astype("f")


def loss_of(parameters: Any, x: Any, y: Any) -> Any:
    return jnp.mean((x @ parameters["w"] + parameters["b"] - y) ** 2)


def new_parameters() -> Any:
    return {"w": jax.random.normal(jax.random.key(0), (8, 4)), "b": jnp.zeros(4)}


def in_one_function(spoilt: int | None = None) -> None:
    optimizer = optax.adam(0.01)

    @jax.jit
    def train(parameters: Any, opt_state: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        updates, opt_state = optimizer.update(gradients, opt_state)
        return (
            optax.apply_updates(parameters, updates),
            opt_state,
            {"loss": loss, "norm": jnp.abs(gradients["b"]).sum()},
        )

    parameters = new_parameters()
    state = optimizer.init(parameters)
    for number, (x, y) in enumerate(batches()):
        parameters, state, metrics = train(parameters, state, x + (number == spoilt), y)
        print(float(metrics["loss"]))


def with_an_update_outside_of_jit() -> None:
    optimizer = optax.sgd(0.1, momentum=0.9)
    gradient = jax.jit(jax.value_and_grad(loss_of))
    parameters = new_parameters()
    state = optimizer.init(parameters)
    for x, y in batches():
        _, gradients = gradient(parameters, x, y)
        updates, state = optimizer.update(gradients, state)
        parameters = optax.apply_updates(parameters, updates)


def with_a_running_mean() -> None:
    """A small function receives its own result before the training function does."""

    @jax.jit
    def running(mean: Any, x: Any) -> Any:
        return 0.9 * mean + 0.1 * x.mean()

    train = jax.jit(lambda p, x, y: jax.tree.map(lambda a, g: a - 0.1 * g, p, jax.grad(loss_of)(p, x, y)))
    parameters, mean = new_parameters(), jnp.zeros(())
    for x, y in batches():
        mean = running(mean, x)
        parameters = train(parameters, x, y)


def with_a_train_state() -> None:
    state = TrainState.create(apply_fn=None, params=new_parameters(), tx=optax.adam(0.01))

    @jax.jit
    def train(state: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(state.params, x, y)
        return state.apply_gradients(grads=gradients), loss

    for x, y in batches():
        state, _ = train(state, x, y)


def with_nnx() -> None:
    model = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)

    @nnx.jit
    def train(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, gradients)
        return loss

    for x, y in batches():
        train(model, optimizer, x, y)


def with_pmap() -> None:
    """One device, whose parameters, batches and results have a leading axis; two other mapped functions do not train."""
    optimizer = optax.adam(0.01)

    def train(parameters: Any, opt_state: Any, batch: Any, clips: bool) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, *batch)
        gradients = jax.tree.map(lambda one: jnp.clip(one, -1, 1) if clips else one, gradients)
        updates, opt_state = optimizer.update(jax.lax.pmean(gradients, "devices"), opt_state)
        return optax.apply_updates(parameters, updates), opt_state, loss

    scaled = jax.pmap(lambda x: x / 2)
    evaluate = jax.pmap(loss_of)
    step = jax.pmap(train, axis_name="devices", static_broadcasted_argnums=(3,), donate_argnums=(0, 1))
    parameters, state = jax.tree.map(lambda one: one[None], (new_parameters(), optimizer.init(new_parameters())))
    for x, y in batches():
        x = scaled(x[None])
        parameters, state, loss = step(parameters, state, (x, y[None]), True)
        print(loss, evaluate(parameters, x, y[None]))


def without_a_loop() -> None:
    """Evaluation: results are not passed back in."""
    evaluate = jax.jit(loss_of)
    parameters = new_parameters()
    total = jnp.zeros(())
    for x, y in batches():
        total = total + evaluate(parameters, x, y)
    print(float(total))


def steps_of(run: Recorded) -> tuple[int, str | None]:
    description = run.trace.processes[0].description
    return description["steps"], description["steps_by"]


def held_of(run: Recorded) -> list[list[list[str]]]:
    """Kind and path of each held value, at the end of each step and of the process."""
    process = run.trace.processes[0]
    return [
        json.loads(process.names.text(Table.ARGUMENTS, int(chunk.columns["arguments"][row])))
        for chunk in process.chunks()
        for row in range(chunk.rows)
        if chunk.columns["role"][row] == Role.STATE
    ]


@pytest.mark.parametrize(
    "program",
    [in_one_function, with_an_update_outside_of_jit, with_a_running_mean, with_a_train_state, with_nnx, with_pmap],
    ids=lambda program: program.__name__,
)
def test_a_step_ends_before_the_training_function_is_called_again(program: Any, tmp_path: Path) -> None:
    assert steps_of(recorded(tmp_path, program)) == (STEPS, "training function")


def test_without_a_training_function_there_are_no_steps(tmp_path: Path) -> None:
    run = recorded(tmp_path, without_a_loop)

    assert steps_of(run) == (0, None)
    assert held_of(run) == [[]]


def test_explicit_steps_replace_detected_ones(tmp_path: Path) -> None:
    def program() -> None:
        train = jax.jit(lambda p, x, y: jax.tree.map(lambda a, g: a - 0.1 * g, p, jax.grad(loss_of)(p, x, y)))
        parameters = new_parameters()
        for x, y in batches():
            parameters = train(parameters, x, y)
            determinism.step()

    assert steps_of(recorded(tmp_path, program)) == (STEPS, "determinism.step")


def test_parameters_and_optimizer_states_are_distinguished_by_their_paths(tmp_path: Path) -> None:
    *_, last = held_of(recorded(tmp_path, in_one_function))

    assert [path for sort, path in last if sort == "parameter"] == ["parameters['b']", "parameters['w']"]
    assert {path for sort, path in last if sort == "optimizer state"} == {
        "opt_state[0].count", *(f"opt_state[0].{moment}['{name}']" for moment in ("mu", "nu") for name in "bw")
    }  # fmt: skip


def test_a_function_that_pmap_maps_has_its_own_name_and_the_paths_of_its_arguments(tmp_path: Path) -> None:
    run = recorded(tmp_path, with_pmap)

    mapped = [op for op in run.ops if "pmap" in op]
    assert mapped == ["jax::pmap(<lambda>)", "jax::pmap(train)", "jax::pmap(loss_of)"] * STEPS
    *_, last = held_of(run)
    assert [path for sort, path in last if sort == "parameter"] == ["parameters['b']", "parameters['w']"]
    assert ["optimizer state", "opt_state[0].mu['w']"] in last


def test_a_counter_is_a_buffer(tmp_path: Path) -> None:
    *_, last = held_of(recorded(tmp_path, with_a_train_state))

    assert ["buffer", "state.step"] in last
    assert ["parameter", "state.params['w']"] in last


def test_the_loss_is_the_number_named_loss(tmp_path: Path) -> None:
    run = recorded(tmp_path, in_one_function)

    printed = [float(line) for line in run.output.splitlines()]
    numbers = run.trace.processes[0].numbers
    assert [float(one["value"]) for one in numbers if one["meaning"] == 0] == pytest.approx(printed)


def test_a_difference_reaches_loss_parameters_and_optimizer_in_its_step(tmp_path: Path) -> None:
    runs = [recorded(tmp_path, lambda spoilt=spoilt: in_one_function(spoilt)) for spoilt in (None, 2)]
    comparison = compare_runs([run.trace for run in runs])

    assert comparison.first_divergence is not None
    assert comparison.first_divergence.step == 2
    reached = {found.what.split()[0]: found.step for found in comparison.infected}
    assert reached == {"loss": 2, "parameter": 2, "optimizer": 2, "value": 2}
    assert compare_runs([recorded(tmp_path, in_one_function).trace for _ in range(2)]).verdict is Verdict.SAME
