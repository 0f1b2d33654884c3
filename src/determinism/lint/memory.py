"""Rules on stored state: memory that is read before it is written, and checkpoints that lack what a resumed run needs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from determinism.diagnose.checkpoints import PARTS, fix
from determinism.diagnose.parsed_module import Function, last_part
from determinism.lint.execution import is_program
from determinism.lint.findings import Finding, Severity, Text

_EMPTY = frozenset({"torch.empty", "torch.empty_like", "numpy.empty", "numpy.empty_like"})
_ARITHMETIC = (ast.BinOp, ast.Compare)
_GIVES_VALUES = frozenset({"load_state_dict", "from_pretrained", "load_model", "copy_", "buffers"})
"""Calls that may give buffers values that no line of their module assigns."""
_READS = frozenset({"sum", "mean", "abs", "max", "min", "matmul", "exp", "norm"})


def of_fresh_memory(text: Text) -> Iterator[Finding]:
    """Yield memory that is allocated without values and read without being filled."""
    for node in text.module.nodes:
        if not isinstance(node, ast.Call) or text.module.dotted(node.func) not in _EMPTY:
            continue
        sizes = node.args[0].elts if node.args and isinstance(node.args[0], ast.Tuple | ast.List) else node.args[:1]
        if any(isinstance(one, ast.Constant) and one.value == 0 for one in sizes):
            continue
        if any(one.arg == "device" and "meta" in ast.unparse(one.value) for one in node.keywords):
            continue
        if _is_read(text, node) or _is_buffer(text, node):
            name = text.module.dotted(node.func)
            message = f"{name} allocates memory without values, and nothing writes all of it before it is read."
            yield text.finding("uninitialized-memory", Severity.MAY_DIFFER, message, node)


def _is_buffer(text: Text, node: ast.Call) -> bool:
    """Whether memory becomes a module's buffer, in a complete program that never writes or loads it."""
    call = text.module.parents.get(node)
    if not (isinstance(call, ast.Call) and last_part(call.func) == "register_buffer" and len(call.args) > 1):
        return False
    name = call.args[0]
    if call.args[1] is not node or not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return False
    # Buffers of libraries, and those of a loaded model, get their values elsewhere.
    if not is_program(text.module) or text.calls & _GIVES_VALUES:
        return False
    attribute = ast.copy_location(ast.Attribute(ast.Name("self", ast.Load()), name.value, ast.Store()), call)
    text.module.parents.setdefault(attribute, call)
    reads = [one for one in text.module.nodes if isinstance(one, ast.Attribute) and one.attr == name.value]
    return bool(reads) and not text.is_written_in_class(attribute)


def _is_read(text: Text, node: ast.Call) -> bool:
    parent = text.module.parents.get(node)
    if isinstance(parent, _ARITHMETIC):
        return True
    if isinstance(parent, ast.Attribute):
        return parent.attr in _READS
    holder: ast.AST | None = parent
    if isinstance(parent, ast.Call) and last_part(parent.func) == "Parameter":
        # A parameter that is not trained is loaded.
        if any(
            one.arg == "requires_grad" and isinstance(one.value, ast.Constant) and not one.value.value
            for one in parent.keywords
        ):
            return False
        holder = text.module.parents.get(parent)
        if isinstance(holder, ast.Call) and last_part(holder.func) == "register_parameter":
            name = holder.args[0] if holder.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                attribute = ast.copy_location(
                    ast.Attribute(ast.Name("self", ast.Load()), name.value, ast.Store()), holder
                )
                text.module.parents.setdefault(attribute, holder)
                return not text.is_written_in_class(attribute)
    elif isinstance(parent, ast.Call):
        return False
    if not isinstance(holder, ast.Assign) or len(holder.targets) != 1:
        return False
    target = holder.targets[0]
    if isinstance(target, ast.Attribute) and holder is not parent:
        return not text.is_written_in_class(target)
    if isinstance(target, ast.Name) and holder is parent:
        return _is_name_read(text, holder, target.id)
    return False


