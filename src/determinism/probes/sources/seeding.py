"""Generators that are made or seeded: without a seed, and with one that may be another in each run. Fixed, it is 0."""

from __future__ import annotations

import sys
from typing import Any

from determinism.digest import digest_text
from determinism.probes.source_function import Function, functions
from determinism.probes.stable_text import stable_text
from determinism.probes.use import Use

UNSEEDED = "unseeded-generator"
VALUE = "seed-value"

_SEED_NAMES = ("seed", "a", "x", "entropy")
_CONSTANT = 0


def _seed_of(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if arguments:
        return arguments[0]
    return next((keywords[name] for name in _SEED_NAMES if name in keywords), None)


def _called(function: Function, seed: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Call a function with another seed."""
    if arguments:
        return function(seed, *arguments[1:], **keywords)
    name = next((name for name in _SEED_NAMES if name in keywords), None)
    return function(seed, **keywords) if name is None else function(**{**keywords, name: seed})


def _seeded(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """A function that takes a seed, and entropy from the system if it gets none."""
    seed = _seed_of(arguments, keywords)
    if seed is not None:
        return _with_value(use.of(VALUE), function, arguments, keywords)
    if use.is_fixed:
        result = _called(function, _CONSTANT, arguments, keywords)
    else:
        result = function(*arguments, **keywords)
    use.note(lambda: _state_text(result, function))
    return result


def _with_value(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """A function that is given a seed."""
    seed = _seed_of(arguments, keywords)
    text = stable_text(seed)
    if text is None and hasattr(seed, "bit_generator"):
        # A generator is passed on.
        return function(*arguments, **keywords)
    if use.is_fixed and not hasattr(seed, "spawn_key"):
        seed, text = _CONSTANT, stable_text(_CONSTANT)
    use.note(lambda: text, seeds=_seeded_library(function))
    return _called(function, seed, arguments, keywords)


def _seeded_library(function: Function) -> str:
    """The library whose generator a function seeds; of methods that of the object."""
    holder = getattr(function, "__self__", None)
    named = getattr(function, "__module__", None) or type(holder).__module__
    return str(named).partition(".")[0]


def _drawn(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`torch.seed()` and `Generator.seed()` take a seed from the system and give it."""
    if use.is_fixed:
        holder: Any = getattr(function, "__self__", None)
        if not hasattr(holder, "manual_seed"):
            holder = sys.modules["torch"]
        holder.manual_seed(_CONSTANT)
        result = _CONSTANT
    else:
        result = function(*arguments, **keywords)
    use.note(lambda: str(result))
    return result


def _state_text(made: Any, function: Function) -> str | None:
    """A text for the state of what was made or seeded."""
    if made is None:
        # It imports `random`, which a program that seeds has done by now.
        from determinism.rng import state_digests

        digests = state_digests()
        name = "numpy" if str(getattr(function, "__module__", "") or "").startswith("numpy") else "python"
        return f"generator {digests[name].hex()}"
    for name in ("bit_generator", "_bit_generator"):
        made = getattr(made, name, made)
    for name in ("state", "entropy"):
        state = getattr(made, name, None)
        if state is not None:
            return f"generator {digest_text(_flat(state)).hex()}"
    getstate = getattr(made, "getstate", None)
    return None if getstate is None else f"generator {digest_text(repr(getstate())).hex()}"


def _flat(state: Any) -> str:
    if isinstance(state, dict):
        return ",".join(f"{name}={_flat(part)}" for name, part in sorted(state.items()))
    to_bytes = getattr(state, "tobytes", None)
    return repr(state) if to_bytes is None else str(to_bytes().hex())


FUNCTIONS = (
    *functions(UNSEEDED, _seeded, "random", "seed Random"),
    *functions(
        UNSEEDED, _seeded, "numpy.random",
        "seed default_rng RandomState SeedSequence PCG64 PCG64DXSM MT19937 Philox SFC64",
    ),
    *functions(UNSEEDED, _drawn, "torch", "seed Generator.seed"),
    *functions(UNSEEDED, _drawn, "torch.cuda", "seed seed_all"),
    *functions(VALUE, _with_value, "torch", "manual_seed Generator.manual_seed"),
    *functions(VALUE, _with_value, "torch.random", "manual_seed"),
    *functions(VALUE, _with_value, "torch.cuda", "manual_seed manual_seed_all"),
    *functions(VALUE, _with_value, "torch.mps", "manual_seed"),
    *functions(VALUE, _with_value, "jax.random", "PRNGKey key"),
    *functions(VALUE, _with_value, "tensorflow", "random.set_seed"),
    *functions(VALUE, _with_value, "keras", "utils.set_random_seed"),
    *functions(VALUE, _with_value, "transformers.trainer_utils", "set_seed"),
    *functions(VALUE, _with_value, "accelerate.utils.random", "set_seed"),
    *functions(VALUE, _with_value, "lightning.fabric.utilities.seed", "seed_everything"),
    *functions(VALUE, _with_value, "lightning_fabric.utilities.seed", "seed_everything"),
)  # fmt: skip
