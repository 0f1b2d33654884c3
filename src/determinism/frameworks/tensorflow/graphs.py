"""Plans the records that a run of a function's graph will make, in the order in which the program wrote its ops.

Ops of a graph run concurrently, in a different order each time. So the order is taken from the graph, and only the results
from the run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from determinism.digest import digest_bytes
from determinism.frameworks.tensorflow import ops
from determinism.frameworks.tensorflow.ops import has_value
from determinism.redaction import redacted_code
from determinism.trace.schema import INPUT_PATHS
from determinism.types import Phase

# The attributes and constants of an op in a graph, as text that is equal in all runs.

_LEFT_OUT = frozenset(
    {
        "T", "Tin", "Tout", "Tidx", "Tshape", "Tdim", "Tindices", "Tparams", "Targuments", "Tcond", "Tblock_shape", "Taxis", "Tlen",
        "Tmultiples", "Tpaddings", "Tperm", "dtype", "value", "out_type", "SrcT", "DstT", "shared_name", "container", "debug_name", "token",
        "config", "config_proto", "executor_type", "output_shapes", "output_types", "parallel_iterations", "N", "is_async",
        "allowed_devices", "element_dtype", "shape_type", "metadata", "num_args", "read_only_resource_inputs",
    }
)  # fmt: skip
_MOST_ELEMENTS = 8
_MOST_TEXT = 300


def argument_text(op: Any) -> str:
    """The attributes that determine what an op computes, without names that differ per run, and types that layouts show."""
    parts = []
    attributes = op.node_def.attr
    for name in sorted(attributes):
        if name in _LEFT_OUT or name.startswith("_"):
            continue
        value = attributes[name]
        if value.HasField("func") or (value.HasField("list") and value.list.func):
            continue
        parts.append(f"{name}={_attribute(value)}")
    return _short(", ".join(parts))


def _attribute(value: Any) -> str:
    which = value.WhichOneof("value")
    if which == "s":
        return str(value.s.decode("utf-8", "backslashreplace"))
    if which == "list":
        held = value.list
        return str([_plain(one) for field in ("s", "i", "f", "b", "type") for one in getattr(held, field)])
    if which == "shape":
        return str([dim.size for dim in value.shape.dim])
    if which == "tensor":
        return digest_bytes(value.tensor.SerializeToString(deterministic=True)).hex()
    return str(getattr(value, which)) if which else ""


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def eager_argument_text(attributes: tuple[Any, ...] | None) -> str:
    """The attributes of an op that ran eagerly.

    Args:
        attributes: Names and values, alternating.
    """
    parts = {}
    for name, value in zip((attributes or ())[::2], (attributes or ())[1::2], strict=False):
        if name in _LEFT_OUT or name.startswith("_"):
            continue
        if isinstance(value, (bool, int, float, str, bytes, type(None), list, tuple)):
            parts[name] = f"{name}={value!r}" if not isinstance(value, (list, tuple)) else f"{name}={_texts(value)}"
    return _short(", ".join(parts[name] for name in sorted(parts)))


def _texts(values: Any) -> str:
    return str([one if isinstance(one, (bool, int, float, str, bytes)) else type(one).__name__ for one in values])


def constant_text(op: Any) -> str:
    """The content of a constant of the graph: its numbers if they are few, else a digest."""
    held = op.node_def.attr["value"].tensor
    elements = 1
    for dim in held.tensor_shape.dim:
        elements *= dim.size
    if elements <= _MOST_ELEMENTS:
        from tensorflow.python.framework import tensor_util

        array = tensor_util.MakeNdarray(held)
        return _short(str(array.tolist()))
    return digest_bytes(held.SerializeToString(deterministic=True)).hex()


def _short(text: str) -> str:
    shown = redacted_code(text[:_MOST_TEXT])
    # The digest distinguishes redacted secrets, and shortened texts, from each other.
    return text if shown == text else f"{shown} … {digest_bytes(text.encode('utf-8', 'surrogatepass')).hex()}"


# Where an op of a graph belongs: the user's line that created it, the layer, and the phase of the program.

_OPTIMIZER_FILES = (
    os.path.join("keras", "src", "optimizers") + os.sep,
    os.path.join("tensorflow", "python", "training") + os.sep,
)
_BACKWARD_NAMES = re.compile(r"(^|/)(gradient_tape|gradients)(_\d+)?/")
_OF_GRADIENTS = re.compile(r"(gradient_tape|gradients)(_\d+)?/")
_TAPE_FILE = os.path.join("tensorflow", "python", "eager", "backprop.py")


class Place(NamedTuple):
    """Where an op belongs."""

    phase: Phase
    module: str
    """Name scopes around the op: in Keras, the path of the layer."""
    frames: tuple[tuple[str, int, str], ...]
    """File, line and function, innermost first."""
    forward_frames: tuple[tuple[str, int, str], ...] = ()
    """For an op of a gradient, the frames of its forward op, if that is in the same graph."""


def place_of(op: Any) -> Place:
    """Where an op of a graph was created.

    Args:
        op: An op of a `FuncGraph`; in a loaded graph it has no frames.
    """
    frames = _frames_of(op)
    name = op.name
    forward: tuple[tuple[str, int, str], ...] = ()
    if is_of_gradient(name) or any(file.endswith(_TAPE_FILE) for file, _, _ in frames):
        phase = Phase.BACKWARD
        forward = _frames_of(_forward_op(op))
    elif any(part in file for file, _, _ in frames for part in _OPTIMIZER_FILES):
        phase = Phase.OPTIMIZER
    else:
        phase = Phase.FORWARD
    return Place(phase, layer_path(name), frames, forward)


def is_of_gradient(name: str) -> bool:
    """Whether an op of this name computes gradients."""
    return _BACKWARD_NAMES.search(name) is not None


def _frames_of(op: Any) -> tuple[tuple[str, int, str], ...]:
    try:
        return tuple((f.filename, f.lineno or 0, f.name) for f in reversed(list(op.traceback)))
    except (AttributeError, ValueError, TypeError):
        return ()


def _forward_op(op: Any) -> Any:
    """The forward op of a gradient's op: TensorFlow puts the gradient into a scope with its name."""
    path = _OF_GRADIENTS.sub("", op.name)
    while "/" in path:
        path = path.rpartition("/")[0]
        try:
            return op.graph.get_operation_by_name(path)
        except (KeyError, ValueError):
            continue
    return None


