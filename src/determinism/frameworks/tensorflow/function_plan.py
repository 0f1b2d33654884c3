"""What a function's graph will do when it runs: the records to be made, in the order in which the program wrote its ops.

Ops of a graph run concurrently, in another order each time. So the order is taken from the graph, and only what the results hold
from the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from determinism.frameworks.tensorflow import op_traits
from determinism.frameworks.tensorflow.graph_attributes import argument_text, constant_text
from determinism.frameworks.tensorflow.graph_places import Place, is_of_gradient, place_of
from determinism.frameworks.tensorflow.tensor_bytes import has_value

_MOST_FUSED_NAMES = 4
_FUNCTIONS = ("cond", "body", "then_branch", "else_branch")


class Sort(Enum):
    """What a node of the graph is to the records."""

    OP = "op"
    READ = "read"
    """Hands over what a variable holds."""
    CALL = "call"
    BRANCH = "branch"
    LOOP = "loop"
    OPAQUE = "opaque"
    """Runs functions that cannot be looked into."""


@dataclass
class Node:
    """One op of the graph that is recorded, or that leads to others."""

    op: Any
    sort: Sort
    name: str
    inputs: tuple[int, ...]
    """Slots of the values that it reads, those of ops fused with it included."""
    outputs: list[tuple[int, int]] = field(default_factory=list)
    """Per output its slot, and its position among the watched tensors; -1 for one that cannot be looked at."""
    place: Place | None = None
    arguments: str = ""
    functions: tuple[str, ...] = ()
    """Names of the functions that it runs."""
    given: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Of an op that runs functions: per input its slots."""
    constants: dict[int, str] = field(default_factory=dict)
    """Of such an op: the inputs that are constants, in words."""


class FunctionPlan:
    """The nodes of one function, and where their values come from."""

    def __init__(self, graph: Any, *, watches_result: bool = False) -> None:
        """Read a graph.

        Args:
            graph: A `FuncGraph`.
            watches_result: Whether what it returns must be known, as of the condition of a loop.
        """
        self.nodes: list[Node] = []
        self.watched: list[Any] = []
        """The tensors whose content is wanted from a run."""
        self._slots: dict[int, tuple[int, ...]] = {}
        """By the id of a tensor: the slots in which its value lies; several for one that is fused with its reader."""
        self._fused: dict[int, tuple[str, ...]] = {}
        self._constants: dict[int, str] = {}
        self.num_slots = 0
        self._returned = {id(tensor) for tensor in graph.outputs}
        self._wants_result = watches_result
        self.arguments = [self._new_slot(tensor) for tensor in graph.inputs]
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
        elif kind in op_traits.PASSING:
            for given, made in zip(op.inputs, op.outputs, strict=False):
                self._pass_on(given, made)
        elif kind in op_traits.UNRECORDED:
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
        if op.type in op_traits.CALLS:
            sort = Sort.CALL
        elif op.type in op_traits.BRANCHES:
            sort = Sort.BRANCH
        else:
            sort = Sort.LOOP if op.type in op_traits.LOOPS else Sort.OPAQUE
        self._add_node(op, sort, functions)

    def _is_fused(self, op: Any) -> bool:
        """Whether the graph optimizer may compute an op together with what reads it."""
        if not op_traits.may_be_rewritten(op.type) or any(id(made) in self._returned for made in op.outputs):
            return False
        if any(self._consumers.get(id(made)) for made in op.outputs[1:]):
            return False
        readers = [reader.type for reader in self._consumers.get(id(op.outputs[0]), ())]
        return op_traits.may_be_fused(op.type, readers, only_forward=self._is_only_forward)

    def _fuse(self, op: Any) -> None:
        inputs, names, constants = self._read(op)
        made = id(op.outputs[0])
        self._slots[made] = inputs
        self._fused[made] = (*names, op.type)
        text = ", ".join(part for part in (argument_text(op), constants) if part)
        if text:
            self._constants[made] = f"{op.type}({text})"

    def _read(self, op: Any) -> tuple[tuple[int, ...], tuple[str, ...], str]:
        """The slots that an op reads, the types of the ops fused with it, and its constants in words."""
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

    def _watch(self, tensor: Any) -> int:
        if not has_value(tensor.dtype):
            return -1
        self.watched.append(tensor)
        return len(self.watched) - 1

    def watch_outputs(self, node: Node) -> None:
        """Look at what a node makes after all: what it runs cannot be looked into."""
        node.outputs = [(slot, self._watch(t)) for (slot, _), t in zip(node.outputs, node.op.outputs, strict=True)]

    def watch_result(self, graph: Any) -> int | None:
        """The position among the watched tensors of what the function returns first; None if it is not watched."""
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
    """Names of the functions that an op runs; of a loop its condition, then its body; of a branch the one for true first."""
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
    """Ids of the ops that run: those whose results are returned, that must run for what they change, or that such ones wait for.

    TensorFlow leaves the others out. To look at their results would make them run.
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
    """By the id of a tensor the ops that read it; where it is only handed over, those behind."""
    found: dict[int, list[Any]] = {}
    for op in reversed(graph.get_operations()):
        if id(op) not in needed:
            continue
        for position, tensor in enumerate(op.inputs):
            readers = found.setdefault(id(tensor), [])
            if op.type in op_traits.PASSING and op.type != "ReadVariableOp" and position < len(op.outputs):
                readers += found.get(id(op.outputs[position]), [])
                if any(op.outputs[position] is tensor for tensor in graph.outputs):
                    readers.append(op)
            else:
                readers.append(op)
    return found
