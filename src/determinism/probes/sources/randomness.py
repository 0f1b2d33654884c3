"""Entropy, the making and seeding of random generators, and draws from them."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from determinism.digest import digest_text
from determinism.probes.runtime import Function, SourceFunction, Use, Way, functions, stable_text

# Random bytes and names from the system. Fixed, they are derived from a count of the uses.

ENTROPY = "entropy"

_uses = itertools.count()


def _seeded(seed: int) -> Any:
    # Not imported before the program does: its folder may have a module of the same name.
    return import_module("random").Random(seed)


def _generator() -> Any:
    return _seeded(next(_uses))


def _bytes_noted(use: Use, value: Any) -> Any:
    use.note(lambda: stable_text(value))
    return value


def _bytes(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not use.is_fixed:
        return _bytes_noted(use, function(*arguments, **keywords))
    return _bytes_noted(use, _generator().randbytes(arguments[0] if arguments else keywords["size"]))


def _uuid(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not use.is_fixed:
        return _bytes_noted(use, function(*arguments, **keywords))
    uuid = sys.modules["uuid"]
    version = 1 if function is uuid.uuid1 else 4
    return _bytes_noted(use, uuid.UUID(int=_generator().getrandbits(128), version=version))


def _secret(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not use.is_fixed:
        return _bytes_noted(use, function(*arguments, **keywords))
    generator, name = _generator(), getattr(function, "__name__", "")
    if name in ("randbelow", "_randbelow_with_getrandbits"):
        return _bytes_noted(use, generator.randrange(*arguments, **keywords))
    if name in ("getrandbits", "choice"):
        return _bytes_noted(use, getattr(generator, name)(*arguments, **keywords))
    size = next(iter((*arguments, *keywords.values())), None) or 32
    made = generator.randbytes(size)
    if name == "token_bytes":
        return _bytes_noted(use, made)
    # The text has two digits per byte, or four letters per three bytes.
    letters = -(-size * 4 // 3)
    return _bytes_noted(use, made.hex() if name == "token_hex" else (made.hex() * 2)[:letters])


def _system_generator(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """A generator that asks the system for each number; it is noted where it is made."""
    use.note(lambda: "0" if use.is_fixed else os.urandom(8).hex())
    return _seeded(0) if use.is_fixed else function(*arguments, **keywords)


def _names() -> Iterator[str]:
    return (f"fixed{number:05}" for number in itertools.count())


def _temporary(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    tempfile: Any = sys.modules["tempfile"]
    if use.is_fixed and not isinstance(getattr(tempfile, "_name_sequence", None), type(_names())):
        tempfile._name_sequence = _names()
    result = function(*arguments, **keywords)
    named: Any = result[1] if isinstance(result, tuple) else getattr(result, "name", result)
    use.note(lambda: os.path.basename(os.fsdecode(named)))
    return result


ENTROPY_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(ENTROPY, _bytes, "os", "urandom getrandom"),
    *functions(ENTROPY, _uuid, "uuid", "uuid1 uuid4"),
    *functions(ENTROPY, _secret, "secrets", "token_bytes token_hex token_urlsafe randbelow randbits choice"),
    *functions(ENTROPY, _system_generator, "random", "SystemRandom"),
    *functions(ENTROPY, _temporary, "tempfile", "mkdtemp mkstemp mktemp NamedTemporaryFile TemporaryDirectory"),
)


# Draws from the global generators of Python and NumPy. Fixed, such a generator is seeded once, with 0, before its
# first draw.

PYTHON = "python-random"
NUMPY = "numpy-random"

_draw_seeded: set[str] = set()

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
    # This imports `random`, which a program that seeds or draws has already done.
    from determinism.rng import state_digests

    return f"generator {state_digests()[name].hex()}"


def _drawing(source: str, module: str, name: str) -> Way:
    """A way for the functions that draw from the global generator of a module, which has this name among states."""

    def way(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if use.is_fixed and source not in _draw_seeded:
            _draw_seeded.add(source)
            sys.modules[module].seed(0)
        use.note(lambda: _state(name))
        return function(*arguments, **keywords)

    return way


DRAW_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(PYTHON, _drawing(PYTHON, "random", "python"), "random", _PYTHON_DRAWS),
    *functions(NUMPY, _drawing(NUMPY, "numpy.random", "numpy"), "numpy.random", _NUMPY_DRAWS),
)


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


def _seeded_generator(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """A function that takes a seed, or entropy from the system if it gets none."""
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
    """A function that receives a seed."""
    seed = _seed_of(arguments, keywords)
    text = stable_text(seed)
    if text is None and hasattr(seed, "bit_generator"):
        # It is a generator that is passed on.
        return function(*arguments, **keywords)
    if use.is_fixed and not hasattr(seed, "spawn_key"):
        seed, text = _CONSTANT, stable_text(_CONSTANT)
    use.note(lambda: text, seeds=_seeded_libraries(function))
    return _called(function, seed, arguments, keywords)


def _with_streams(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`flax.nnx.Rngs`: a seed for all streams of keys, and optionally seeds for single streams, by name."""

    def is_seed(value: Any) -> bool:
        return hasattr(value, "__index__") and not hasattr(value, "dtype")

    texts = [stable_text(value) for value in (*arguments, *keywords.values()) if is_seed(value)]
    if not texts:
        return function(*arguments, **keywords)
    if use.is_fixed:
        arguments = tuple(_CONSTANT if is_seed(value) else value for value in arguments)
        keywords = {name: _CONSTANT if is_seed(value) else value for name, value in keywords.items()}
        texts = [stable_text(_CONSTANT)] * len(texts)
    use.note(lambda: " ".join(str(text) for text in texts), seeds=["jax"])
    return function(*arguments, **keywords)