def _is_name_read(text: Text, statement: ast.Assign, name: str) -> bool:
    """Whether the first use after the allocation is a read: arithmetic, or an in-place addition."""
    scope = text.module.scope_of(statement)
    later = sorted(
        (one for one in ast.walk(scope) if isinstance(one, ast.Name) and one.id == name and one.lineno > (statement.end_lineno or 0)),
        key=lambda one: (one.lineno, one.col_offset),
    )  # fmt: skip
    if not later or not isinstance(later[0].ctx, ast.Load):
        return bool(later) and isinstance(text.module.parents.get(later[0]), ast.AugAssign)
    use = later[0]
    parent = text.module.parents.get(use)
    if isinstance(parent, ast.Subscript):
        outer = text.module.parents.get(parent)
        if isinstance(outer, ast.AugAssign) and outer.target is parent:
            return True
        if isinstance(outer, ast.Assign):
            return _is_written_in_part(text, outer, parent)
        return False
    if isinstance(parent, ast.Attribute):
        return parent.attr in _READS
    return isinstance(parent, (*_ARITHMETIC, ast.Return)) and not isinstance(scope, ast.Lambda)


def _is_written_in_part(text: Text, statement: ast.Assign, target: ast.Subscript) -> bool:
    """Whether the only writes are rows of varying length, which leave the rest of the memory as it was."""
    if target not in statement.targets or not isinstance(target.slice, ast.Tuple):
        return False
    # Written as `x[row, : len(words)] = words` in a loop.
    has_length = any(
        isinstance(one, ast.Slice) and isinstance(one.upper, ast.Call) and last_part(one.upper.func) == "len"
        for one in target.slice.elts
    )
    written = [
        one
        for one in ast.walk(text.module.scope_of(statement))
        if isinstance(one, ast.Subscript)
        and isinstance(one.ctx, ast.Store)
        and ast.unparse(one.value) == ast.unparse(target.value)
    ]
    return has_length and len(written) == 1


_STATES = {"optimizer": "optim.", "scheduler": "lr_scheduler.", "scaler": "GradScaler"}
"""Parts of a checkpoint that a program has if it creates one of these."""
_GENERATORS = ("get_rng_state", "get_rng_state_all", "getstate", "get_state", "capture", "rng", "generator", "seeds")
_POSITION = ("loader", "sampler", "batch", "position", "step", "iter", "index", "seen")
_PROGRESS = ("epoch", "step", "iteration", "global_step", "iter", "start_epoch", "n_iter")


def of_checkpoints(text: Text) -> Iterator[Finding]:
    """Yield checkpoints that the file resumes training from, and that lack state that training changes."""
    calls = [node for node in text.module.nodes if isinstance(node, ast.Call)]
    names = {text.module.dotted(call.func) for call in calls}
    loads = any(last_part(call.func) == "load_state_dict" for call in calls) and "torch.load" in names
    if not loads or not any(last_part(call.func) == "backward" for call in calls):
        return
    made = _parts_made(text, calls)
    for call in calls:
        if text.module.dotted(call.func) != "torch.save" or not call.args:
            continue
        content = _dictionary(text, call.args[0])
        if content is None or not any(last_part(one.func) == "state_dict" for one in _calls_in(content)):
            continue
        missing = [] if _is_kept_in_memory(text, call) else _lacking(text, call, content, made)
        if missing:
            titles = [PARTS[part].title for part in missing]
            lacking = " and ".join(titles) if len(titles) < 3 else f"{', '.join(titles[:-1])}, and {titles[-1]}"
            message = f"The checkpoint lacks {lacking}, so a resumed run continues differently. {fix(missing[0])}"
            yield text.finding("checkpoint-incomplete", Severity.ON_RESUME, message, call)


def _parts_made(text: Text, calls: Sequence[ast.Call]) -> dict[str, set[str]]:
    """Return the parts of a checkpoint that the program has, with the names of the variables that hold them."""
    named = [(call, text.module.dotted(call.func).replace("optim.lr_scheduler", "lr_scheduler")) for call in calls]
    changes_rates = any("lr_scheduler." in name for _, name in named)
    made: dict[str, set[str]] = {}
    for call, name in named:
        for part, piece in _STATES.items():
            if piece in name and name.startswith("torch.") and (changes_rates or _has_state(call, name)):
                made.setdefault(part, set()).add(_holder(text, call))
    return made


