"""Rules on frameworks: settings that allow variation, stages and calls ordered by timing, and with `--device`, ops that vary or raise there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from determinism.diagnose.parsed_module import Scope, is_none, last_part, within
from determinism.errors import UsageError
from determinism.lint.execution import drawn_library, seeded_libraries
from determinism.lint.findings import Finding, Severity, Text, rules

if TYPE_CHECKING:
    from determinism.knowledge.entries import Op

_ROOTS = ("torch.", "tensorflow.", "jax.")
_NO_OPS = ("torch.utils.data.",)
"""Entries of the database on these concern the order of data, which no device decides."""
_METHODS = ("scatter", "index_", "put_", "masked_scatter", "histc", "bincount", "cumsum")
"""Prefixes of methods that only tensors have, and that may vary."""
_INDEXING = "torch.Tensor.__getitem__"
_WRITING = "torch.Tensor.__setitem__"
_PARAMETER = ("torch.nn.Parameter", "torch.nn.parameter.Parameter")
_INTEGERS = ("long", "int", "argmax", "argmin", "argsort", "nonzero")
"""Tensor methods whose results are used as indexes."""
_SCATTERS = ("add", "multiply", "mul")
_WORDS = frozenset({"nondeterministic", "raises"})
_ARGUMENT = re.compile(r"\b(\w+)=('\w+'|True|False)")
_READ_FROM_CALL = ("weights are given", "src is a tensor", "under torch.compile")
_FIRST_OPTION = 2
"""Options are not among the first arguments of an op, which are its tensors."""

# Settings: the settings database knows which let runs or machines compute differently, and a rule names them.


@cache
def _settings() -> dict[str, tuple[str, str]]:
    """Return, by the name of a setting, its rule and its effect according to the database."""
    from determinism.knowledge.settings import effects_of

    effects = {name: effect for group in ("torch", "tensorflow") for name, effect in effects_of(group).items()}
    return {name: (rule.identifier, effects[name]) for rule in rules().values() for name in rule.settings}


def of_settings(text: Text) -> Iterator[Finding]:
    """Yield framework settings that let runs or machines compute differently."""
    if not text.uses_frameworks():
        return
    settings = _settings()
    for node in text.module.nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                name = text.module.dotted(target)
                if name in settings and _allows(node.value):
                    yield text.finding(settings[name][0], Severity.MAY_DIFFER, settings[name][1], target)
        elif isinstance(node, ast.Call) and node.args:
            name = text.module.dotted(node.func)
            if name in settings and _allows(node.args[0]):
                yield text.finding(settings[name][0], Severity.MAY_DIFFER, settings[name][1], node)


def _allows(value: ast.expr) -> bool:
    """Whether a setting is turned on, or set below the highest precision."""
    return isinstance(value, ast.Constant) and (value.value is True or value.value in ("high", "medium", "tf32"))


# Ops, by what is known about them.


@cache
def _statuses(name: str, device: str, version: str | None) -> tuple[tuple[str | None, frozenset[str]], ...]:
    """Return the conditions under which an op varies on a device, or is refused by deterministic mode."""
    from determinism.knowledge.query import status

    root = name.partition(".")[0]
    try:
        answers = status(name, framework=root, device=device, version=version)
    except UsageError:
        return ()
    found = [
        (
            one.condition or _name_condition(answer.op, name),
            frozenset(verdict.value for verdict in one.verdicts) & _WORDS,
        )
        for answer in answers
        for one in answer.statuses
    ]
    return tuple((condition, verdicts) for condition, verdicts in found if verdicts)


def _name_condition(op: Op, name: str) -> str | None:
    """Return the argument that makes a function the op, where the op is listed as `torch.nn.functional.pad(mode='reflect')`."""
    listed = [other for other in op.names if other.startswith(f"{name}(")]
    return listed[0].removeprefix(name).strip("()") if listed and name not in (op.name, *op.names) else None


def of_ops(text: Text) -> Iterator[Finding]:
    """Yield ops known to vary, or to refuse deterministic mode, on the named device and in the named version."""
    if text.device is None:
        return
    for node in text.module.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = text.module.dotted(node.func)
        if name.startswith(_NO_OPS):
            continue
        if (scattered := _scattered(text, node)) is not None:
            yield from _of_op(text, text.device, f"jax.numpy.ndarray.at[].{node.func.attr}", scattered, node)  # type: ignore[attr-defined]
            continue
        if not name.startswith(_ROOTS):
            in_place = isinstance(node.func, ast.Attribute) and "torch" in text.module.imports.values()
            if not in_place or not isinstance(node.func, ast.Attribute) or not node.func.attr.startswith(_METHODS):
                continue
            name = f"torch.Tensor.{node.func.attr}"
        yield from _of_op(text, text.device, name, name, node)
    yield from _of_written_elements(text, text.device)
    learned = {ast.unparse(target) for target in _parameters_made(text)}
    for node in text.module.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and ast.unparse(node.value) in learned:
            if _is_tensor(text, node.slice):
                subject = f"The gradient of {ast.unparse(node.value)}, which is indexed by a tensor here,"
                yield from _of_op(text, text.device, _INDEXING, subject, node)


def _scattered(text: Text, call: ast.Call) -> str | None:
    """Return a JAX `x.at[index].add(y)` or the like as the subject of a sentence; None if the call is not one."""
    method = call.func
    place = method.value if isinstance(method, ast.Attribute) else None
    is_at = isinstance(place, ast.Subscript) and isinstance(place.value, ast.Attribute) and place.value.attr == "at"
    if not (isinstance(method, ast.Attribute) and is_at and _uses(text, "jax")) or method.attr not in _SCATTERS:
        return None
    return f"{ast.unparse(method)}, where an index occurs twice,"


def _of_written_elements(text: Text, device: str) -> Iterator[Finding]:
    """Yield writes through an index that may contain duplicates; the value that remains is then the last writer's."""
    for node in text.module.nodes:
        if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Constant | ast.UnaryOp):
            continue
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _holds_positions(text, target.slice):
                subject = f"Writing to {ast.unparse(target.value)} with an index that may contain duplicates"
                yield from _of_op(text, device, _WRITING, subject, target)