def _seeded_libraries(function: Function) -> list[str]:
    """Return the libraries whose global generators a function seeds; none if it makes a generator, or seeds one that somebody made."""
    holder = getattr(function, "__self__", None)
    named = getattr(function, "__module__", None) or type(holder).__module__
    library = str(named).partition(".")[0]
    if library in _SEED_ALL:
        return [*_GLOBAL_GENERATORS, "tensorflow"] if library == "keras" else [*_GLOBAL_GENERATORS]
    if library not in _GLOBAL_GENERATORS:
        return [library]
    if isinstance(function, type) or getattr(function, "__name__", "") == "default_rng":
        return []
    module, name = _GLOBAL_GENERATORS[library]
    is_global = holder is None or holder is getattr(sys.modules.get(module), name, None)
    return [library] if is_global else []


_SEED_ALL = ("transformers", "accelerate", "lightning", "lightning_fabric", "keras")
"""Libraries with a function that seeds the global generators of all the others."""

_GLOBAL_GENERATORS = {
    "random": ("random", "_inst"),
    "numpy": ("numpy.random.mtrand", "_rand"),
    "torch": ("torch", "default_generator"),
}
"""The module and name of each library's global generator."""


def _drawn(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`torch.seed()` and `Generator.seed()` take a seed from the system and return it."""
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


def _from_the_system(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`tf.random.Generator.from_non_deterministic_state()`, whose state comes from the system; fixed, it is `from_seed`."""
    kind: Any = function.__self__  # type: ignore[attr-defined]
    # Noted before the generator is made, since the op that makes its state is recorded.
    use.note(lambda: "0" if use.is_fixed else os.urandom(8).hex())
    return kind.from_seed(_CONSTANT, *arguments, **keywords) if use.is_fixed else function(*arguments, **keywords)


def _state_text(made: Any, function: Function) -> str | None:
    """A text for the state of the generator that was made or seeded."""
    if made is None:
        made = getattr(function, "__self__", None)
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


SEEDING_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(UNSEEDED, _seeded_generator, "random", "seed Random"),
    *functions(
        UNSEEDED, _seeded_generator, "numpy.random",
        "seed default_rng RandomState RandomState.seed SeedSequence PCG64 PCG64DXSM MT19937 Philox SFC64",
    ),
    *functions(UNSEEDED, _drawn, "torch", "seed Generator.seed"),
    *functions(UNSEEDED, _drawn, "torch.cuda", "seed seed_all"),
    *functions(UNSEEDED, _from_the_system, "tensorflow", "random.Generator.from_non_deterministic_state"),
    *functions(VALUE, _with_value, "torch", "manual_seed Generator.manual_seed"),
    *functions(VALUE, _with_value, "torch.random", "manual_seed"),
    *functions(VALUE, _with_value, "torch.cuda", "manual_seed manual_seed_all"),
    *functions(VALUE, _with_value, "torch.mps", "manual_seed"),
    *functions(VALUE, _with_value, "jax.random", "PRNGKey key"),
    *functions(VALUE, _with_streams, "flax.nnx", "Rngs"),
    *functions(VALUE, _with_value, "tensorflow", "random.set_seed"),
    *functions(VALUE, _with_value, "keras", "utils.set_random_seed"),
    *functions(VALUE, _with_value, "transformers.trainer_utils", "set_seed"),
    *functions(VALUE, _with_value, "accelerate.utils.random", "set_seed"),
    *functions(VALUE, _with_value, "lightning.fabric.utilities.seed", "seed_everything"),
    *functions(VALUE, _with_value, "lightning_fabric.utilities.seed", "seed_everything"),
)  # fmt: skip