def layer_path(name: str) -> str:
    """The path of the layer in the name of an op: `gradient_tape/model/dense/MatMul` belongs to `model/dense`."""
    path, found = _OF_GRADIENTS.subn("", name)
    path = path.rpartition("/")[0]
    before, _, last = path.rpartition("/")
    # The layer is followed by the forward op.
    return before if found and last[:1].isupper() else path


_MOST_FUSED_NAMES = 4
_FUNCTIONS = ("cond", "body", "then_branch", "else_branch")


class Sort(Enum):
    """The kinds of nodes in a plan."""

    OP = "op"
    READ = "read"
    """Reads a variable."""
    CALL = "call"
    BRANCH = "branch"
    LOOP = "loop"
    OPAQUE = "opaque"
    """Runs functions that cannot be copied."""


@dataclass
class Node:
    """One op of the graph that is recorded, or that runs functions with recorded ops."""

    op: Any
    sort: Sort
    name: str
    inputs: tuple[int, ...]
    """Slots of the values that it reads, including those of ops fused with it."""
    outputs: list[tuple[int, int]] = field(default_factory=list)
    """For each output, its slot, and its position among the watched tensors; -1 for one that cannot be watched."""
    place: Place | None = None
    arguments: str = ""
    functions: tuple[str, ...] = ()
    """Names of the functions that it runs."""
    given: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """For an op that runs functions, the slots of each input."""
    constants: dict[int, str] = field(default_factory=dict)
    """For such an op, the inputs that are constants, as text."""