def _lacking(text: Text, call: ast.Call, content: ast.expr, made: Mapping[str, set[str]]) -> list[str]:
    """Return what is missing from a checkpoint that training resumes from; nothing if training does not resume."""
    written = ast.unparse(content).lower()
    # The seeds of this project include the epoch.
    has_seeds = "seeds.state_dict" in written and any(name.startswith("determinism.") for name in text.names)
    keys = {*re.findall(r"'(\w+)'", written), *(one.arg or "" for one in _keywords(content))}
    holds_progress = has_seeds or any(
        key.startswith(word) or key.endswith(f"_{word}") for key in keys for word in _PROGRESS
    )
    if not holds_progress and "optim" not in written and not _is_taken_up(text, call):
        # Weights to be used, not to be trained further.
        return []
    states = [one for one in _calls_in(content) if last_part(one.func) == "state_dict"]
    if all("optim" in ast.unparse(one.func).lower() for one in states):
        # One part of a checkpoint; the other parts are in separate files.
        return []
    saved = {last_part(one) for one in ast.walk(content) if isinstance(one, ast.Name | ast.Attribute)}
    missing = [part for part, held in made.items() if part[:5] not in written and not saved & held]
    if not holds_progress:
        missing.append("number")
    if not any(word in written for word in _GENERATORS):
        missing.append("rng-torch")
    if _is_within_epoch(text, call) and not any(word in written for word in _POSITION):
        missing.append("sampler-position")
    return missing


def _is_taken_up(text: Text, call: ast.Call) -> bool:
    """Whether the file loads what it saves here: the paths are written the same way."""
    place = [one for one in call.args[1:2] if isinstance(one, ast.Constant | ast.Name | ast.Attribute)]
    wanted = {ast.unparse(one) for one in place}
    return any(
        isinstance(one, ast.Call)
        and text.module.dotted(one.func) == "torch.load"
        and any(ast.unparse(argument) in wanted for argument in one.args[:1])
        for one in text.module.nodes
    )


def _holder(text: Text, call: ast.Call) -> str:
    """Return the name of the variable or attribute that a call's result is assigned to; empty if there is none."""
    parent = text.module.parents.get(call)
    return last_part(parent.targets[0]) if isinstance(parent, ast.Assign) else ""


def _is_kept_in_memory(text: Text, call: ast.Call) -> bool:
    """Whether the checkpoint is only kept in memory during the run."""
    target = call.args[1] if len(call.args) > 1 else None
    if not isinstance(target, ast.Name):
        return False
    given = text.module.given(text.module.scope_of(target), target.id)
    return any(isinstance(one, ast.Call) and last_part(one.func) == "BytesIO" for one in given)


def _has_state(call: ast.Call, name: str) -> bool:
    """Whether an optimizer keeps state: plain gradient descent has none."""
    return not name.endswith("optim.SGD") or any(one.arg in ("momentum", None) for one in call.keywords)


def _is_within_epoch(text: Text, call: ast.Call) -> bool:
    """Whether a checkpoint is saved between two batches, in a loop over a loader's batches within a loop over epochs."""
    loops = [one for one in text.module.loops_of(call) if isinstance(one, ast.For | ast.AsyncFor)]
    return len(loops) > 1 and any(
        isinstance(one, ast.Name | ast.Attribute) and "load" in last_part(one).lower()
        for one in ast.walk(loops[0].iter)
    )


def _calls_in(node: ast.AST) -> Iterator[ast.Call]:
    yield from (one for one in ast.walk(node) if isinstance(one, ast.Call))


def _dictionary(text: Text, node: ast.expr) -> ast.expr | None:
    """Return the dictionary that is saved, if it is written as one expression."""
    if isinstance(node, ast.Name):
        scope = text.module.scope_of(node)
        values = [one for one in text.module.bound(scope, node.id) if _is_dictionary(one)]
        stored = any(
            isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store) and last_part(one.value) == node.id
            for one in ast.walk(scope)
        )
        return values[0] if len(values) == 1 and not stored and isinstance(scope, Function | ast.Module) else None
    return node if _is_dictionary(node) else None


def _keywords(content: ast.expr) -> list[ast.keyword]:
    return content.keywords if isinstance(content, ast.Call) else []


def _is_dictionary(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        is_dict = isinstance(node.func, ast.Name) and node.func.id == "dict"
        return is_dict and not node.args and all(one.arg is not None for one in node.keywords)
    return isinstance(node, ast.Dict)


def findings(text: Text) -> Iterator[Finding]:
    """Yield the findings of all of these rules."""
    yield from of_fresh_memory(text)
    yield from of_checkpoints(text)
