"""The search within a traced function finds the equation that varies, at any depth, and nothing if none varies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from determinism.frameworks import array_capture
from determinism.frameworks.jax.inside import equation_places, varying_place
from tests.e2e.checking import line
from tests.jax_races import doubled, with_own_derivative

VALUES = np.random.default_rng(0).normal(size=2000).astype("f") * 1e4


def place_in(function: Callable[..., Any], *args: Any) -> Any:
    return varying_place(jax.make_jaxpr(function)(*args), args, seconds=60)


@pytest.mark.parametrize(
    "function",
    [
        doubled,
        lambda values: jax.jit(doubled)(jnp.abs(values)) + 1,
        lambda values: jax.checkpoint(doubled)(values),
        lambda values: with_own_derivative(values),
        lambda values: jax.lax.cond(values[0] < 1e9, doubled, jnp.sum, values),
        lambda values: jax.lax.scan(lambda carry, row: (carry + doubled(row), carry), 0.0, values.reshape(4, -1))[0],
        lambda values: jax.lax.scan(
            lambda carry, row: (doubled(row) + carry, carry), 0.0, values.reshape(4, -1), reverse=True
        )[1],
        lambda values: jax.lax.while_loop(
            lambda state: state[0] < 3, lambda state: (state[0] + 1, doubled(values)), (0, 0.0)
        ),
        lambda values: jax.lax.while_loop(
            lambda state: doubled(values) * 0 + state[0] < 3, lambda state: (state[0] + 1, doubled(values)), (0, 0.0)
        ),
        lambda values: jax.lax.fori_loop(0, values.astype(int)[0] * 0 + 3, lambda _, one: one + doubled(values), 0.0),
    ],
    ids=[
        "plain",
        "jit",
        "checkpoint",
        "custom derivative",
        "branch",
        "scan",
        "reversed scan",
        "while",
        "while by a race",
        "fori",
    ],
)
def test_the_equation_is_found(function: Callable[..., Any]) -> None:
    place = place_in(function, VALUES)

    assert (place.op, place.line) == (
        "jax::ffi_call[add_in_any_order]",
        line("compiled_by_xla/racing_call", "SITE race"),
    )


@pytest.mark.parametrize("function", [jnp.sum, jax.grad(lambda values: jnp.sin(values).sum())])
def test_a_function_that_does_not_vary_has_no_varying_equation(function: Callable[..., Any]) -> None:
    assert place_in(function, VALUES) is None


def test_values_that_do_not_fit_into_memory_together_are_examined_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_capture, "_MOST_BYTES_INSIDE", VALUES.nbytes + 1)

    assert place_in(lambda values: jnp.sin(doubled(-jnp.abs(values))), VALUES).op.startswith("jax::ffi_call")


def test_each_equation_of_a_function_has_its_line_even_within_loops() -> None:
    def body(carry: Any, row: Any) -> Any:
        return carry.at[jnp.array([0, 0])].add(row), jnp.cos(row)  # LINE body

    def function(rows: Any) -> Any:
        return jax.lax.scan(body, jnp.zeros(3), rows)[0]

    places = equation_places(jax.make_jaxpr(function)(jnp.ones((4, 2))))
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    expected = next(at for at, line in enumerate(lines, 1) if line.endswith("# LINE body"))
    by_op = {one.op: one for one in places}

    assert by_op["jax::scatter-add"].line == by_op["jax::cos"].line == expected
    assert by_op["jax::scatter-add"].file == __file__
    assert by_op["jax::scatter-add"].inside == ("scan",)


def test_an_equation_on_several_devices_is_named_as_a_whole() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("part",))
    parts, whole = jax.sharding.PartitionSpec("part"), jax.sharding.PartitionSpec()

    def function(values: Any) -> Any:
        summed = jax.shard_map(
            lambda part: jax.lax.psum(doubled(part), "part"),
            mesh=mesh,
            in_specs=parts,
            out_specs=whole,
            check_vma=False,
        )
        return summed(values) + 1

    place = place_in(function, VALUES)
    assert (place.op, place.inside) == ("jax::shard_map", ())
    assert place.code.startswith("return summed(values)")
