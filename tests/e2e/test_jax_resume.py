"""`determinism check-resume` on JAX programs: its statements are correct for JAX."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from tests.e2e.checking import VALIDATOR
from tests.e2e.commands import Finished, run

TRAINING = """
    import os, sys
    import jax, jax.numpy as jnp, numpy as np
    import orbax.checkpoint as ocp
    import determinism

    steps, save, load, left_out = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    kept = {"parameters": jnp.zeros((4, 2)), "momentum": jnp.zeros((4, 2)), "key": jax.random.key_data(jax.random.key(0))}
    start, checkpointer = 0, ocp.StandardCheckpointer()
    if load:
        start = 3
        saved = {name: value for name, value in kept.items() if name != left_out}
        kept.update(checkpointer.restore(os.path.abspath(load), saved))

    @jax.jit
    def step(parameters, momentum, batch):
        gradient = jax.grad(lambda it: jnp.mean((batch @ it - 1) ** 2))(parameters)
        momentum = 0.9 * momentum + gradient
        return parameters - 0.1 * momentum, momentum

    for number in range(start, steps):
        key, drawn = jax.random.split(jax.random.wrap_key_data(kept["key"]))
        kept["key"] = jax.random.key_data(key)
        batch = jax.random.normal(drawn, (8, 4))
        kept["parameters"], kept["momentum"] = step(kept["parameters"], kept["momentum"], batch)
        determinism.step()
    checkpointer.save(os.path.abspath(save), {name: value for name, value in kept.items() if name != left_out})
    checkpointer.wait_until_finished()
"""
FLAX = """
    import os, sys
    import jax, jax.numpy as jnp, numpy as np, optax
    import orbax.checkpoint as ocp
    from flax import nnx
    import determinism

    steps, save, load, left_out, counted_by = int(sys.argv[1]), *sys.argv[2:6]

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first, self.norm = nnx.Linear(4, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
            self.dropout, self.last = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

        def __call__(self, inputs):
            return self.last(self.dropout(jax.nn.relu(self.norm(self.first(inputs)))))

    model = Net(nnx.Rngs(0, dropout=1))
    optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)
    is_key = lambda it: jnp.issubdtype(it.dtype, jax.dtypes.prng_key)

    def states():
        _, parameters, statistics, draws = nnx.split(model, nnx.Param, nnx.BatchStat, ...)
        found = {"parameters": parameters, "statistics": statistics, "draws": draws, "optimizer": nnx.state(optimizer)}
        return {name: state for name, state in found.items() if name != left_out}

    def saved():
        pure = {name: nnx.to_pure_dict(state) for name, state in states().items()}
        return jax.tree.map(lambda it: jax.random.key_data(it) if is_key(it) else it, pure)

    start, checkpointer = 0, ocp.StandardCheckpointer()
    if load:
        start = 3
        restored = checkpointer.restore(os.path.abspath(load), saved())
        for name, state in states().items():
            mine = nnx.to_pure_dict(state)
            wrapped = jax.tree.map(lambda it, new: jax.random.wrap_key_data(new) if is_key(it) else new, mine, restored[name])
            nnx.replace_by_pure_dict(state, wrapped)
            nnx.update(optimizer if name == "optimizer" else model, state)

    @nnx.jit
    def step(model, optimizer, inputs):
        loss, gradients = nnx.value_and_grad(lambda it: jnp.mean((it(inputs) - inputs.sum(1, keepdims=True)) ** 2))(model)
        optimizer.update(model, gradients)
        return loss

    batches = np.random.default_rng(0).normal(size=(8, 16, 4)).astype("float32")
    for number in range(start, steps):
        print(float(step(model, optimizer, jnp.asarray(batches[number]))))
        if counted_by == "determinism.step":
            determinism.step()
    checkpointer.save(os.path.abspath(save), saved())
    checkpointer.wait_until_finished()