def _holds_positions(text: Text, index: ast.expr, depth: int = 0) -> bool:
    """Whether the text shows that an index holds positions of elements, rather than a mask or a permutation."""
    if isinstance(index, ast.BinOp) and not isinstance(index.op, ast.BitAnd | ast.BitOr | ast.BitXor):
        return _holds_positions(text, index.left, depth) or _holds_positions(text, index.right, depth)
    if isinstance(index, ast.Call) and isinstance(index.func, ast.Attribute):
        return index.func.attr in ("long", "int") or (
            index.func.attr in ("clamp", "clip", "flatten", "reshape", "view")
            and _holds_positions(text, index.func.value, depth)
        )
    if isinstance(index, ast.Name) and depth < 3:
        return any(
            _holds_positions(text, one, depth + 1) for one in text.module.given(text.module.scope_of(index), index.id)
        )
    return False


def _of_op(text: Text, device: str, name: str, subject: str, node: ast.expr) -> Iterator[Finding]:
    """Yield what is known about one op at its use; the subject of the sentence may describe it."""
    version = dict(text.versions).get(name.partition(".")[0])
    known = [
        (condition, verdicts)
        for condition, verdicts in _statuses(name, device, version)
        if condition is None or not isinstance(node, ast.Call) or _may_hold(text, node, condition)
    ]
    if not known:
        return
    always = [verdicts for condition, verdicts in known if condition is None or _is_in_call(condition)]
    verdicts = frozenset().union(*(always or [one for _, one in known]))
    varies, refuses = "nondeterministic" in verdicts, "raises" in verdicts
    what = "varies from run to run" if varies else "refuses deterministic mode"
    more = ", and refuses deterministic mode" if varies and refuses else ""
    where = f"on {device}" + (f" in version {version}" if version else "")
    if not always:
        where += f" if this holds: {'; or: '.join(dict.fromkeys(condition for condition, _ in known if condition))}"
    message = f"{subject} {what} {where}{more}; `determinism status {name}` says what to do."
    yield text.finding("nondeterministic-op", Severity.MAY_DIFFER, message, node)