class FunctionPlan:
    """The nodes of one function, and where their values come from."""

    def __init__(self, graph: Any) -> None:
        """Read a graph: a `FuncGraph`."""
        self.nodes: list[Node] = []
        self.watched: list[Any] = []
        """The tensors whose content is needed from a run."""
        self._slots: dict[int, tuple[int, ...]] = {}
        """By id of a tensor, the slots of its value; those of the op's inputs for one that is fused with its reader."""
        self._fused: dict[int, tuple[str, ...]] = {}
        self._constants: dict[int, str] = {}
        self.num_slots = 0
        self._returned = {id(tensor) for tensor in graph.outputs}
        self.arguments = [self._new_slot(tensor) for tensor in graph.inputs]
        self._paths = {slot: t.op.name for slot, t in zip(self.arguments, graph.inputs, strict=True)}
        """By slot, the name of the function's argument in it."""
        self._handles = {
            slot for slot, t in zip(self.arguments, graph.inputs, strict=True) if t.dtype.base_dtype.name == "resource"
        }
        needed = needed_ops(graph)
        self._consumers = _consumers(graph, needed)
        self._is_only_forward = not any(is_of_gradient(op.name) for op in graph.get_operations())
        for op in graph.get_operations():
            if id(op) in needed:
                self._add(op)
        self.results = [self._slots.get(id(tensor), ()) for tensor in graph.outputs]

    def _new_slot(self, tensor: Any) -> int:
        slot = self.num_slots
        self.num_slots += 1
        self._slots[id(tensor)] = (slot,)
        return slot

    def _add(self, op: Any) -> None:
        kind = op.type
        if kind == "Const":
            self._constants[id(op.outputs[0])] = constant_text(op)
        elif kind == "ReadVariableOp":
            self._add_node(op, Sort.READ)
        elif kind in ops.PASSING:
            for given, made in zip(op.inputs, op.outputs, strict=False):
                self._pass_on(given, made)
        elif kind in ops.UNRECORDED:
            return
        elif functions := called_functions(op):
            self._add_call(op, functions)
        elif self._is_fused(op):
            self._fuse(op)
        else:
            self._add_node(op, Sort.OP)

    def _pass_on(self, given: Any, made: Any) -> None:
        self._slots[id(made)] = self._slots.get(id(given), ())
        if id(given) in self._constants:
            self._constants[id(made)] = self._constants[id(given)]
        if id(given) in self._fused:
            self._fused[id(made)] = self._fused[id(given)]

    def _add_call(self, op: Any, functions: tuple[str, ...]) -> None:
        if op.type in ops.CALLS:
            sort = Sort.CALL
        elif op.type in ops.BRANCHES:
            sort = Sort.BRANCH
        else:
            sort = Sort.LOOP if op.type in ops.LOOPS else Sort.OPAQUE
        self._add_node(op, sort, functions)

    def _is_fused(self, op: Any) -> bool:
        """Whether the graph optimizer may compute an op together with its readers."""
        if not ops.may_be_rewritten(op.type) or any(id(made) in self._returned for made in op.outputs):
            return False
        if any(self._consumers.get(id(made)) for made in op.outputs[1:]):
            return False
        readers = [reader.type for reader in self._consumers.get(id(op.outputs[0]), ())]
        return ops.may_be_fused(op.type, readers, only_forward=self._is_only_forward)

    def _fuse(self, op: Any) -> None:
        inputs, names, constants = self._read(op)
        made = id(op.outputs[0])
        self._slots[made] = inputs
        self._fused[made] = (*names, op.type)
        text = ", ".join(part for part in (argument_text(op), constants) if part)
        if text:
            self._constants[made] = f"{op.type}({text})"

    def _read(self, op: Any) -> tuple[tuple[int, ...], tuple[str, ...], str]:
        """The slots that an op reads, the types of the ops fused with it, and its constants as text."""
        slots: list[int] = []
        names: list[str] = []
        constants: list[str] = []
        for position, tensor in enumerate(op.inputs):
            fused = self._fused.get(id(tensor), ())
            names += [name for name in fused if name not in names]
            if constant := self._constants.get(id(tensor)):
                constants.append(constant if fused else f"{position}: {constant}")
            of_tensor = self._slots.get(id(tensor), ())
            slots += of_tensor if not fused else [slot for slot in of_tensor if slot not in slots]
        return tuple(slots), tuple(names), ", ".join(constants)

    def _add_node(self, op: Any, sort: Sort, functions: tuple[str, ...] = ()) -> None:
        inputs, fused, constants = self._read(op)
        text = ", ".join(part for part in (argument_text(op), constants) if part) if sort is not Sort.READ else ""
        text += self._paths_of(inputs) if sort is not Sort.READ else ""
        node = Node(op, sort, _name(op.type, fused), inputs, arguments=text, functions=functions)
        if sort is not Sort.READ:
            node.place = place_of(op)
        if functions:
            node.given = {at: self._slots.get(id(tensor), ()) for at, tensor in enumerate(op.inputs)}
            node.constants = {at: self._constants[id(t)] for at, t in enumerate(op.inputs) if id(t) in self._constants}
        looks = sort in (Sort.OP, Sort.OPAQUE)
        for tensor in op.outputs:
            node.outputs.append((self._new_slot(tensor), self._watch(tensor) if looks else -1))
        self.nodes.append(node)

    def _paths_of(self, slots: Sequence[int]) -> str:
        """Text that names the function's arguments that an op reads; handles are not inputs of its record."""
        paths = [self._paths.get(slot, "") for slot in slots if slot not in self._handles]
        return INPUT_PATHS + json.dumps(paths) if any(paths) else ""

    def _watch(self, tensor: Any) -> int:
        if not has_value(tensor.dtype) or ops.makes_resource_handle(tensor.op.type):
            return -1
        self.watched.append(tensor)
        return len(self.watched) - 1

    def watch_outputs(self, node: Node) -> None:
        """Watch the outputs of a node after all, because the functions that it runs cannot be copied."""
        node.outputs = [(slot, self._watch(t)) for (slot, _), t in zip(node.outputs, node.op.outputs, strict=True)]

    def watch_result(self, graph: Any) -> int | None:
        """Watch the function's first result, and return its position among the watched tensors; None if it has no value."""
        for position, tensor in enumerate(self.watched):
            if tensor is graph.outputs[0]:
                return position
        if not has_value(graph.outputs[0].dtype):
            return None
        self.watched.append(graph.outputs[0])
        return len(self.watched) - 1


