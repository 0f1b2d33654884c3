"""Rules on random numbers that are drawn twice: a key of JAX that is used again, and loader workers that all draw the same.

Runs do not differ by it, so `check` cannot see it. What is drawn is the same where it should be another one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from determinism.diagnose.program_flow import GENERATORS, Function, given_to, is_none, last_part, parameters, within
from determinism.lint.execution import seeded_libraries
from determinism.lint.findings import Finding, Severity, Text

_MAKES_KEYS = frozenset(
    {"PRNGKey", "key", "fold_in", "clone", "key_data", "wrap_key_data", "key_impl", "default_prng_impl"}
)
_TELLS_WORKERS_APART = frozenset(
    {"get_worker_info", "initial_seed", "getpid", "urandom", "randint", "random_", "seed", "time", "get_rank", "uuid4"}
)

# Keys of JAX: each is to be used once, by a draw or a split.


def of_keys(text: Text) -> Iterator[Finding]:
    """A key that a second draw uses, or each turn of a loop."""
    if "jax" not in text.module.packages:
        return
    scopes = [node for node in text.module.nodes if isinstance(node, Function)]
    for body in [text.module.tree.body, *(scope.body for scope in scopes)]:
        yield from _Keys(text).found_in(body)


class _Keys:
    """Follows the statements of one function, in both branches of a condition and twice through a loop."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._found: dict[int, Finding] = {}

    def found_in(self, body: Sequence[ast.stmt]) -> Iterator[Finding]:
        self._block(body, {})
        yield from self._found.values()

    def _block(self, body: Sequence[ast.stmt], used: dict[str, int]) -> dict[str, int] | None:
        """What was used, by name with its line, after these statements; None if they end the function or the turn."""
        for statement in body:
            if isinstance(statement, Function | ast.ClassDef):
                continue
            if isinstance(statement, ast.If | ast.Try | ast.With | ast.AsyncWith | ast.Match):
                self._expressions(statement, used)
                after = [self._block(part, dict(used)) for part in _branches(statement)]
                going_on = [one for one in after if one is not None]
                if not going_on:
                    return None
                used = {name: line for one in going_on for name, line in one.items()}
            elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
                self._expressions(statement, used)
                for _ in range(2):
                    self._forget(statement, used)
                    used = self._block(statement.body, dict(used)) or used
                used = self._block(statement.orelse, dict(used)) or used
            else:
                self._expressions(statement, used)
                self._forget(statement, used)
                if isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
                    return None
        return used

    def _forget(self, statement: ast.stmt, used: dict[str, int]) -> None:
        """Names that get another value are fresh."""
        targets = [statement.target] if isinstance(statement, ast.For | ast.AsyncFor) else [statement]
        for name in (one for target in targets for one in ast.walk(target)):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                for key in [key for key in used if key == name.id or key.startswith(f"{name.id}[")]:
                    del used[key]

    def _expressions(self, statement: ast.stmt, used: dict[str, int]) -> None:
        for call in _own_calls(statement):
            owner, _, draw = self._text.module.dotted(call.func).rpartition(".")
            if owner != "jax.random" or draw in _MAKES_KEYS or not call.args:
                continue
            key = _key_name(call.args[0])
            if key is None:
                continue
            turns = _turns_around(self._text, call, statement)
            line = used.get(key, call.lineno if turns and key.partition("[")[0] not in turns else None)
            if line is not None:
                where = "in each turn" if line == call.lineno else f"at line {line} and here"
                message = f"The key `{key}` is used {where}, so the same numbers are drawn. Split it for each use."
                self._found.setdefault(call.lineno, self._text.finding("key-reused", Severity.REPEATS, message, call))
            used[key] = call.lineno


def _branches(statement: ast.stmt) -> list[Sequence[ast.stmt]]:
    if isinstance(statement, ast.If):
        return [statement.body, statement.orelse]
    if isinstance(statement, ast.Match):
        return [*(case.body for case in statement.cases), []]
    if isinstance(statement, ast.Try):
        return [[*statement.body, *statement.orelse, *statement.finalbody], *(one.body for one in statement.handlers)]
    return [statement.body] if isinstance(statement, ast.With | ast.AsyncWith) else []


