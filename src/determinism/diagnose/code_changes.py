"""The smallest changes to a program's lines that remove a source of nondeterminism, and what only the author can change."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from determinism.diagnose.parsed_module import (
    Edit,
    Function,
    Loop,
    Module,
    assigned,
    counter_of,
    given_to,
    is_none,
    keyword_of,
    last_part,
    parameters,
)
from determinism.diagnose.program_flow import MADE_SEEDS, Program
from determinism.diagnose.sources import LedBy, Source, SourceSite
from determinism.probes.runtime import Elements
from determinism.run_spec import CodeChange, FixedSource

Change = tuple[list[Edit], tuple[str, ...]]
"""Edits, and the imports that they need."""


class Unfixable(Exception):
    """No small change exists for this expression."""


# An expression of a program that uses a source, and how to inspect it.


@dataclass(frozen=True)
class Place:
    """An expression of a program that uses a source."""

    module: Module
    node: ast.expr
    source: Source

    @property
    def call(self) -> ast.Call:
        """The expression, which is a call.

        Raises:
            Unfixable: It is not a call.
        """
        if not isinstance(self.node, ast.Call):
            raise Unfixable
        return self.node


# All calls on a line, each taken as the use of a source: for when the recorder knows the line, but nothing noted the
# expression.


def possible_uses(held: FixedSource) -> list[Source]:
    """Return every call that begins on a line: for a held generator those that make one first, then the outermost first; empty if the
    file cannot be read.
    """
    module = Module.read(held.file)
    if module is None:
        return []
    code = module.lines[held.line - 1].strip() if held.line else ""
    calls = [node for node in module.nodes if isinstance(node, ast.Call) and node.lineno == held.line]
    if held.source == "unseeded-generator":
        calls.sort(key=lambda call: not (_takes_seed(call) or last_part(call.func) in _MAKE_GENERATORS))
    inner = [
        node.name
        for node in module.nodes
        if isinstance(node, Function) and node.lineno < held.line <= (node.end_lineno or node.lineno)
    ]
    return [source_of(node, held, code, inner[-1] if inner else "<module>") for node in calls]


def source_of(call: ast.Call, held: FixedSource, code: str, function: str = "") -> Source:
    """Return a call of the program's text as the use of a source, about which no run noted anything.

    Args:
        call: The call.
        held: Its line, and the source that it uses.
        code: The line's text.
        function: The name of the enclosing function; empty if unknown.
    """
    end_line, end_column = call.end_lineno or call.lineno, call.end_col_offset or 0
    site = SourceSite(held.file, call.lineno, call.col_offset, end_line, end_column, function, code)
    return Source(held.source, site, "", None, "", (0, 0), None, 0, (0, 0), (None, None))


# The smallest change to a program that makes a seed the same in every run.

_SEEDS = ("seed", "default_rng", "random_state", "randomstate", "prngkey", "seedsequence", "generator")
"""Parts of the names of functions and variables that take a seed."""
_GENERATORS = ("generator", "default_rng", "randomstate", "seedsequence")
"""Parts of the names of functions that make a generator."""
_MAKE_GENERATORS = ("Random", "PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_SETS_SEED = ("seed", "manual_seed", "manual_seed_all", "set_seed", "seed_all", "set_random_seed")
_SEED_KEYWORDS = ("seed", "a", "x", "entropy", "random_state", "base_seed")
_STREAMS = "Rngs"
"""The function of Flax that takes a seed for all streams of keys, and one for each that it is given by name."""
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
    """Replace a value of the clock and the like that is used as a seed with a constant; the rest of the seed stays.

    Raises:
        Unfixable: It is not used as a seed.
    """
    if not _goes_into_seed(place) or _takes_seed(place.node):
        raise Unfixable
    module, part = place.module, _varying_part(place)
    is_text = isinstance(part, ast.Call) and last_part(part.func) == "str"
    return [module.replaced(part, "'0'" if is_text else "0")], ()


def _takes_seed(node: ast.expr) -> bool:
    """Whether a call makes or seeds a generator, so that a constant cannot replace it."""
    name = last_part(node.func).lower() if isinstance(node, ast.Call) else ""
    return name in _SETS_SEED or any(part in name for part in _GENERATORS)


def _goes_into_seed(place: Place) -> bool:
    module = place.module
    for node, parent in pairwise(module.outwards(place.node)):
        if isinstance(parent, ast.stmt):
            break
        if isinstance(parent, ast.keyword) and parent.arg in _SEED_KEYWORDS:
            return True
        if isinstance(parent, ast.Call) and (_is_of_seeds(last_part(parent.func)) or _is_named_seed(parent)):
            return True
        if isinstance(parent, ast.Dict) and any(
            value is node and key is not None and _is_of_seeds(_name_of(key))
            for key, value in zip(parent.keys, parent.values, strict=True)
        ):
            return True
    if isinstance(parent, ast.Return):
        return _is_of_seeds(_name_of_function(module, parent))
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    if isinstance(parent, ast.AnnAssign):
        targets = [parent.target]
    return any(_is_of_seeds(_name_of(target)) for target in targets)


def _name_of(target: ast.expr) -> str:
    """Return the last name or the key of what is assigned to; empty if it has neither."""
    if isinstance(target, ast.Subscript):
        target = target.slice
    return str(target.value) if isinstance(target, ast.Constant) else last_part(target)


def _name_of_function(module: Module, node: ast.AST) -> str:
    """Return the name of the enclosing function; empty if there is none."""
    return next((one.name for one in module.outwards(node) if isinstance(one, Function)), "")


_WITH_DEFAULT = ("add_argument", "option", "setdefault", "get", "getenv", "pop")


def _is_named_seed(call: ast.Call) -> bool:
    """Whether a call looks up a seed by name, such as a command-line option: its other argument is the default."""
    names = (one.value for one in call.args if isinstance(one, ast.Constant))
    return last_part(call.func) in _WITH_DEFAULT and any("seed" in str(name).lower() for name in names)


def _varying_part(place: Place) -> ast.expr:
    """Return the largest part of a seed around a source that consists only of sources and constants."""
    part = place.node
    for node in takewhile(lambda one: isinstance(one, ast.expr), place.module.outwards(part)):
        # Before Python 3.12, the parts of an f-string have no reliable positions.
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.expr) and _is_varying(node, place.node, part)):
            part = node
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
    return _is_varying_call(node.func, *known) and all(_is_varying(one, *known) for one in given_to(node))


def _is_varying_call(function: ast.expr, *known: ast.expr) -> bool:
    name = last_part(function)
    if name in _CONVERSIONS or name in _VARYING_CALLS:
        return True
    if isinstance(function, ast.Name):
        return name in _VARYING_MODULES
    if not isinstance(function, ast.Attribute):
        return False
    # A method of a source's result, as in `datetime.now().timestamp()`.
    return _is_varying(function.value, *known) or _first_name(function) in _VARYING_MODULES


def _first_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return last_part(node)


def entropy(place: Place) -> Change:
    """Replace a generator of the operating system with a seeded one, and a seed from outside with a constant."""
    call = place.call
    if last_part(call.func) == "SystemRandom":
        return [place.module.renamed(call.func, "Random"), place.module.first_argument(call, "0")], ()
    if any(part in last_part(call.func).lower() for part in _GENERATORS):
        # The bytes were read inside it, or for it.
        return unseeded(place)
    return constant_seed(place)


def unseeded(place: Place) -> Change:
    """Give a seed to a generator that is made or seeded without one."""
    module, call = place.module, place.call
    given = next(iter(_seeds_given(call)), None)
    if given is not None:
        # It was None in these runs, and may be a seed in others.
        may_be_given = isinstance(given, ast.Name | ast.Attribute)
        return [
            module.replaced(
                given, f"0 if {module.text_of(given)} is None else {module.text_of(given)}" if may_be_given else "0"
            )
        ], ()
    edits = [module.first_argument(call, "0")]
    if last_part(call.func) == "from_non_deterministic_state":
        return [*edits, module.renamed(call.func, "from_seed")], ()
    # `torch.seed()` and `Generator.seed()` take no seed; `random.seed()`, `numpy.random.seed()` and `RandomState.seed()` do.
    takes_seed = isinstance(call.func, ast.Attribute) and "random" in module.text_of(call.func.value).rpartition(".")[2]
    takes_seed = takes_seed or (isinstance(call.func, ast.Attribute) and _is_random_state(module, call.func.value))
    if last_part(call.func) in ("seed", "seed_all") and isinstance(call.func, ast.Attribute) and not takes_seed:
        if module.text_of(call.func.value) not in ("np.random", "numpy.random"):
            if last_part(call.func) == "seed" and not isinstance(module.parents.get(call), ast.Expr):
                # It returns the seed, and `manual_seed` the generator.
                return [module.replaced(call, f"{module.text_of(call.func.value)}.manual_seed(0).initial_seed()")], ()
            edits.append(module.renamed(call.func, f"manual_{last_part(call.func)}"))
    return edits, ()


def _is_random_state(module: Module, holder: ast.expr) -> bool:
    """Whether a generator is NumPy's, by the call that makes it; where that is not seen, by what the file makes."""
    values = module.given(module.scope_of(holder), holder.id) if isinstance(holder, ast.Name) else ()
    made = {last_part(value.func) for value in values if isinstance(value, ast.Call)}
    return "RandomState" in made if made else b"RandomState(" in module.source