def _name(kind: str, fused: tuple[str, ...]) -> str:
    names = [*fused, kind]
    if len(names) > _MOST_FUSED_NAMES:
        names = [*names[: _MOST_FUSED_NAMES - 1], "…", kind]
    return "tf::" + "+".join(names)


def called_functions(op: Any) -> tuple[str, ...]:
    """Names of the functions that an op runs; for a loop the condition, then the body; for a branch the one for true first."""
    found = op.node_def.attr
    names: list[str] = []
    for name in sorted(
        found, key=lambda name: (_FUNCTIONS.index(name) if name in _FUNCTIONS else len(_FUNCTIONS), name)
    ):
        attribute = found[name]
        if attribute.HasField("func"):
            names.append(attribute.func.name)
        elif attribute.HasField("list"):
            names += [one.name for one in attribute.list.func]
    return tuple(names)


def needed_ops(graph: Any) -> set[int]:
    """Ids of the ops that run: those whose results are returned, those with required side effects, and those that these depend on.

    TensorFlow prunes the others. Watching their results would make them run.
    """
    waiting = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    needed: set[int] = set()
    while waiting:
        op = waiting.pop()
        if id(op) not in needed:
            needed.add(id(op))
            waiting += [tensor.op for tensor in op.inputs]
            waiting += op.control_inputs
    return needed


def _consumers(graph: Any, needed: set[int]) -> dict[int, list[Any]]:
    """The ops that read each tensor, by its id; ops that only pass it on are replaced by their readers."""
    found: dict[int, list[Any]] = {}
    for op in reversed(graph.get_operations()):
        if id(op) not in needed:
            continue
        for position, tensor in enumerate(op.inputs):
            readers = found.setdefault(id(tensor), [])
            if op.type in ops.PASSING and op.type != "ReadVariableOp" and position < len(op.outputs):
                readers += found.get(id(op.outputs[position]), [])
                if any(op.outputs[position] is tensor for tensor in graph.outputs):
                    readers.append(op)
            else:
                readers.append(op)
    return found
