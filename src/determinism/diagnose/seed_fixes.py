"""The smallest change of a program that makes a seed the same in every run."""

from __future__ import annotations

import ast
import textwrap

from determinism.diagnose.code_place import Change, Place, Unfixable, last_name
from determinism.probes.code_change import CodeChange

_SEEDS = ("seed", "default_rng", "random_state", "randomstate", "prngkey", "seedsequence", "generator")
"""Parts of the names of functions and variables that a value goes into which is a seed."""
_SEED_KEYWORDS = ("seed", "a", "x", "entropy", "random_state", "base_seed")
_CONVERSIONS = ("int", "float", "abs", "round", "hash", "str", "from_bytes")
_VARYING_MODULES = ("time", "datetime", "uuid", "secrets")
_VARYING_CALLS = (
    "time_ns",
    "perf_counter",
    "perf_counter_ns",
    "monotonic",
    "monotonic_ns",
    "getpid",
    "getppid",
    "urandom",
    "uuid1",
    "uuid4",
)


def constant_seed(place: Place) -> Change:
    """A value of the clock and the like that is used as a seed becomes a constant; what else the seed is made of stays.

    Raises:
        Unfixable: It is used as something else.
    """
    if not _goes_into_seed(place):
        raise Unfixable
    text, part = place.text, _varying_part(place)
    is_text = isinstance(part, ast.Call) and last_name(part.func) == "str"
    return [text.replaced(part, "'0'" if is_text else "0")], ()


def _goes_into_seed(place: Place) -> bool:
    text = place.text
    node: ast.AST = place.node
    while (parent := text.parent(node)) is not None and not isinstance(parent, ast.stmt):
        if isinstance(parent, ast.keyword) and parent.arg in _SEED_KEYWORDS:
            return True
        if isinstance(parent, ast.Call) and _is_of_seeds(last_name(parent.func)):
            return True
        node = parent
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    if isinstance(parent, ast.AnnAssign):
        targets = [parent.target]
    return any(_is_of_seeds(last_name(target)) for target in targets)


def _varying_part(place: Place) -> ast.expr:
    """The largest part of a seed around a source that is made of nothing but sources and constants."""
    text, part = place.text, place.node
    node: ast.AST = part
    while isinstance(parent := text.parent(node), ast.expr | ast.FormattedValue):
        if isinstance(parent, ast.JoinedStr):
            # Before Python 3.12 nobody knows where the parts of such a text stand.
            part = parent
        elif isinstance(parent, ast.expr) and _is_varying(parent, place.node, part):
            part = parent
        node = parent
    return part


def _is_varying(node: ast.expr, *known: ast.expr) -> bool:
    if node in known or isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.BinOp):
        return _is_varying(node.left, *known) and _is_varying(node.right, *known)
    if isinstance(node, ast.UnaryOp):
        return _is_varying(node.operand, *known)
    if isinstance(node, ast.Attribute | ast.Subscript):
        return _is_varying(node.value, *known)
    if not isinstance(node, ast.Call):
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return _is_varying_call(node.func, *known) and all(_is_varying(one, *known) for one in given)


def _is_varying_call(function: ast.expr, *known: ast.expr) -> bool:
    name = last_name(function)
    if name in _CONVERSIONS or name in _VARYING_CALLS:
        return True
    if isinstance(function, ast.Name):
        return name in _VARYING_MODULES
    if not isinstance(function, ast.Attribute):
        return False
    # A method of what a source gives, as in `datetime.now().timestamp()`.
    return _is_varying(function.value, *known) or _first_name(function) in _VARYING_MODULES


def _first_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return last_name(node)


def entropy(place: Place) -> Change:
    """A generator of the system's becomes one with a seed, and a seed from outside a constant."""
    call = place.call
    if last_name(call.func) == "SystemRandom":
        return [place.text.renamed(call.func, "Random"), place.text.first_argument(call, "0")], ()
    return constant_seed(place)


def unseeded(place: Place) -> Change:
    """A generator that is made or seeded without a seed gets one."""
    text, call = place.text, place.call
    if call.args:
        return [text.replaced(call.args[0], "0")], ()
    for keyword in call.keywords:
        if keyword.arg in _SEED_KEYWORDS:
            return [text.replaced(keyword.value, "0")], ()
    edits = [text.first_argument(call, "0")]
    # `torch.seed()` and `Generator.seed()` take no seed; `random.seed()` and `numpy.random.seed()` do.
    is_module = isinstance(call.func, ast.Attribute) and "random" in text.of(call.func.value).rpartition(".")[2]
    if last_name(call.func) in ("seed", "seed_all") and isinstance(call.func, ast.Attribute) and not is_module:
        if text.of(call.func.value) not in ("np.random", "numpy.random"):
            if last_name(call.func) == "seed" and not isinstance(text.parent(call), ast.Expr):
                # It gives the seed, and `manual_seed` the generator.
                return [text.replaced(call, f"{text.of(call.func.value)}.manual_seed(0).initial_seed()")], ()
            edits.append(text.renamed(call.func, f"manual_{last_name(call.func)}"))
    return edits, ()


def seed_value(place: Place) -> Change:
    """A seed that is given becomes a constant."""
    call = place.call
    keyword = next((one for one in call.keywords if one.arg in _SEED_KEYWORDS), None)
    if not call.args and keyword is None:
        raise Unfixable
    value = call.args[0] if keyword is None else keyword.value
    return [place.text.replaced(value, "0")], ()


def keeps_other_parts(change: CodeChange) -> bool:
    """Whether a changed seed is still made of something beside the constant, such as the rank of a process."""
    try:
        tree = ast.parse(textwrap.dedent(change.code))
    except SyntaxError:
        return False
    sums = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp)]
    return any(_is_zero(node.left) != _is_zero(node.right) for node in sums)


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in (0, "0") and node.value is not False


def _is_of_seeds(name: str) -> bool:
    return name == "Random" or any(part in name.lower() for part in _SEEDS)