def seed_value(place: Place) -> Change:
    """Replace a seed that is passed with a constant.

    Raises:
        Unfixable: It comes from a caller, the command line or the environment, and a constant would override that choice.
    """
    module = place.module
    values = [value for value in _seeds_passed(place.call) if not isinstance(value, ast.Constant)]
    program = Program([module], has_fixed_hashes=False)
    # The rest of the seed stays, such as a seed that the user passes or a rank, and so do the seeds of other streams.
    varying = dict.fromkeys(made for value in values if (made := program.varying_seed(module, value)) is not None)
    if not varying:
        if len(values) != 1 or chosen_by(module, values[0]) is not None:
            raise Unfixable
        varying = dict.fromkeys(values)
    return [module.replaced(value, str(number)) for number, value in enumerate(varying)], ()


def _seeds_given(call: ast.Call) -> list[ast.expr]:
    """Return the argument of a call that is its seed; empty if there is none."""
    named = [one.value for one in call.keywords if one.arg in _SEED_KEYWORDS]
    return (named or call.args)[:1]


def _seeds_passed(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call that are seeds: `Rngs` takes one for each stream of keys, under any name."""
    if last_part(call.func) == _STREAMS:
        return [*call.args[:1], *(one.value for one in call.keywords if one.arg is not None)]
    return _seeds_given(call)


def is_of_seed(source: Source) -> bool:
    """Whether a seed is made from a value of the clock and the like, so that a constant can replace it."""
    return source.source in MADE_SEEDS and code_fix(source) is not None


_MOST_ASSIGNMENTS = 4
"""The most assignments in a row that are followed back."""


def chosen_by(module: Module, value: ast.expr, depth: int = 0) -> str | None:
    """Say who chooses a value that a program uses; None if it is the program itself, judging by its text.

    `depth` counts the assignments that were followed back to the value.
    """
    variable = _variable_of_environment(value)
    if variable is not None:
        return f"the environment variable {variable}"
    if isinstance(value, ast.Attribute) and _is_looked_up(module, value):
        return module.text_of(value)
    if isinstance(value, ast.Name):
        scope = _scope(module, value)
        if isinstance(scope, Function) and value.id in parameters(scope):
            return f"the parameter {value.id} of {scope.name}()"
        parts = _assigned_in(module, scope, value.id) if depth < _MOST_ASSIGNMENTS else []
        depth += 1
    elif isinstance(value, ast.Call):
        # What another function computes from its arguments is that function's choice.
        parts = value.args if last_part(value.func) in _CONVERSIONS else []
    else:
        parts = [part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr)]
    return next((found for part in parts if (found := chosen_by(module, part, depth)) is not None), None)


def seed_chosen_by(use: Source) -> str | None:
    """Say who chooses the seed that a call sets; None if nobody else does, or it sets no seed."""
    if use.source != "seed-value":
        return None
    module = Module.read(use.site.file)
    call = None if module is None else module.at(use.site.place)
    values = _seeds_passed(call) if isinstance(call, ast.Call) else []
    return next((found for value in values if module and (found := chosen_by(module, value)) is not None), None)


def _is_looked_up(module: Module, node: ast.Attribute) -> bool:
    """Whether it is the value of a dotted name, such as `arguments.seed`, and not a function that is called."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is node):
        return False
    at: ast.expr = node
    while isinstance(at, ast.Attribute):
        at = at.value
    return isinstance(at, ast.Name)


def _variable_of_environment(node: ast.AST) -> str | None:
    """Return the environment variable that an expression reads; None if it reads none."""
    if isinstance(node, ast.Subscript):
        holder, name = node.value, node.slice
    elif isinstance(node, ast.Call) and node.args:
        is_get = isinstance(node.func, ast.Attribute) and node.func.attr == "get"
        holder = node.func.value if is_get and isinstance(node.func, ast.Attribute) else node.func
        name = node.args[0]
    else:
        return None
    is_environment = last_part(holder) in ("environ", "getenv")
    return str(name.value) if is_environment and isinstance(name, ast.Constant) else None


def _assigned_in(module: Module, scope: ast.AST, name: str) -> list[ast.expr]:
    """Return what is assigned to a name in a scope; in the whole file if nothing is assigned there."""
    for place in dict.fromkeys((scope, module.tree)):
        pairs = [pair for node in ast.walk(place) for pair in assigned(node)]
        found = [value for target, value in pairs if isinstance(target, ast.Name) and target.id == name]
        if found:
            return found
    return []


def keeps_other_seed_parts(change: CodeChange) -> bool:
    """Whether a changed seed is still computed from more than the constant, such as the rank of a process."""
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


# The smallest change that gives the elements of a set a fixed order.

_KEYS = {Elements.SORTABLE.value: "", Elements.TEXT.value: ", key=str"}
_PLAIN = (ast.Name, ast.Attribute)
_CHANGING = frozenset({"add", "remove", "discard", "update", "difference_update", "intersection_update"})


def fixed_set(
    module: Module, node: ast.expr, elements: str | None, argument: str | None, attribute: str | None = None
) -> list[Edit] | None:
    """Return the edits that make a set be iterated in a fixed order; None if no small change does.

    Args:
        module: The program.
        node: What is iterated, or the call that a set is passed to.
        elements: What its elements are; see `Elements`.
        argument: Number or keyword of the argument that is a set, if one is.
        attribute: For objects, the attribute to sort them by.
    """
    key = _KEYS.get(elements or "")
    if attribute is not None:
        key = f", key=lambda one: one.{attribute}"
    if argument is None:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pop":
            return None if key is None else _smallest_taken(module, node, node.func.value, key)
        return _without_set(module, node) if key is None else module.around(node, "sorted(", f"{key})")
    if not isinstance(node, ast.Call):
        return None
    passed = _argument(node, argument)
    if passed is None:
        return None
    if key is None:
        return _without_set(module, passed)
    if isinstance(node.func, ast.Name) and node.func.id == "list" and len(node.args) == 1:
        edits = [module.renamed(node.func, "sorted")]
        return edits if not key else [*edits, Edit(module.end(passed), module.end(passed), key)]
    return module.around(passed, "sorted(", f"{key})")


def _argument(call: ast.Call, name: str) -> ast.expr | None:
    if name.isdigit():
        return call.args[int(name)] if int(name) < len(call.args) else None
    keyword = keyword_of(call, name)
    return None if keyword is None else keyword.value


def _smallest_taken(module: Module, call: ast.Call, holder: ast.expr, key: str) -> list[Edit] | None:
    """Take the smallest element instead of any: `x = s.pop()` becomes `x = min(s)` and `s.remove(x)`."""
    statement = module.parents.get(call)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not isinstance(holder, _PLAIN):
        return None
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or (module.parents.get(holder) is not call.func):
        return None
    end, indentation = module.end(statement), " " * statement.col_offset
    removal = f"\n{indentation}{module.text_of(holder)}.remove({target.id})"
    return [module.replaced(call, f"min({module.text_of(holder)}{key})"), Edit(end, end, removal)]


def _without_set(module: Module, node: ast.expr) -> list[Edit] | None:
    """Keep objects in order of arrival, in a dictionary instead of a set."""
    made = _kept_in_order(module, node)
    if made is not None:
        return [made]
    if not isinstance(node, _PLAIN):
        return None
    name = module.text_of(node)
    uses = [
        one for one in ast.walk(_scope(module, node)) if isinstance(one, type(node)) and module.text_of(one) == name
    ]
    stored = [one for one in uses if isinstance(one.ctx, ast.Store)]
    definition = module.parents.get(stored[0]) if len(stored) == 1 else None
    if not isinstance(definition, ast.Assign) or any(_is_changed(module, one) for one in uses):
        return None
    edit = _kept_in_order(module, definition.value)
    return None if edit is None else [edit]


def _kept_in_order(module: Module, node: ast.expr) -> Edit | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset"):
        return module.renamed(node.func, "dict.fromkeys") if len(node.args) == 1 else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _kept_in_order(module, node.left) is not None:
        left = node.left.args[0] if isinstance(node.left, ast.Call) else node.left
        return module.replaced(
            node, f"dict.fromkeys(one for one in {module.text_of(left)} if one not in {module.text_of(node.right)})"
        )
    if isinstance(node, ast.Set):
        return module.replaced(node, f"dict.fromkeys([{module.text_of(node)[1:-1]}])")
    return (
        module.replaced(node, f"dict.fromkeys({module.text_of(node)[1:-1]})") if isinstance(node, ast.SetComp) else None
    )


def _scope(module: Module, node: ast.expr) -> ast.AST:
    """Return where a name may be assigned: its function, or for an attribute its class."""
    kinds = Function if isinstance(node, ast.Name) else ast.ClassDef
    return next((one for one in module.outwards(node) if isinstance(one, kinds)), module.tree)


def _is_changed(module: Module, use: ast.expr) -> bool:
    """Whether a name is used in a way that only a set allows."""
    parent = module.parents.get(use)
    if isinstance(parent, ast.Attribute):
        return parent.attr in _CHANGING
    return isinstance(parent, ast.BinOp | ast.AugAssign)


# A seed for a library that seeds itself differently in each run.

TAKE_GENERATORS = ("rng", "generator")
"""Parameters that take a generator rather than a seed."""
_MADE_BY = {
    "Random": ("random.Random(0)", "import random"),
    "RandomState": ("numpy.random.RandomState(0)", "import numpy"),
    "manual_seed": ("torch.Generator().manual_seed(0)", "import torch"),
}
"""A seeded generator, by the function that makes or seeds a library's own; otherwise NumPy's newer one is used."""
_NUMPY = ("numpy.random.default_rng(0)", "import numpy")
_SEEDED_OBJECTS = {"sampler": ("optuna.samplers.TPESampler(seed=0)", "import optuna")}
"""A seeded object, by the parameter that takes it. Optuna chooses this sampler for studies with one objective."""
_OF_SEVERAL_OBJECTIVES = "directions"
"""The parameter with which Optuna chooses another sampler."""


def seeded_calls(module: Module, source: Source) -> Change:
    """Give a seed to the calls of the program that led to a library's generators, or to the object that only a method seeds.

    Args:
        module: The file of the first of these calls.
        source: What the library used.

    Raises:
        Unfixable: None of them is known to take a seed, or one already passes a value.
    """
    edits, imports = [], []
    if source.led_by[0].method is not None:
        try:
            return list(dict.fromkeys(_seeded_object(module, source, led) for led in source.led_by)), ()
        except Unfixable:
            if not source.led_by[0].is_made:
                raise
    # A parameter that a call would only pass on may be unknown there: it is a guess, needed only if no function declares one.
    declared = [led for led in source.led_by if led.is_declared and led.argument is not None]
    for led in declared or source.led_by:
        call = module.at(led.site.place) if led.site.file == source.led_by[0].site.file else None
        if led.argument is None or not isinstance(call, ast.Call):
            continue
        if led.argument in _SEEDED_OBJECTS and keyword_of(call, _OF_SEVERAL_OBJECTIVES) is not None:
            raise Unfixable
        value, needed = _value(led.argument, source, module.loops_of(call))
        given = keyword_of(call, led.argument)
        if given is None:
            edits.append(module.last_argument(call, f"{led.argument}={value}"))
        elif is_none(given.value):
            edits.append(module.replaced(given.value, value))
        else:
            raise Unfixable
        imports += [needed] * bool(needed)
    if not edits:
        raise Unfixable
    return edits, tuple(dict.fromkeys(imports))


def _seeded_object(module: Module, source: Source, led: LedBy) -> Edit:
    """Seed the object that a line draws from, on a line of its own after the one that makes it.

    Raises:
        Unfixable: That line is not known for certain.
    """
    call = module.at(led.site.place) if led.method is not None and led.site.file == module.file else None
    if not isinstance(call, ast.Call):
        raise Unfixable
    holder, last = _made_there(module, call) if led.is_made else _made_before(module, call)
    value, _ = _value("seed", source, module.loops_of(last))
    added = module.line_after(last, f"{module.text_of(holder)}.{led.method}({value})")
    if added is None:
        raise Unfixable
    return added


def _made_there(module: Module, call: ast.Call) -> tuple[ast.expr, ast.Assign]:
    """Return what a call is assigned to, and that statement. What wraps the object usually passes on the seed: runs will show."""
    *around, statement = (*module.within_statement(call), module.statement_of(call))
    if not all(isinstance(one, ast.Call) for one in around):
        raise Unfixable
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not module.dotted(statement.targets[0]):
        raise Unfixable
    return statement.targets[0], statement


def _made_before(module: Module, call: ast.Call) -> tuple[ast.expr, ast.Assign]:
    """Return the object whose method is called, and the last assignment to its name, which must always run before."""
    if not isinstance(call.func, ast.Attribute) or not module.dotted(call.func):
        raise Unfixable
    drawn_from = call.func.value
    name = next(node.id for node in ast.walk(drawn_from) if isinstance(node, ast.Name))
    made = [module.statement_of(value) for value in module.given(module.scope_of(call), name)]
    last = max((one for one in made if one.lineno < call.lineno), key=lambda one: one.lineno, default=None)
    if not isinstance(last, ast.Assign) or module.parents[last] not in module.outwards(call):
        raise Unfixable
    return drawn_from, last


def _value(argument: str, source: Source, loops: Sequence[Loop]) -> tuple[str, str]:
    """Return what to pass for a parameter, and the import it needs: in a counting loop, a different seed each time."""
    if argument in _SEEDED_OBJECTS:
        return _SEEDED_OBJECTS[argument]
    if argument not in TAKE_GENERATORS:
        return (counter_of(loops[0]) if loops else None) or "0", ""
    library = Module.read(source.site.file)
    if library is None:
        raise Unfixable
    call = library.at(source.site.place)
    return _MADE_BY.get(last_part(call.func) if isinstance(call, ast.Call) else "", _NUMPY)


# The smallest change to a program that removes a source of nondeterminism, at the line that uses it.


def code_fix(source: Source) -> CodeChange | None:
    """Return the change that removes a source; None if no small change does, or the file is missing or has changed."""
    fix = _FIXES.get(source.source)
    changed = source.led_by[0].site.file if source.led_by else source.site.file
    try:
        module = Module.read(changed)
        if module is None:
            return None
        node = module.at(source.site.place)
        if source.is_in_library:
            edits, imports = seeded_calls(module, source)
        elif fix is None or node is None:
            return None
        else:
            edits, imports = fix(Place(module, node, source))
    except (ValueError, RecursionError, Unfixable):
        return None
    present = {ast.unparse(one) for one in ast.walk(module.tree) if isinstance(one, ast.Import | ast.ImportFrom)}
    missing = tuple(line for line in imports if line not in present)
    return CodeChange(changed, module.changed(edits), missing) if edits else None


def _set_order(place: Place) -> Change:
    source = place.source
    return fixed_set(place.module, place.node, source.elements, source.argument, source.key) or [], ()


def _listing(place: Place) -> Change:
    module, call = place.module, place.call
    name = last_part(call.func)
    parent = module.parents.get(call)
    if name in ("walk", "fwalk"):
        return _sorted_walk(module, parent), ()
    if name == "scandir":
        if isinstance(parent, ast.withitem):
            raise Unfixable
        return module.around(call, "sorted(", ", key=lambda entry: entry.name)"), ()
    if isinstance(parent, ast.Call) and last_part(parent.func) == "list" and len(parent.args) == 1:
        return [module.renamed(parent.func, "sorted")], ()
    return module.around(call, "sorted(", ")"), ()


def _sorted_walk(module: Module, loop: ast.AST | None) -> list[Edit]:
    """Sort the folders and files of each step of a walk, at the beginning of the loop's body."""
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Tuple) or len(loop.target.elts) < 3:
        raise Unfixable
    names = [name.id for name in loop.target.elts[1:3] if isinstance(name, ast.Name)]
    first = loop.body[0]
    if len(names) != 2 or first.lineno == loop.lineno:
        raise Unfixable
    start, indentation = module.start(first), " " * first.col_offset
    return [Edit(start, start, "".join(f"{name}.sort()\n{indentation}" for name in names))]