def _is_in_call(condition: str) -> bool:
    """Whether a condition concerns only an argument, so that the call shows whether it holds."""
    return bool(_ARGUMENT.search(condition)) or condition in _READ_FROM_CALL


def _may_hold(text: Text, call: ast.Call, condition: str) -> bool:
    """Whether a condition under which an op varies may hold, judging by the call and its file."""
    given = {one.arg: one.value for one in call.keywords}
    values = dict(_ARGUMENT.findall(condition))
    if values and None not in given:
        return any(_is_given(given.get(name), call.args, name, value) for name, value in _ARGUMENT.findall(condition))
    if condition == "weights are given":
        return "weights" in given or len(call.args) > 1 or not text.module.dotted(call.func).startswith("torch.")
    if condition == "src is a tensor":
        return "value" not in given and not any(isinstance(one, ast.Constant) for one in call.args[2:])
    if condition.startswith("in TorchScript"):
        return any(name.startswith("torch.jit") for name in text.names)
    if condition == "under torch.compile":
        return "torch.compile" in text.names
    if "four dimensions" in condition:
        # Class scores per sample come from a linear layer; scores per pixel come from convolutions alone.
        return bool(text.calls & {"Conv2d", "ConvTranspose2d"}) and not text.calls & {"Linear", "LazyLinear", "flatten"}
    return True


def _is_given(value: ast.expr | None, positional: Sequence[ast.expr], name: str, wanted: str) -> bool:
    """Whether an argument may have a value; if omitted, it has its default, which is False or differs from the wanted value."""
    if value is None:
        constants = [one.value for one in positional if isinstance(one, ast.Constant)]
        # A positional value that is not a literal may be any of the wanted ones.
        is_open = any(not isinstance(one, ast.Constant) for one in positional[_FIRST_OPTION:])
        return wanted == "False" or is_open or any(str(one) == wanted.strip("'") for one in constants)
    return not isinstance(value, ast.Constant) or str(value.value) == wanted.strip("'")


def _parameters_made(text: Text) -> Iterator[ast.expr]:
    """Yield the names and attributes that are assigned a PyTorch parameter, which gets a gradient."""
    for node in text.module.nodes:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Call) and text.module.dotted(value.func) in _PARAMETER:
            frozen = any(one.arg == "requires_grad" and _is_constant(one.value, False) for one in value.keywords)
            yield from () if frozen else targets


def _is_tensor(text: Text, index: ast.expr) -> bool:
    """Whether the text shows an index to be a tensor: by annotation, as an argument of `forward`, or by assignment."""
    if isinstance(index, ast.Tuple):
        return any(_is_tensor(text, one) for one in index.elts)
    if isinstance(index, ast.Call):
        name = text.module.dotted(index.func)
        return name.startswith("torch.") or (isinstance(index.func, ast.Attribute) and index.func.attr in _INTEGERS)
    if not isinstance(index, ast.Name):
        return False
    scope = text.module.scope_of(index)
    given = text.module.given(scope, index.id)
    if given or not isinstance(scope, ast.FunctionDef):
        return any(isinstance(one, ast.Call) and _is_tensor(text, one) for one in given)
    arguments = [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]
    annotation = next((one.annotation for one in arguments if one.arg == index.id), None)
    if annotation is not None:
        return last_part(annotation).endswith("Tensor")
    return scope.name == "forward" and index.id in [one.arg for one in arguments]


# Results decided by timing, or by a generator that is not restored.

_SAFE = ("1", "None")
_RANDOM_LAYER = re.compile(r"\.layers\.(Random[A-Z]|RandAugment$|AugMix$|CutMix$|MixUp$)")
"""Layers that draw for each call from a variable that holds their seed, even if they are given one."""


