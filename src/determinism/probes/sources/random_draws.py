"""Draws from the global generators of Python and NumPy. Fixed, such a generator is seeded once, with 0, before its first draw."""

from __future__ import annotations

import sys
from typing import Any

from determinism.probes.source_function import Function, functions
from determinism.probes.use import Use

PYTHON = "python-random"
NUMPY = "numpy-random"

_seeded: set[str] = set()

_PYTHON_DRAWS = (
    "random uniform triangular randint choice randrange sample shuffle choices normalvariate lognormvariate expovariate"
    " vonmisesvariate gammavariate gauss betavariate paretovariate weibullvariate getrandbits randbytes binomialvariate"
)
_NUMPY_DRAWS = (
    "beta binomial bytes chisquare choice dirichlet exponential f gamma geometric gumbel hypergeometric laplace logistic"
    " lognormal logseries multinomial multivariate_normal negative_binomial noncentral_chisquare noncentral_f normal"
    " pareto permutation poisson power rand randint randn random random_integers random_sample ranf rayleigh sample"
    " shuffle standard_cauchy standard_exponential standard_gamma standard_normal standard_t triangular uniform vonmises"
    " wald weibull zipf"
)


def _state(name: str) -> str:
    # It imports `random`, which the program has done by now.
    from determinism.rng import state_digests

    return f"generator {state_digests()[name].hex()}"


def _from_python(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if use.is_fixed and PYTHON not in _seeded:
        _seeded.add(PYTHON)
        sys.modules["random"].seed(0)
    use.note(lambda: _state("python"))
    return function(*arguments, **keywords)


def _from_numpy(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if use.is_fixed and NUMPY not in _seeded:
        _seeded.add(NUMPY)
        sys.modules["numpy.random"].seed(0)
    use.note(lambda: _state("numpy"))
    return function(*arguments, **keywords)


FUNCTIONS = (
    *functions(PYTHON, _from_python, "random", _PYTHON_DRAWS),
    *functions(NUMPY, _from_numpy, "numpy.random", _NUMPY_DRAWS),
)