def _hash(place: Place) -> Change:
    module, node = place.module, place.node
    key = keyword_of(node, "key")
    if key is not None and last_part(key.value) == "hash":
        return [module.replaced(key.value, "repr")], ()
    call = place.call
    if last_part(call.func) != "hash" or len(call.args) != 1:
        raise Unfixable
    argument = call.args[0]
    return [module.replaced(call, f"zlib.crc32(repr({module.text_of(argument)}).encode())")], ("import zlib",)


def _identity(place: Place) -> Change:
    module, node = place.module, place.node
    key = keyword_of(node, "key")
    if (
        key is None
        or last_part(key.value) != "id"
        or not isinstance(node, ast.Call)
        or last_part(node.func) != "sorted"
    ):
        raise Unfixable
    return [module.replaced(node, f"list({module.text_of(node.args[0])})")], ()


def _completion(place: Place) -> Change:
    module, call = place.module, place.call
    name = last_part(call.func)
    if name == "imap_unordered":
        return [module.renamed(call.func, "imap")], ()
    if name == "as_completed" and (call.args or keyword_of(call, "fs")):
        keyword = keyword_of(call, "fs")
        futures = call.args[0] if keyword is None else keyword.value
        kept = futures_in_order(module, futures)
        if kept is None:
            raise Unfixable
        return [module.replaced(call, kept[0]), *kept[1]], ()
    # `wait` returns sets, so everything that is done with them would have to change.
    raise Unfixable