"""
RIVALS = """
    import os, sys
    import jax, jax.numpy as jnp, numpy as np
    import determinism

    steps, save, load, left_out, counted_by = int(sys.argv[1]), *sys.argv[2:6]
    kept = {"judge": jnp.ones((4,)), "maker": jnp.ones((8, 4)) * 0.1}
    start = 0
    if load:
        start = 3
        saved = np.load(load + ".npz")
        kept.update({name: jnp.asarray(value) for name, value in saved.items()})

    def score(judge, maker, noise):
        return jnp.tanh((noise @ maker) @ judge).mean()

    @jax.jit
    def judge_step(judge, maker, noise):
        return judge + 0.1 * jax.grad(score)(judge, maker, noise)

    @jax.jit
    def maker_step(judge, maker, noise):
        return maker - 0.1 * jax.grad(score, 1)(judge, maker, noise)

    noises = np.random.default_rng(0).normal(size=(8, 16, 8)).astype("float32")
    for number in range(start, steps):
        noise = jnp.asarray(noises[number])
        kept["judge"] = judge_step(kept["judge"], kept["maker"], noise)
        kept["maker"] = maker_step(kept["judge"], kept["maker"], noise)
        if counted_by == "determinism.step":
            determinism.step()
    print(float(score(kept["judge"], kept["maker"], noise)))
    np.savez(save + ".npz", **{name: np.asarray(value) for name, value in kept.items() if name != left_out})
"""
OF_OTHER_FRAMEWORKS = ("torch", "recurrent", "trained or saved")


def check_resume(folder: Path, left_out: str, *more: str, program: str = TRAINING) -> Finished:
    (folder / "train.py").write_text(textwrap.dedent(program))
    command = [sys.executable, "train.py", "{steps}", "{save}", "{load}", left_out, *more]
    finished = run(folder, "check-resume", "--steps", "5", "--at", "3", "--json", "report.json", "--", *command)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    VALIDATOR.validate(report)
    return finished._replace(report=report)


def test_a_whole_checkpoint_is_the_same(tmp_path: Path) -> None:
    assert check_resume(tmp_path, "nothing").status == 0


@pytest.mark.parametrize(
    ("left_out", "identifier", "advice"),
    [("key", "rng-key", "jax.random.key_data(key)"), ("momentum", "carried-tensor", "the state of the optimizer")],
)
def test_missing_state_is_named_in_terms_of_jax(left_out: str, identifier: str, advice: str, tmp_path: Path) -> None:
    finished = check_resume(tmp_path, left_out)
    assert finished.report is not None
    (missing,) = finished.report["missing"]
    assert missing["id"] == identifier
    assert advice in missing["fix"]
    said = json.dumps(finished.report["story"]) + missing["fix"]
    assert not [word for word in OF_OTHER_FRAMEWORKS if word in said]


def test_functions_that_alternate_in_training_are_not_reported_as_different_when_they_count_the_steps(
    tmp_path: Path,
) -> None:
    finished = check_resume(tmp_path, "nothing", "training function", program=RIVALS)
    assert finished.report is not None
    assert finished.report["verdict"] != "different"
    if finished.report["verdict"] == "inconclusive":
        assert finished.report["trouble"][0]["id"] == "resume-steps-in-turns"
        assert "determinism.step()" in finished.report["trouble"][0]["message"]


@pytest.mark.parametrize(("left_out", "verdict"), [("nothing", "same"), ("judge", "different"), ("maker", "different")])
def test_functions_that_alternate_in_training_are_compared_when_the_program_counts_the_steps(
    left_out: str, verdict: str, tmp_path: Path
) -> None:
    finished = check_resume(tmp_path, left_out, "determinism.step", program=RIVALS)
    assert finished.report is not None and finished.report["verdict"] == verdict
    if verdict == "different":
        assert finished.report["first_divergence"]["step"] == 3


THOROUGH = pytest.mark.thorough("jax")
TRAINING_FUNCTION = pytest.param("training function", marks=THOROUGH)


@pytest.mark.parametrize("counted_by", ["determinism.step", TRAINING_FUNCTION])
def test_a_whole_checkpoint_of_flax_is_the_same(counted_by: str, tmp_path: Path) -> None:
    assert check_resume(tmp_path, "nothing", counted_by, program=FLAX).status == 0


@pytest.mark.parametrize("counted_by", ["determinism.step", TRAINING_FUNCTION])
@pytest.mark.parametrize(
    "left_out", ["draws", *(pytest.param(one, marks=THOROUGH) for one in ("parameters", "optimizer", "statistics"))]
)
def test_the_first_step_after_the_checkpoint_is_named(left_out: str, counted_by: str, tmp_path: Path) -> None:
    finished = check_resume(tmp_path, left_out, counted_by, program=FLAX)
    assert finished.report is not None
    divergence = finished.report["first_divergence"]
    assert (divergence["step"], divergence["op"]) == (3, "jax::jit(step)")
    assert [one["id"] for one in finished.report["missing"]] == ["carried-tensor"]