def _own_calls(statement: ast.stmt) -> Iterator[ast.Call]:
    """Calls that a statement makes itself, in the order of the text; none of functions and statements within it."""
    found: list[ast.Call] = []

    def look(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt | ast.Lambda | ast.ExceptHandler | ast.match_case):
                if isinstance(child, ast.Call):
                    found.append(child)
                look(child)

    look(statement)
    yield from sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _key_name(node: ast.expr) -> str | None:
    """A name, or an element of one that is always the same."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Constant):
        return f"{node.value.id}[{node.slice.value!r}]"
    return None


def _turns_around(text: Text, call: ast.Call, statement: ast.stmt) -> set[str]:
    """The names that comprehensions around a call give values; empty if there are none."""
    names: set[str] = set()
    at: ast.AST = call
    while at is not statement and (parent := text.module.parents.get(at)) is not None:
        if isinstance(parent, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            targets = [one.target for one in parent.generators]
            names |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)} or {""}
        at = parent
    return names


# Workers of data loaders, each of which is to draw numbers of its own.


def of_workers(text: Text) -> Iterator[Finding]:
    """Workers that all get the same seed, or a copy of the same generator."""
    loaders = [
        node for node in text.module.nodes if isinstance(node, ast.Call) and last_part(node.func) == "DataLoader"
    ]
    given = [keyword for call in loaders for keyword in call.keywords]
    for keyword in given:
        if keyword.arg == "worker_init_fn":
            yield from _constant_seeds(text, keyword.value)
    has_workers = any(
        keyword.arg == "num_workers" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
        for keyword in given
    )
    if has_workers and not any(keyword.arg == "worker_init_fn" and not is_none(keyword.value) for keyword in given):
        yield from _copied_generators(text)


def _constant_seeds(text: Text, function: ast.expr) -> Iterator[Finding]:
    """A function that workers begin with, and that seeds each alike."""
    bodies: list[tuple[Function | ast.Lambda, list[str]]] = []
    if isinstance(function, ast.Lambda):
        bodies.append((function, parameters(function)))
    elif isinstance(function, ast.Name):
        bodies += [(one, parameters(one)) for _, one in text.program.functions.get(function.id, ())]
    for scope, names in bodies:
        for node in within(scope):
            if isinstance(node, ast.Call) and seeded_libraries(text.module, node) and given_to(node):
                if not any(_may_differ(text, one, names, 0) for one in given_to(node)):
                    message = "Each worker of the loader gets the same seed here, so all of them draw the same numbers."
                    yield text.finding("workers-alike", Severity.REPEATS, message, node)


def _may_differ(text: Text, value: ast.expr, names: Sequence[str], depth: int) -> bool:
    """Whether a seed may be another one in each worker."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and last_part(node.func) not in ("int", "abs", "hash"):
            return True
        if isinstance(node, ast.Attribute | ast.Subscript):
            return True
        if isinstance(node, ast.Name) and node.id in names:
            return True
        if isinstance(node, ast.Name) and depth < 3:
            behind = text.module.bound(text.module.scope_of(node), node.id)
            if any(_may_differ(text, one, names, depth + 1) for one in behind):
                return True
    return False


def _copied_generators(text: Text) -> Iterator[Finding]:
    """A generator that a data set keeps, with a seed: each worker gets a copy of it as it is."""
    kept = [node for node in text.module.nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    for statement in kept:
        call, target = statement.value, statement.targets[0]
        if not isinstance(call, ast.Call) or not _is_own(target) or text.module.dotted(call.func) not in GENERATORS:
            continue
        given = given_to(call)
        if not given or is_none(given[0]) or any(isinstance(one, ast.Call) for one in ast.walk(given[0])):
            continue
        owner: ast.AST | None = statement
        while owner is not None and not isinstance(owner, ast.ClassDef):
            owner = text.module.parents.get(owner)
        if owner is None or not _draws_items(owner, last_part(target)) or _asks_for_worker(owner):
            continue
        message = "Each worker of the loader gets a copy of this generator, so all of them draw the same numbers."
        yield text.finding("workers-alike", Severity.REPEATS, message, call)


def _is_own(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"


def _draws_items(owner: ast.ClassDef, generator: str) -> bool:
    """Whether the items of a data set are made with one of its attributes."""
    return any(
        isinstance(part, Function)
        and part.name in ("__getitem__", "__iter__", "__getitems__")
        and any(isinstance(one, ast.Attribute) and one.attr == generator for one in ast.walk(part))
        for part in owner.body
    )


def _asks_for_worker(owner: ast.ClassDef) -> bool:
    return any(isinstance(one, ast.Call) and last_part(one.func) in _TELLS_WORKERS_APART for one in ast.walk(owner))


def findings(text: Text) -> Iterator[Finding]:
    """All of these rules."""
    yield from of_keys(text)
    yield from of_workers(text)