def futures_in_order(module: Module, futures: ast.expr) -> tuple[str, list[Edit]] | None:
    """Return text that yields futures in submission order, and what else must change for it; None if there is none."""
    if isinstance(futures, ast.SetComp | ast.Set):
        return f"[{module.text_of(futures)[1:-1]}]", []
    if not isinstance(futures, ast.Name):
        return module.text_of(futures), []
    given = [
        node.value
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == futures.id for target in node.targets)
    ]
    sets = [value for value in given if isinstance(value, ast.SetComp | ast.Set)]
    if any(isinstance(value, ast.Call) and last_part(value.func) in ("set", "frozenset") for value in given):
        return None
    return futures.id, [module.replaced(value, f"[{module.text_of(value)[1:-1]}]") for value in sets]


def _memory(place: Place) -> Change:
    module, call = place.module, place.call
    name = last_part(call.func)
    new = {"empty": "zeros", "empty_like": "zeros_like", "new_empty": "new_zeros"}.get(name)
    if new is None:
        raise Unfixable
    imported = () if isinstance(call.func, ast.Attribute) else _imported_beside(module, name, new)
    return [module.renamed(call.func, new)], imported


def _imported_beside(module: Module, name: str, new: str) -> tuple[str, ...]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and any((one.asname or one.name) == name for one in node.names):
            return (f"from {node.module} import {new}",)
    return ()