def of_calls(text: Text) -> Iterator[Finding]:
    """Yield receives without a source, recomputation with other random numbers, and parallel stages that draw."""
    for node in text.module.nodes:
        if isinstance(node, ast.Call):
            yield from _of_call(text, node)
        elif isinstance(node, ast.Assign) and _is_constant(node.value, False):
            for target in node.targets:
                is_option = last_part(target) in ("deterministic", "experimental_deterministic")
                if is_option and isinstance(target, ast.Attribute) and _uses(text, "tensorflow"):
                    message = "The option lets the pipeline yield elements in the order in which they complete."
                    yield text.finding("pipeline-order", Severity.MAY_DIFFER, message, target)


def _of_call(text: Text, node: ast.Call) -> Iterator[Finding]:
    name, keywords = text.module.dotted(node.func), {one.arg: one.value for one in node.keywords}
    if name in ("torch.distributed.recv", "torch.distributed.irecv"):
        source = node.args[1] if len(node.args) > 1 else keywords.get("src")
        if None not in keywords and (source is None or is_none(source)):
            message = f"{name} without a source takes whatever arrives first, which differs from run to run."
            yield text.finding("arrival-order", Severity.MAY_DIFFER, message, node)
    elif last_part(node.func) == "checkpoint" and _is_constant(keywords.get("preserve_rng_state"), False):
        # Draws from a seeded generator differ from those in the forward pass, but are the same in each run.
        if _seeds_for_good(text):
            return
        message = "The backward pass runs this again with different random numbers, such as those of dropout."
        yield text.finding("recomputed-randomness", Severity.MAY_DIFFER, message, node)
    elif last_part(node.func) in ("map", "interleave") and _uses(text, "tensorflow") and node.args:
        parallel = keywords.get("num_parallel_calls") or (node.args[1] if len(node.args) > 1 else None)
        if parallel is not None and ast.unparse(parallel) not in _SAFE and _draws(text, node.args[0]):
            message = (
                "Elements are processed in parallel here and draw from one generator: which one draws first differs."
            )
            yield text.finding("pipeline-race", Severity.MAY_DIFFER, message, node)


def _seeds_for_good(text: Text) -> bool:
    """Whether PyTorch is seeded outside any block that restores its generator."""
    for node in text.module.nodes:
        if isinstance(node, ast.Call) and "torch" in seeded_libraries(text.module, node):
            blocks = (one for one in text.module.outwards(node) if isinstance(one, ast.With))
            if not any("fork_rng" in ast.unparse(one.items[0]) for one in blocks):
                return True
    return False


def _draws(text: Text, function: ast.expr) -> bool:
    """Whether a function of the file draws from TensorFlow's global generator, or from the seeds that a layer of Keras keeps."""
    bodies: list[Scope] = [function] if isinstance(function, ast.Lambda) else []
    if isinstance(function, ast.Name | ast.Attribute):
        bodies += [one for _, one in text.program.functions.get(last_part(function), ())]
    called = [one for body in bodies for one in within(body) if isinstance(one, ast.Call)]
    return any(drawn_library(text.module, one) == "tensorflow" for one in called) or any(
        _has_random_layer(text, one) for one in (function, *(call.func for call in called))
    )


def _has_random_layer(text: Text, name: ast.expr) -> bool:
    """Whether a name refers to a random layer of Keras, or to a model made of some on the same lines."""
    values = text.program.values_of(text.module, name, as_whole=True) if isinstance(name, ast.Name) else ()
    made = (one for _, value in values for one in ast.walk(value) if isinstance(one, ast.Call))
    return any(_RANDOM_LAYER.search(text.module.dotted(one.func)) for one in made)


def _uses(text: Text, root: str) -> bool:
    return root in text.module.packages


def _is_constant(node: Any, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def findings(text: Text) -> Iterator[Finding]:
    """Yield the findings of all of these rules."""
    yield from of_settings(text)
    yield from of_ops(text)
    yield from of_calls(text)
