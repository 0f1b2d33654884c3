"""The smallest change that gives the elements of a set one order."""

from __future__ import annotations

import ast

from determinism.diagnose.code_edits import Edit, ProgramText
from determinism.probes.set_order import Elements

_KEYS = {Elements.SORTABLE.value: "", Elements.TEXT.value: ", key=str"}
_PLAIN = (ast.Name, ast.Attribute)
_CHANGING = frozenset({"add", "remove", "discard", "update", "difference_update", "intersection_update"})


def fixed_set(
    text: ProgramText, node: ast.expr, elements: str | None, argument: str | None, attribute: str | None = None
) -> list[Edit] | None:
    """The changes by which a set is iterated in one order; None if no small one does.

    Args:
        text: The program.
        node: What is iterated, or the call that a set is passed to.
        elements: What its elements are; see `Elements`.
        argument: Number or keyword of the argument that is a set, if one is.
        attribute: Of objects: the attribute by which they can be sorted.
    """
    key = _KEYS.get(elements or "")
    if attribute is not None:
        key = f", key=lambda one: one.{attribute}"
    if argument is None:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pop":
            return None if key is None else _smallest_taken(text, node, node.func.value, key)
        return _without_set(text, node) if key is None else text.around(node, "sorted(", f"{key})")
    if not isinstance(node, ast.Call):
        return None
    passed = _argument(node, argument)
    if passed is None:
        return None
    if key is None:
        return _without_set(text, passed)
    if isinstance(node.func, ast.Name) and node.func.id == "list" and len(node.args) == 1:
        edits = [text.renamed(node.func, "sorted")]
        return edits if not key else [*edits, Edit(text.end(passed), text.end(passed), key)]
    return text.around(passed, "sorted(", f"{key})")


def _argument(call: ast.Call, name: str) -> ast.expr | None:
    if name.isdigit():
        return call.args[int(name)] if int(name) < len(call.args) else None
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _smallest_taken(text: ProgramText, call: ast.Call, holder: ast.expr, key: str) -> list[Edit] | None:
    """Take the smallest element instead of any: `x = s.pop()` becomes `x = min(s)` and `s.remove(x)`."""
    statement = text.parent(call)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not isinstance(holder, _PLAIN):
        return None
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or (text.parent(holder) is not call.func):
        return None
    end, indentation = text.end(statement), " " * statement.col_offset
    removal = f"\n{indentation}{text.of(holder)}.remove({target.id})"
    return [text.replaced(call, f"min({text.of(holder)}{key})"), Edit(end, end, removal)]


def _without_set(text: ProgramText, node: ast.expr) -> list[Edit] | None:
    """Keep objects in the order in which they come, in a dictionary instead of a set."""
    made = _kept_in_order(text, node)
    if made is not None:
        return [made]
    if not isinstance(node, _PLAIN):
        return None
    name = text.of(node)
    uses = [one for one in ast.walk(_scope(text, node)) if isinstance(one, type(node)) and text.of(one) == name]
    stored = [one for one in uses if isinstance(one.ctx, ast.Store)]
    definition = text.parent(stored[0]) if len(stored) == 1 else None
    if not isinstance(definition, ast.Assign) or any(_is_changed(text, one) for one in uses):
        return None
    edit = _kept_in_order(text, definition.value)
    return None if edit is None else [edit]


def _kept_in_order(text: ProgramText, node: ast.expr) -> Edit | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset"):
        return text.renamed(node.func, "dict.fromkeys") if len(node.args) == 1 else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _kept_in_order(text, node.left) is not None:
        left = node.left.args[0] if isinstance(node.left, ast.Call) else node.left
        return text.replaced(node, f"dict.fromkeys(one for one in {text.of(left)} if one not in {text.of(node.right)})")
    if isinstance(node, ast.Set):
        return text.replaced(node, f"dict.fromkeys([{text.of(node)[1:-1]}])")
    return text.replaced(node, f"dict.fromkeys({text.of(node)[1:-1]})") if isinstance(node, ast.SetComp) else None


def _scope(text: ProgramText, node: ast.expr) -> ast.AST:
    """Where a name may be given a value: its function, or for an attribute its class."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef) if isinstance(node, ast.Name) else (ast.ClassDef,)
    at: ast.AST = node
    while (parent := text.parent(at)) is not None:
        at = parent
        if isinstance(at, kinds):
            return at
    return at


def _is_changed(text: ProgramText, use: ast.expr) -> bool:
    """Whether a name is used in a way that only a set allows."""
    parent = text.parent(use)
    if isinstance(parent, ast.Attribute):
        return parent.attr in _CHANGING
    return isinstance(parent, ast.BinOp | ast.AugAssign)