def _pipeline(place: Place) -> Change:
    """Make the stages of a data pipeline yield their elements in order, by their argument or their options."""
    module, call = place.module, place.call
    keyword = keyword_of(call, "deterministic")
    if keyword is not None:
        return [module.replaced(keyword.value, "True")], ()
    if last_part(call.func) != "with_options":
        given = [one for one in call.args if isinstance(one, ast.Constant) and one.value is False]
        if len(given) != 1:
            raise Unfixable
        return [module.replaced(given[0], "True")], ()
    chosen = [
        node.value
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign)
        and any(isinstance(one, ast.Attribute) and one.attr.endswith("deterministic") for one in node.targets)
    ]
    if len(chosen) != 1:
        raise Unfixable
    return [module.replaced(chosen[0], "True")], ()


def _kept(name: str) -> Callable[[Place], Change]:
    def fix(place: Place) -> Change:
        keyword = keyword_of(place.node, name)
        if keyword is None:
            raise Unfixable
        return [place.module.replaced(keyword.value, "True")], ()

    return fix


_FIXES: dict[str, Callable[[Place], Change]] = {
    "set-order": _set_order,
    "listing": _listing,
    "hash": _hash,
    "id": _identity,
    "clock": constant_seed,
    "entropy": entropy,
    "process-id": constant_seed,
    "machine-state": constant_seed,
    "file-time": constant_seed,
    "unseeded-generator": unseeded,
    "seed-value": seed_value,
    "completion-order": _completion,
    "uninitialized-array": _memory,
    "checkpoint-rng": _kept("preserve_rng_state"),
    "loader-order": _kept("in_order"),
    "pipeline-order": _pipeline,
}
"""How to remove each source. A queue's order, and draws from a generator that nobody seeded, take more than one line."""
