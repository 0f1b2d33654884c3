"""A state is saved and restored by Orbax together with a model's parameters."""

from __future__ import annotations

import random
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from determinism.errors import StateError
from determinism.state import capture, from_tree, restore


def test_a_state_is_restored_with_the_parameters(tmp_path: Path) -> None:
    key = jax.random.key(3)
    own = np.random.default_rng(7)
    own.random()
    parameters = {"weights": jax.numpy.arange(4.0)}
    state = capture(key=key, own=own, step=2**40)
    tree = {"parameters": parameters, "run": state.to_tree()}
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(tmp_path / "last", tree)
    checkpointer.wait_until_finished()
    expected = [random.random(), own.random(), *np.random.rand(2)]

    restored = checkpointer.restore(tmp_path / "last", tree)
    found = from_tree(restored["run"])
    restore(found, own=own)
    assert [random.random(), own.random(), *np.random.rand(2)] == expected
    assert found.step == 2**40
    assert jax.random.normal(found["key"], (3,)).tolist() == jax.random.normal(key, (3,)).tolist()


@pytest.mark.parametrize("tree", [{}, {"determinism": np.zeros(40, np.uint8)}, {"determinism": "text"}])
def test_a_tree_without_a_state_is_refused(tree: dict[str, object]) -> None:
    with pytest.raises(StateError, match="cannot be read as a state"):
        from_tree(tree)
