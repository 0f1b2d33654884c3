"""Functions of JAX with a race in them, as programs have them."""

from __future__ import annotations

from typing import Any

import jax

from tests.e2e.programs.compiled_by_xla.racing_call import racing_sum


def doubled(values: Any) -> Any:
    """Twice a sum that is added up in any order."""
    return racing_sum(values * 2)


@jax.custom_vjp
def with_own_derivative(values: Any) -> Any:
    """The same with a derivative of its own."""
    return doubled(values)


with_own_derivative.defvjp(lambda values: (doubled(values), None), lambda saved, given: (given,))
