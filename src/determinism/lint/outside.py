"""Rules on values from outside: the clock where it decides, and hashes, addresses, process IDs and random bytes used as data."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from determinism.diagnose.parsed_module import Function, asks_at_random, is_none, last_part
from determinism.diagnose.program_flow import CALLS
from determinism.lint.execution import becomes_seed, is_number
from determinism.lint.findings import Finding, Severity, Text

_ENDS = (ast.Break, ast.Return, ast.Continue)
_TRAINS = frozenset(
    {"backward", "step", "fit", "minimize", "train", "train_step", "sample", "zero_grad", "append", "forward", "normal"}
)
_STEPS = frozenset({"backward", "train_on_batch", "apply_gradients", "train_step", "minimize", "fit", "value_and_grad"})
"""Calls that train, whatever other calls are near them."""
_ONLY_BOUNDS = frozenset({"max", "min", "int", "float", "round", "abs", "str", "len", "print"})
_DISPLAYS = ("progress", "progbar", "bar", "log", "print", "display", "refresh", "render", "report")
_MAKES_ARRAYS = frozenset({
    "torch.tensor", "torch.full", "torch.as_tensor", "numpy.array", "numpy.full", "numpy.asarray", "jax.numpy.array", "jax.numpy.full",
    "jax.numpy.asarray", "tensorflow.constant", "tensorflow.fill", "tensorflow.convert_to_tensor",
})  # fmt: skip
_RATES = frozenset({"lr", "learning_rate", "momentum", "weight_decay", "eps", "alpha", "gain", "std", "temperature"})
"""Arguments that enter the computation."""
_CHOOSES_BYTES = frozenset({"randbelow", "choice", "randbits", "SystemRandom"})


def _used_as_number(text: Text, node: ast.AST) -> bool:
    """Whether a value is reduced to an index: taken modulo a number or masked, directly or through its name."""
    at = node
    for _ in range(5):
        parent = text.module.parents[at]
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mod | ast.BitAnd):
            # `"%s" % value` is formatting.
            return parent.left is at
        is_converted = isinstance(parent, ast.Call) and last_part(parent.func) in ("int", "abs", "from_bytes")
        is_part = isinstance(parent, ast.Attribute) and parent.attr in ("int", "hex", "bytes", "node")
        if not (is_converted or is_part or isinstance(parent, ast.BinOp)):
            break
        at = parent
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        scope, name = text.module.scope_of(parent), parent.targets[0].id
        return any(
            isinstance(one, ast.BinOp)
            and isinstance(one.op, ast.Mod)
            and isinstance(one.left, ast.Name)
            and one.left.id == name
            for one in ast.walk(scope)
        )
    return False


def of_hashes(text: Text) -> Iterator[Finding]:
    """Yield salted hashes, addresses and process IDs used as data."""
    for node in text.module.nodes:
        if isinstance(node, ast.keyword) and node.arg == "key" and _is_key_by(node.value, "id"):
            message = "Objects are ordered by their addresses, which differ from run to run."
            yield text.finding("address-order", Severity.MAY_DIFFER, message, node.value)
        if isinstance(node, ast.keyword) and node.arg == "key" and _is_key_by(node.value, "hash"):
            message = "The elements are ordered by hash(), which is different for strings in each run."
            yield text.finding("hash-value", Severity.MAY_DIFFER, message, node.value)
        if not isinstance(node, ast.Call):
            continue
        source = CALLS.get(text.module.dotted(node.func))
        if source not in ("hash", "id", "process-id") or not _used_as_number(text, node):
            continue
        function = text.module.scope_of(node)
        if isinstance(function, Function) and function.name == "__hash__":
            continue
        if source == "hash":
            if node.args and not is_number(text.module, node.args[0]):
                message = "hash() of a string is a different number in each run, and the number is used."
                severity = Severity.DIFFERS
                if _becomes_text(text, node):
                    severity = Severity.MAY_DIFFER
                    message = "hash() of a string is a different number in each run, and runs may differ by the text that contains it."
                yield text.finding("hash-value", severity, message, node)
        elif source == "id":
            message = "The number used here is an address, which differs from run to run."
            yield text.finding("address-order", Severity.MAY_DIFFER, message, node)
        else:
            message = "The process ID differs in each run, and it is used as data."
            yield text.finding("process-id", Severity.DIFFERS, message, node)


_OF_MACHINE = frozenset(
    {name for name, source in CALLS.items() if source == "machine-state"}
    | {"torch.cuda.mem_get_info", "shutil.disk_usage"}
)
_BOUNDS = frozenset({"min", "max", "range"})


def of_machine(text: Text) -> Iterator[Finding]:
    """Yield choices that depend on how busy the machine is, or on how much memory is free."""
    for node in text.module.nodes:
        if not isinstance(node, ast.Call) or text.module.dotted(node.func) not in _OF_MACHINE:
            continue
        if _is_chosen_by(text, node) and not _is_of_display(text, node):
            message = "The load of the machine, or how much memory is free, decides here, and it differs in each run."
            yield text.finding("machine-state", Severity.MAY_DIFFER, message, node)


def _is_chosen_by(text: Text, read: ast.Call) -> bool:
    """Whether a value decides a number or a branch, directly or through a name in the same function."""
    statement = text.module.statement_of(read)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}

    def is_read(node: ast.AST) -> bool:
        return any(one is read or (isinstance(one, ast.Name) and one.id in names) for one in ast.walk(node))

    for node in ast.walk(text.module.scope_of(read)):
        if isinstance(node, ast.If | ast.While) and is_read(node.test) and _decides(node):
            return True
        if isinstance(node, ast.IfExp) and is_read(node.test):
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and is_read(node.left):
            return not isinstance(node.left, ast.Constant | ast.JoinedStr)
        if isinstance(node, ast.Call) and last_part(node.func) in _BOUNDS and any(map(is_read, node.args)):
            kept = text.module.parents[node]
            shown = {ast.unparse(one) for one in (kept.targets if isinstance(kept, ast.Assign) else ())}
            # A maximum of what was in use is only displayed.
            return shown.isdisjoint(map(ast.unparse, node.args))
    return False


def _becomes_text(text: Text, node: ast.AST) -> bool:
    """Whether a number becomes part of a text, such as a file name, which need not matter."""
    return any(isinstance(one, ast.FormattedValue) for one in text.module.within_statement(node))


def _is_key_by(node: ast.expr, function: str) -> bool:
    """Whether the sort key of elements is a given builtin function."""
    if isinstance(node, ast.Lambda):
        return (
            isinstance(node.body, ast.Call)
            and last_part(node.body.func) == function
            and isinstance(node.body.func, ast.Name)
        )
    return isinstance(node, ast.Name) and node.id == function


def of_random_bytes(text: Text) -> Iterator[Finding]:
    """Yield random bytes of the operating system used as data; run identifiers and file names are not reported."""
    if not text.uses_frameworks():
        return
    for node in text.module.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = text.module.dotted(node.func)
        if CALLS.get(name) != "entropy":
            continue
        parent = text.module.parents.get(node)
        into_array = isinstance(parent, ast.Call) and text.module.dotted(parent.func).startswith(
            ("numpy.", "torch.", "jax.")
        )
        if name.rpartition(".")[2] in _CHOOSES_BYTES or into_array or _used_as_number(text, node):
            if not becomes_seed(text.module, node) and not _is_delay(text, node):
                message = f"{name} returns random bytes from the operating system, which no seed fixes."
                yield text.finding("entropy", Severity.DIFFERS, message, node)


def _is_delay(text: Text, node: ast.expr, *, is_named: bool = False) -> bool:
    """Whether an expression only says how long to wait, directly or through the name it is assigned to."""
    within = text.module.within_statement(node)
    if any(isinstance(one, ast.Call) and last_part(one.func) == "sleep" for one in within):
        return True
    at = text.module.statement_of(node)
    if is_named or not isinstance(at, ast.Assign) or at.value is not node or not isinstance(at.targets[0], ast.Name):
        return False
    name = at.targets[0].id
    uses = [one for one in text.module.nodes if isinstance(one, ast.Name) and one.id == name and one not in at.targets]
    return bool(uses) and all(_is_delay(text, one, is_named=True) for one in uses)


def _is_computed_with(text: Text, node: ast.Call) -> bool:
    """Whether a time is put into an array, reduced by a modulo, or set as a rate; one that is subtracted only measures."""
    for at, parent in pairwise(text.module.within_statement(node)):
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Sub):
            return False
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mod | ast.BitAnd):
            is_number = parent.left is at and not becomes_seed(text.module, node)
            return is_number and not isinstance(
                text.module.parents.get(parent), ast.Compare | ast.Call | ast.FormattedValue
            )
        if isinstance(parent, ast.keyword):
            return parent.arg in _RATES
        if isinstance(parent, ast.Call) and last_part(parent.func) not in ("int", "float", "round", "abs"):
            return text.module.dotted(parent.func) in _MAKES_ARRAYS
        if not isinstance(parent, ast.BinOp | ast.Call | ast.List | ast.Tuple):
            return False
    return False


def of_clocks(text: Text) -> Iterator[Finding]:
    """Yield clocks that decide how much is computed, or whose time is used as a number; clocks that only measure or log are ignored."""
    if not text.uses_frameworks():
        return
    seen: set[int] = set()
    for node in text.module.nodes:
        if isinstance(node, ast.Call) and CALLS.get(text.module.dotted(node.func)) == "clock":
            if _is_computed_with(text, node) and not _is_of_display(text, node):
                message = "The time of day is used as a number here, and it differs in each run."
                yield text.finding("clock", Severity.DIFFERS, message, node)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Compare):
            read = _clock_in(text, node.value, 0)
            if read is not None and "timeout" not in ast.unparse(node.value).lower():
                message = "The clock decides here, and the caller computes accordingly."
                yield text.finding("clock", Severity.MAY_DIFFER, message, node.value)
        if isinstance(node, ast.Try) and (late := _taken_in_time(text, node)) is not None:
            message = "Whether an item reaches the queue in time decides here what is computed."
            yield text.finding("clock", Severity.MAY_DIFFER, message, late)
        if not isinstance(node, ast.If | ast.While):
            continue
        # A check that a time is not 0, or that a list of times is not empty, only guards a division or a message.
        compared = [
            one
            for one in ast.walk(node.test)
            if isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        ]
        clock = next((clock for one in compared if (clock := _clock_in(text, one, 0)) is not None), None)
        if clock is None or node.lineno in seen or not _decides(node) or _is_of_display(text, node):
            continue
        seen.add(node.lineno)
        message = f"The clock decides here what is computed (read at line {clock.lineno})."
        yield text.finding("clock", Severity.MAY_DIFFER, message, node.test)


def _taken_in_time(text: Text, node: ast.Try) -> ast.Call | None:
    """Return a `get` of a queue with a time limit, whose result is replaced by another value when the time is up."""
    late = [one for one in node.handlers if one.type is not None and text.module.dotted(one.type) == "queue.Empty"]
    for statement in node.body:
        if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call) and late):
            continue
        call, targets = statement.value, {ast.unparse(one) for one in statement.targets}
        waits = last_part(call.func) == "get" and any(
            one.arg == "timeout" and not is_none(one.value) for one in call.keywords
        )
        # None means that nothing came, so the loop keeps waiting.
        instead = [one for handler in late for one in handler.body if isinstance(one, ast.Assign)]
        if waits and any(
            not is_none(one.value) and targets & {ast.unparse(target) for target in one.targets} for one in instead
        ):
            return call
    return None


def _clock_in(text: Text, node: ast.AST, depth: int) -> ast.Call | None:
    """Return the read of a clock that an expression is computed from."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and CALLS.get(text.module.dotted(part.func)) == "clock":
            return part
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and depth < 3:
            for value in text.module.bound(text.module.scope_of(part), part.id):
                if not isinstance(value, ast.expr) or value is node or isinstance(value, ast.List | ast.Dict):
                    continue
                if isinstance(value, ast.BinOp | ast.Call | ast.Name) and _is_of_time(value):
                    found = _clock_in(text, value, depth + 1)
                    if found is not None:
                        return found
    return None


