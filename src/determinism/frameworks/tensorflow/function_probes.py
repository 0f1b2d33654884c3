"""Makes, of a function, a second one that computes the same and hands what its ops made to Python.

The program's own function is left as it is: what is traced, saved or differentiated stays the program's. Where an op would run a
function, the second one runs a second one too, made for this place alone, so that what comes back says by itself where it was made.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from tensorflow.core.framework import function_pb2, types_pb2
from tensorflow.python.framework import function_def_to_graph, op_def_registry
from tensorflow.python.ops import script_ops

from determinism.frameworks.tensorflow.function_plan import FunctionPlan, Node, Sort
from determinism.frameworks.tensorflow.tensor_bytes import digest_array

_XLA = "_XlaMustCompile"
_NAME = "determinism_watch"
_MOST_DEPTH = 40
_STATEFUL = {
    "StatelessWhile": "While",
    "StatelessIf": "If",
    "StatelessCase": "Case",
    "PartitionedCall": "StatefulPartitionedCall",
}

_arrivals = itertools.count()
_numbers = itertools.count(1)
"""Of second versions: TensorFlow keeps them for as long as the process runs, so their names must not come again."""


class Execution:
    """What one run of a function made."""

    __slots__ = ("arrays", "arrival", "digests", "result", "shapes")

    def __init__(self, arrival: int, digests: list[bytes], shapes: list[tuple[int, ...]], result: bool) -> None:
        self.arrival = arrival
        self.arrays: list[Any] = []
        """What was made itself; only where a record is looked at closely."""
        self.digests = digests
        self.shapes = shapes
        self.result = result
        """What it returned, if that was the condition of a loop."""


class Probe:
    """A function at one place of the program, and what came back from its runs."""

    keeps_arrays = False
    """Whether what the ops made is kept until it is recorded."""

    def __init__(self, name: str, graph: Any, plan: FunctionPlan, result_at: int | None) -> None:
        self.name = name
        self.graph = graph
        self.plan = plan
        self.executions: deque[Execution] = deque()
        self.children: dict[int, tuple[Probe | None, ...]] = {}
        """By the position of a node of the plan: what it runs; None for a function that cannot be looked into."""
        self.clone = ""
        self._result_at = result_at
        self.tells_result = result_at is not None
        self.failed: Callable[[Exception], None] = lambda error: None
        # The registry holds it weakly.
        self._receive = self._received
        self.token = script_ops._py_funcs.insert(self._receive)

    def _received(self, *given: Any) -> list[Any]:
        # Runs in a thread of TensorFlow, while the one that called the function waits for it.
        try:
            result = self._result_at is not None and bool(given[self._result_at])
            # A single string comes as bytes.
            arrays = [one if hasattr(one, "dtype") else np.asarray(one, object) for one in given]
            made = Execution(next(_arrivals), [digest_array(a) for a in arrays], [a.shape for a in arrays], result)
            if Probe.keeps_arrays:
                made.arrays = [array.copy() for array in arrays]
            self.executions.append(made)
        except Exception as error:
            self.failed(error)
        return [] if self._result_at is None else [given[self._result_at]]

    def forget(self) -> None:
        """Drop what came back and was not asked for."""
        self.executions.clear()
        for children in self.children.values():
            for child in children:
                if child is not None:
                    child.forget()


class Library:
    """Knows the graphs of functions by their names, and makes their second versions."""

    def __init__(self, failed: Callable[[str, Exception], None]) -> None:
        """Take what is told what could not be looked into."""
        self.graphs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._inner: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._failed = failed
        self.compiled: set[str] = set()
        """Names of functions that XLA compiles."""

    def made(self, name: str, graph: Any) -> None:
        """A function was made from a graph."""
        self.graphs[name] = graph
        outer = getattr(graph, "outer_graph", None)
        if outer is not None:
            # The graph of a loop's body is needed as long as the one around it, and nothing else holds it.
            self._inner.setdefault(outer, []).append(graph)

    def probe(self, context: Any, name: str, depth: int = 0, *, is_condition: bool = False) -> Probe | None:
        """Make the second version of a function, and of all that it runs; None if it cannot be looked into.

        Args:
            context: TensorFlow's eager context, which gets the functions.
            name: Of the function.
            depth: How many functions run it.
            is_condition: Whether it tells a loop to go on.
        """
        definition = context.get_function_def(name)
        graph, names = self._graph(name, definition)
        if definition.attr[_XLA].b if _XLA in definition.attr else False:
            self.compiled.add(name)
            return None
        if depth > _MOST_DEPTH:
            return None
        plan = FunctionPlan(graph)
        result_at = plan.watch_result(graph) if is_condition else None
        probe = Probe(name, graph, plan, result_at)
        probe.failed = lambda error: self._failed(name, error)
        clone = function_pb2.FunctionDef()
        clone.CopyFrom(definition)
        clone.signature.name = probe.clone = f"{name}_watched_{next(_numbers)}"
        nodes = {node.name: node for node in clone.node_def}
        for position, node in enumerate(plan.nodes):
            if node.functions and node.sort is not Sort.OPAQUE:
                self._replace_functions(context, probe, position, node, nodes[names[node.op.name]], depth)
                if None not in probe.children[position]:
                    _must_run(clone, names[node.op.name], f"{_NAME}_{position}")
        if plan.watched:
            _add_watcher(clone, probe, names)
        context.add_function_def(clone)
        return probe

    def _graph(self, name: str, definition: Any) -> tuple[Any, dict[str, str]]:
        """The graph that a function was made from, and what the function calls each op of it.

        A graph that was changed since, or taken apart, is made anew, without the user's lines.
        """
        graph = self.graphs.get(name)
        names = _names(graph, definition) if graph is not None else None
        if names is None:
            graph = function_def_to_graph.function_def_to_graph(definition)
            names = {node.name: node.name for node in definition.node_def}
        return graph, names

    def _replace_functions(self, context: Any, probe: Probe, position: int, node: Node, made: Any, depth: int) -> None:
        if _XLA in made.attr and made.attr[_XLA].b:
            self.compiled.update(node.functions)
            probe.children[position] = (None,) * len(node.functions)
            probe.plan.watch_outputs(node)
            return
        is_loop = node.sort is Sort.LOOP
        condition = made.attr["cond"].func.name if is_loop else ""
        children = {
            name: self.probe(context, name, depth + 1, is_condition=name == condition)
            for name in dict.fromkeys(node.functions)
        }
        if is_loop and None in children.values():
            # Without its condition nobody knows how often a loop went round.
            children = dict.fromkeys(children)
        probe.children[position] = tuple(children[name] for name in node.functions)
        if None in children.values():
            probe.plan.watch_outputs(node)
            return
        # What hands values to Python must not be left out because the op is said to change nothing.
        made.op = _STATEFUL.get(made.op, made.op)
        for attribute in made.attr.values():
            for function in [attribute.func] if attribute.HasField("func") else attribute.list.func:
                if (child := children.get(function.name)) is not None:
                    function.name = child.clone
        if is_loop and "parallel_iterations" in made.attr:
            # Iterations one after the other compute the same, and come back in order.
            made.attr["parallel_iterations"].i = 1


def _names(graph: Any, definition: Any) -> dict[str, str] | None:
    """Per op of a graph its name in the function; None if the function has other ops.

    A function keeps the order of the ops, but not a name that one of its arguments or results has too.
    """
    given = {tensor.op.name for tensor in graph.inputs}
    ops = [op for op in graph.get_operations() if op.name not in given]
    nodes = definition.node_def
    if len(ops) != len(nodes) or any(op.type != node.op for op, node in zip(ops, nodes, strict=True)):
        return None
    return {op.name: node.name for op, node in zip(ops, nodes, strict=True)}


def _add_watcher(clone: Any, probe: Probe, names: dict[str, str]) -> None:
    """Add the op that hands the watched tensors to Python, and see that it runs."""
    arguments = {
        tensor.op.name: one.name for tensor, one in zip(probe.graph.inputs, clone.signature.input_arg, strict=True)
    }
    node = clone.node_def.add(name=_NAME, op="PyFunc")
    for tensor in probe.plan.watched:
        node.input.append(_reference(tensor, arguments, names))
    node.attr["token"].s = probe.token.encode()
    node.attr["Tin"].list.type.extend(tensor.dtype.as_datatype_enum for tensor in probe.plan.watched)
    node.attr["Tout"].list.SetInParent()
    if probe.tells_result:
        # What tells a loop to go on may have no side effects: what it returns must come from there.
        node.attr["Tout"].list.type.append(types_pb2.DT_BOOL)
        clone.ret[clone.signature.output_arg[0].name] = f"{_NAME}:output:0"
    _must_run(clone, _NAME, _NAME)


def _must_run(clone: Any, node: str, name: str) -> None:
    """Let a function wait for a node, under a name of its own, so that all that is in the node runs."""
    clone.signature.is_stateful = True
    clone.signature.control_output.append(name)
    clone.control_ret[name] = node


def _reference(tensor: Any, arguments: dict[str, str], names: dict[str, str]) -> str:
    """How a node of a function names a tensor: the argument, or the op with the name and place of its output."""
    op = tensor.op
    if op.name in arguments:
        return arguments[op.name]
    position = tensor.value_index
    for output in op_def_registry.get(op.type).output_arg:
        attributes = op.node_def.attr
        if output.number_attr:
            count = attributes[output.number_attr].i
        elif output.type_list_attr:
            count = len(attributes[output.type_list_attr].list.type)
        else:
            count = 1
        if position < count:
            return f"{names[op.name]}:{output.name}:{position}"
        position -= count
    raise ValueError(f"{op.name} has no output {tensor.value_index}")
