"""`determinism check-resume` on JAX programs: what it says is true of JAX."""

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
OF_OTHER_FRAMEWORKS = ("torch", "recurrent", "trained or saved")


def check_resume(folder: Path, left_out: str) -> Finished:
    (folder / "train.py").write_text(textwrap.dedent(TRAINING))
    command = [sys.executable, "train.py", "{steps}", "{save}", "{load}", left_out]
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
def test_what_is_left_out_is_named_in_words_of_jax(left_out: str, identifier: str, advice: str, tmp_path: Path) -> None:
    finished = check_resume(tmp_path, left_out)
    assert finished.report is not None
    (missing,) = finished.report["missing"]
    assert missing["id"] == identifier
    assert advice in missing["fix"]
    said = json.dumps(finished.report["story"]) + missing["fix"]
    assert not [word for word in OF_OTHER_FRAMEWORKS if word in said]