def _is_of_display(text: Text, node: ast.AST) -> bool:
    """Whether the enclosing function or class exists to display progress."""
    names = [one.name.lower() for one in text.module.outwards(node) if isinstance(one, Function | ast.ClassDef)]
    return any(word in name for name in names for word in _DISPLAYS)


def _is_of_time(value: ast.expr) -> bool:
    """Whether a value is computed by arithmetic alone, so that a clock in it is still a time."""
    return not isinstance(value, ast.Call) or last_part(value.func) in (
        "time", "perf_counter", "monotonic", "now", "time_ns", "perf_counter_ns", "monotonic_ns", "min", "max", "float", "int", "total_seconds",
    )  # fmt: skip


def _decides(node: ast.If | ast.While) -> bool:
    calls = {last_part(one.func) for part in node.body for one in ast.walk(part) if isinstance(one, ast.Call)}
    if isinstance(node, ast.While) and calls & _STEPS:
        return True
    if calls & {"sleep", "wait", "poll", "terminate", "kill", "recv", "get"}:
        return False
    if isinstance(node, ast.While):
        return bool(calls & _TRAINS) or any(_goes_on_from_itself(one) for part in node.body for one in ast.walk(part))
    if any(isinstance(part, ast.Raise) for part in node.body):
        return False
    return any(isinstance(part, _ENDS) for part in node.body) or bool(calls & (_TRAINS - {"append"}))


def _goes_on_from_itself(node: ast.AST) -> bool:
    """Whether a call computes the next value of its argument: `state = update(state, batch)`."""
    if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
        return False
    if last_part(node.value.func) in _ONLY_BOUNDS:
        return False
    targets = {one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return any(isinstance(one, ast.Name) and one.id in targets for one in node.value.args)


_ORDERS_OR_SHOWS = frozenset({"sorted", "set", "frozenset", "len", "print", "debug", "info", "warning"})
_ASKED = {
    "program-output": "The command requests a random order or number, which differs in each run.",
    "query-result": "The query requests random rows or numbers, which differ in each run, and no seed fixes them.",
}


def of_answers(text: Text) -> Iterator[Finding]:
    """Yield calls that ask another program or a database for something random."""
    if not text.uses_frameworks():
        return
    for node in text.module.nodes:
        if isinstance(node, ast.Call) and (source := asks_at_random(text.module, node)) is not None:
            if not _goes_to(text, node, _ORDERS_OR_SHOWS):
                yield text.finding(source, Severity.MAY_DIFFER, _ASKED[source], node)


def _goes_to(text: Text, node: ast.AST, names: frozenset[str]) -> bool:
    """Whether an expression is passed, within its statement, to a call with one of some names."""
    return any(
        isinstance(parent, ast.Call) and one is not parent.func and last_part(parent.func) in names
        for one, parent in pairwise(text.module.within_statement(node))
    )


def findings(text: Text) -> Iterator[Finding]:
    """Yield the findings of all of these rules."""
    yield from of_hashes(text)
    yield from of_random_bytes(text)
    yield from of_clocks(text)
    yield from of_machine(text)
    yield from of_answers(text)
