"""Records what happens inside a `tf.function`: a copy of the function computes the same and returns what its ops computed.

The program's own function is left unchanged: what is traced, saved or differentiated is still the program's. Where an op calls a
function, the copy calls a copy too, made for this call site alone, so that a result shows by itself where it was computed.
"""

from __future__ import annotations

import itertools
import json
import re
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from tensorflow.core.framework import function_pb2, types_pb2
from tensorflow.python.eager import record
from tensorflow.python.framework import function_def_to_graph, op_def_registry, tensor_util
from tensorflow.python.ops import script_ops

from determinism.digest import digest_many, digest_text
from determinism.frameworks.array_capture import Call
from determinism.frameworks.made_values import EXTERNAL, Value
from determinism.frameworks.tensorflow import ops
from determinism.frameworks.tensorflow.graphs import FunctionPlan, Node, Place, Sort
from determinism.frameworks.tensorflow.ops import (
    Resource,
    content_of,
    digest_array,
    digest_tensor,
    drawn_from,
    has_value,
)
from determinism.frameworks.tensorflow.records import PendingRecords, RecordMaker, as_array, graph_call
from determinism.trace.schema import INPUT_PATHS
from determinism.types import Phase, Role

XLA = "_XlaMustCompile"
_NAME = "determinism_watch"
_COUNTED = re.compile(r"^__(inference|forward|backward)_|_\d+$")
_MOST_DEPTH = 40
_STATEFUL = {
    "StatelessWhile": "While",
    "StatelessIf": "If",
    "StatelessCase": "Case",
    "PartitionedCall": "StatefulPartitionedCall",
}

_arrivals = itertools.count()
_numbers = itertools.count(1)
"""Numbers of the copies: TensorFlow keeps these for as long as the process runs, so their names must be unique."""


class Execution:
    """The results of one run of a function."""

    __slots__ = ("arrays", "arrival", "digests", "result", "shapes")

    def __init__(self, arrival: int, digests: list[bytes], shapes: list[tuple[int, ...]], result: bool) -> None:
        self.arrival = arrival
        self.arrays: list[Any] = []
        """The results themselves; only if a record is examined closely."""
        self.digests = digests
        self.shapes = shapes
        self.result = result
        """What the function returned, if it is the condition of a loop."""


class Probe:
    """A function at one call site of the program, and the results of its runs."""

    keeps_arrays = False
    """Whether the results of the ops are kept until they are recorded."""

    def __init__(self, name: str, graph: Any, plan: FunctionPlan, result_at: int | None) -> None:
        self.name = name
        self.graph = graph
        self.plan = plan
        self.executions: deque[Execution] = deque()
        self.children: dict[int, tuple[Probe | None, ...]] = {}
        """By position of a node in the plan: copies of the functions that it runs; None for one that cannot be copied."""
        self.clone = ""
        self._result_at = result_at
        self.tells_result = result_at is not None
        self.failed: Callable[[Exception], None] = lambda error: None
        # The registry holds it weakly.
        self._receive = self._received
        self.token = script_ops._py_funcs.insert(self._receive)

    def _received(self, *given: Any) -> list[Any]:
        # Runs in a TensorFlow thread while the thread that called the function waits for it.
        try:
            result = self._result_at is not None and bool(given[self._result_at])
            # A single string arrives as bytes.
            arrays = [one if hasattr(one, "dtype") else np.asarray(one, object) for one in given]
            made = Execution(next(_arrivals), [digest_array(a) for a in arrays], [a.shape for a in arrays], result)
            if Probe.keeps_arrays:
                made.arrays = [array.copy() for array in arrays]
            self.executions.append(made)
        except Exception as error:
            self.failed(error)
        return [] if self._result_at is None else [given[self._result_at]]

    def forget(self) -> None:
        """Drop results that were not used."""
        self.executions.clear()
        for children in self.children.values():
            for child in children:
                if child is not None:
                    child.forget()


class Library:
    """Finds the graphs of functions by their names, and makes the copies of functions."""

    def __init__(self, failed: Callable[[str, Exception], None]) -> None:
        """Take a callback that gets the name of each function that could not be copied, and the error."""
        self.graphs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._inner: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._failed = failed
        self.compiled: set[str] = set()
        """Names of functions that XLA compiles."""
        self.look_into: Callable[..., Call]
        """Makes the `Call` that examines a function that XLA compiles; set in a further run that examines a record closely."""

    def made(self, name: str, graph: Any) -> None:
        """Note that a function was made from a graph."""
        self.graphs[name] = graph
        outer = getattr(graph, "outer_graph", None)
        if outer is not None:
            # The graph of a loop's body is needed as long as the one around it, and nothing else keeps it alive.
            self._inner.setdefault(outer, []).append(graph)

    def probe(self, context: Any, name: str, depth: int = 0, *, is_condition: bool = False) -> Probe | None:
        """Copy a function, and all functions that it calls; None if its ops cannot be recorded.

        Args:
            context: TensorFlow's eager context, to which the copies are added.
            name: Name of the function.
            depth: How deeply the call is nested.
            is_condition: Whether it is the condition of a loop.
        """
        definition = context.get_function_def(name)
        graph, names = self.graph_of(name, definition)
        if definition.attr[XLA].b if XLA in definition.attr else False:
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

    def graph_of(self, name: str, definition: Any) -> tuple[Any, dict[str, str]]:
        """The graph that a function was made from, and the name of each of its ops within the function.

        A graph that has changed since, or was dismantled, is built anew, without the user's lines.
        """
        graph = self.graphs.get(name)
        names = op_names(graph, definition) if graph is not None else None
        if names is None:
            graph = function_def_to_graph.function_def_to_graph(definition)
            names = {node.name: node.name for node in definition.node_def}
        return graph, names

    def _replace_functions(self, context: Any, probe: Probe, position: int, node: Node, made: Any, depth: int) -> None:
        if XLA in made.attr and made.attr[XLA].b:
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
            # Without its condition, the number of iterations of a loop is unknown.
            children = dict.fromkeys(children)
        probe.children[position] = tuple(children[name] for name in node.functions)
        if None in children.values():
            probe.plan.watch_outputs(node)
            return
        # The copy passes values to Python, so it must not be pruned because the op counts as stateless.
        made.op = _STATEFUL.get(made.op, made.op)
        for attribute in made.attr.values():
            for function in [attribute.func] if attribute.HasField("func") else attribute.list.func:
                if (child := children.get(function.name)) is not None:
                    function.name = child.clone
        if is_loop and "parallel_iterations" in made.attr:
            # Sequential iterations compute the same, and their results arrive in order.
            made.attr["parallel_iterations"].i = 1


def op_names(graph: Any, definition: Any) -> dict[str, str] | None:
    """Map each op of a graph to its name in the function; None if the function has other ops.

    A function keeps the order of the ops, but renames an op that shares its name with an argument or result.
    """
    given = {tensor.op.name for tensor in graph.inputs}
    ops = [op for op in graph.get_operations() if op.name not in given]
    nodes = definition.node_def
    if len(ops) != len(nodes) or any(op.type != node.op for op, node in zip(ops, nodes, strict=True)):
        return None
    return {op.name: node.name for op, node in zip(ops, nodes, strict=True)}


def _add_watcher(clone: Any, probe: Probe, names: dict[str, str]) -> None:
    """Add the op that passes the watched tensors to Python, and make sure that it runs."""
    arguments = {
        tensor.op.name: one.name for tensor, one in zip(probe.graph.inputs, clone.signature.input_arg, strict=True)
    }
    node = clone.node_def.add(name=_NAME, op="PyFunc")
    for tensor in probe.plan.watched:
        node.input.append(reference(tensor, arguments, names))
    node.attr["token"].s = probe.token.encode()
    node.attr["Tin"].list.type.extend(tensor.dtype.as_datatype_enum for tensor in probe.plan.watched)
    node.attr["Tout"].list.SetInParent()
    if probe.tells_result:
        # A loop's condition must not have side effects, so the op has to compute what the condition returns.
        node.attr["Tout"].list.type.append(types_pb2.DT_BOOL)
        clone.ret[clone.signature.output_arg[0].name] = f"{_NAME}:output:0"
    _must_run(clone, _NAME, _NAME)


def _must_run(clone: Any, node: str, name: str) -> None:
    """Make a function wait for a node, through a control output of this name, so that everything in the node runs."""
    clone.signature.is_stateful = True
    clone.signature.control_output.append(name)
    clone.control_ret[name] = node


def reference(tensor: Any, arguments: dict[str, str], names: dict[str, str]) -> str:
    """How a node of a function names a tensor: the argument, or the op with the name and index of its output."""
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


def plain_name(name: str) -> str:
    """The name that the program gave a function, without TensorFlow's prefixes and counters."""
    return _COUNTED.sub("", name)


# The records of a function that has run.

Held = Value | Resource | None


class Replay:
    """One call of a function, as records."""

    def __init__(self, records: PendingRecords, library: Library, *, is_backward: bool) -> None:
        """Begin.

        Args:
            records: Where the records are added.
            library: Has the graphs of functions.
            is_backward: Whether the whole function computes gradients.
        """
        self._records = records
        self._library = library
        self._is_backward = is_backward
        self.arrived = False
        """Whether values arrived from a data pipeline."""

    def run(self, probe: Probe, arguments: Sequence[Held]) -> list[Held]:
        """Record one run of a function.

        Args:
            probe: Its copy, which has run.
            arguments: What it was called with.

        Returns:
            What it returned.
        """
        plan = probe.plan
        if plan.watched:
            execution = probe.executions.popleft()
        else:
            execution = Execution(-1, [], [], False)
        slots: list[Held] = [None] * plan.num_slots
        for slot, argument in zip(plan.arguments, arguments, strict=True):
            slots[slot] = argument
        for position, node in enumerate(plan.nodes):
            self._visit(probe, position, node, slots, execution)
        return _results(plan, slots)

    def _visit(self, probe: Probe, position: int, node: Node, slots: list[Held], execution: Execution) -> None:
        if node.sort is Sort.OP:
            self._op(node, slots, execution)
            return
        given = [slots[slot] for slot in node.inputs]
        if node.sort is Sort.READ:
            held = given[0] if given else None
            slots[node.outputs[0][0]] = self._records.content(held) if isinstance(held, Resource) else None
            return
        children = probe.children.get(position, ())
        if not children or None in children:
            self._opaque(node, given, slots, execution)
            return
        known = [child for child in children if child is not None]
        arguments = self._given_each(node, slots)
        made: Sequence[Held]
        if node.sort is Sort.CALL:
            # A function whose results are not used does not run.
            made = self.run(known[0], arguments) if known[0].executions or not known[0].plan.watched else ()
        elif node.sort is Sort.BRANCH:
            made = self._branch(known, arguments[1:])
        else:
            made = self._loop(known, arguments)
        for (slot, _), value in zip(node.outputs, made, strict=False):
            slots[slot] = value

    def _given_each(self, node: Node, slots: list[Held]) -> list[Held]:
        """One value per input of the op; a constant counts as external to the function that gets it."""
        given: list[Held] = []
        for position in range(len(node.op.inputs)):
            if position in node.constants:
                digest = digest_text(node.constants[position])
                given.append(Value(EXTERNAL, 0, self._records.value_layout, digest))
            else:
                of = node.given.get(position, ())
                given.append(slots[of[0]] if of else None)
        return given

    def _branch(self, children: list[Probe], arguments: Sequence[Held]) -> list[Held]:
        """Record the function that ran; if several ran, as in a loop, the one that returned first."""
        waiting = [child for child in children if child.executions]
        silent = [child for child in children if not child.plan.watched]
        if waiting:
            return self.run(min(waiting, key=lambda child: child.executions[0].arrival), arguments)
        return self.run(silent[0], arguments) if silent else []

    def _loop(self, children: list[Probe], state: Sequence[Held]) -> Sequence[Held]:
        condition, body = children
        while condition.executions:
            result = condition.executions[0].result
            self.run(condition, state)
            if not result:
                break
            state = self.run(body, state)
        return state

    def _op(self, node: Node, slots: list[Held], execution: Execution) -> None:
        given = [slots[slot] for slot in node.inputs]
        kind = node.op.type
        values = [held for held in given if isinstance(held, Value)]
        if ops.writes_variables(kind):
            self._write(node, kind, given, slots, execution)
            return
        made = self._made(node, values, execution)
        if kind in ops.ARRIVALS:
            iterators = [held for held in given if isinstance(held, Resource)]
            node.arguments = self._records.stages_before(iterators[0]) if iterators else node.arguments
        if not made:
            if kind in ops.SHOWS or kind in ops.SAVES:
                self._append(node, values, [])
            return
        number = self._append(node, values, made, drawn_from(kind, values, made))
        _put(node, slots, made, number)

    def _made(self, node: Node, values: list[Value], execution: Execution) -> list[tuple[int, bytes]]:
        """Layout and digest of each output; handles, which have no value, get a digest of the op's inputs."""
        made = []
        for (_, watched), tensor in zip(node.outputs, node.op.outputs, strict=True):
            if watched >= 0:
                layout = self._records.layout(tensor.dtype.name, execution.shapes[watched])
                made.append((layout, execution.digests[watched]))
                if self._records.keeps and execution.arrays:
                    self._records.kept[execution.digests[watched], layout] = execution.arrays[watched]
            else:
                parts = (digest_text(node.name), *(value.digest for value in values))
                made.append((self._records.value_layout, digest_many(parts)))
        return made

    def _write(self, node: Node, kind: str, given: list[Held], slots: list[Held], execution: Execution) -> None:
        values = [held for held in given if isinstance(held, Value)]
        variables = [held for held in given if isinstance(held, Resource)]
        made = self._made(node, values, execution)
        replaces = kind == "AssignVariableOp"
        is_whole = replaces and bool(values)
        read = values if replaces else [*values, *(self._records.content(one) for one in variables)]
        if is_whole:
            digests = [values[0].digest]
        else:
            parts = [digest_text(node.name), *(value.digest for value in read)]
            digests = [digest_many([*parts, bytes([at % 256])]) for at in range(len(variables))]
        drawn = drawn_from(kind, values, made)
        layouts = [values[0].layout if is_whole else self._records.content(one).layout for one in variables]
        outputs = [*made, *zip(layouts, digests, strict=True)]
        number = self._append(node, read, outputs, drawn)
        _put(node, slots, made, number)
        for position, (variable, digest) in enumerate(zip(variables, digests, strict=True), len(made)):
            held = Value(number, position, layouts[position - len(made)], digest)
            self._records.wrote(variable, held, is_known=is_whole)

    def _opaque(self, node: Node, given: list[Held], slots: list[Held], execution: Execution) -> None:
        """Record an op whose functions cannot be copied: its inputs, its outputs, and what it may have written."""
        values = [held for held in given if isinstance(held, Value)]
        variables = [held for held in given if isinstance(held, Resource)]
        contents = [held for one in variables if (held := self._records.content_or_none(one)) is not None]
        made = self._made(node, values, execution)
        written = [one for one in variables if self._records.is_variable(one)] if node.op._is_stateful else []
        read = [*values, *contents]
        parts = [digest_text(node.name), *(value.digest for value in read)]
        left = [
            (self._records.content(one).layout, digest_many([*parts, bytes([at % 256])]))
            for at, one in enumerate(written)
        ]
        call = None
        if self._records.keeps and written == variables and node.sort is Sort.CALL:
            # Now: by the time the record is made, the variables represent what the call left in them.
            call = partial(_itself, self._compiled(node, self._given_each(node, slots), read, made))
        number = self._append(node, read, [*made, *left], call=call)
        _put(node, slots, made, number)
        for position, (one, (layout, digest)) in enumerate(zip(written, left, strict=True), len(made)):
            self._records.wrote(one, Value(number, position, layout, digest), is_known=False)

    def _compiled(
        self, node: Node, given: Sequence[Held], read: Sequence[Value], made: Sequence[tuple[int, bytes]]
    ) -> Call:
        """The run of a function that XLA compiled within another one, with the arguments that were kept."""
        arguments = []
        for held, tensor in zip(given, node.op.inputs, strict=True):
            value = self._records.content_or_none(held) if isinstance(held, Resource) else held
            constant = tensor_util.constant_value(tensor)
            content = constant if value is None or constant is not None else self._contents_of([value])[0]
            arguments.append((content, isinstance(held, Resource)))
        contents = [self._records.kept.get((digest, layout)) for layout, digest in made]
        return self._library.look_into(self._library, node.functions[0], arguments, self._contents_of(read), contents)

    def _append(
        self,
        node: Node,
        read: Sequence[Value],
        made: Sequence[tuple[int, bytes]],
        drawn: Sequence[bytes] = (),
        *,
        call: Callable[[], Call] | None = None,
    ) -> int:
        place = node.place
        assert place is not None
        phase = Phase.BACKWARD if self._is_backward else place.phase
        role = ops.role_of(node.op.type, has_inputs=bool(read))
        self.arrived |= role is Role.BATCH
        phase = Phase.CHECKPOINT if role is Role.CHECKPOINT else phase
        if self._records.keeps and call is None:
            contents = [self._records.kept.get((digest, layout)) for layout, digest in made]
            is_fused = "+" in node.name
            held = self._contents_of(read) if is_fused else self._contents(node, read)
            call = partial(graph_call, node.op, held, contents, is_fused=is_fused)
        # `read` has no constants.
        if node.op.type in ops.BY_FILE_NAME and tensor_util.constant_value(node.op.inputs[0]) is None:
            read = read[1:]
        return self._records.append(role, phase, node.name, place, node.arguments, read, made, drawn, call)

    def _contents_of(self, read: Sequence[Value]) -> list[Any]:
        """What a record read; None for values that were not kept."""
        return [self._records.kept.get((value.digest, value.layout)) for value in read]

    def _contents(self, node: Node, read: Sequence[Value]) -> list[Any]:
        """What the inputs of an op held, in order; None if unknown."""
        values = iter(read)
        found: list[Any] = []
        for tensor in node.op.inputs:
            constant = tensor_util.constant_value(tensor)
            if constant is None:
                value = next(values, None)
                constant = None if value is None else self._records.kept.get((value.digest, value.layout))
            found.append(constant)
        return found


def _itself(call: Call) -> Call:
    return call


def _put(node: Node, slots: list[Held], made: list[tuple[int, bytes]], number: int) -> None:
    for position, ((slot, _), (layout, digest)) in enumerate(zip(node.outputs, made, strict=True)):
        slots[slot] = Value(number, position, layout, digest)


def _results(plan: FunctionPlan, slots: list[Held]) -> list[Held]:
    return [slots[of[0]] if len(of) == 1 else None for of in plan.results]


# Calls of functions from eager code: the copy runs in place of the function, and then its records are made.

_COMPILED = "XLA compiles it: its inputs and outputs are recorded, the ops inside are not"
_UNKNOWN_GRAPH = "its graph is not known: its inputs and outputs are recorded, the ops inside are not"


class FunctionCalls:
    """Keeps the copy of every function that was called."""

    def __init__(self, recorder: RecordMaker) -> None:
        """Take the recorder that makes the records."""
        self._recorder = recorder
        self.library = Library(lambda name, error: recorder.failed(plain_name(name), error))
        self._probes: dict[str, Probe | None] = {}
        self._told: set[str] = set()
        self._contents: dict[tuple[bytes, int], Any] = {}
        """What the variables that a call was given held; only where a function that XLA compiles may be examined closely."""
        self.returned: Callable[[Any], None] = lambda graph: None
        """Called with the graph of a function, after its records were made."""

    def call(self, original: Callable[..., Any], context: Any, name: bytes, inputs: list[Any], num_outputs: int) -> Any:
        """Run a function, and record what it did.

        Args:
            original: TensorFlow's function that runs it.
            context: TensorFlow's eager context.
            name: Name of the function.
            inputs: Eager tensors.
            num_outputs: How many tensors it returns.
        """
        recorder = self._recorder
        text = name.decode()
        with recorder.suspended(), record.stop_recording():
            probe, held = self._before(context, text, inputs)
        run = name if probe is None else probe.clone.encode()
        try:
            with recorder.suspended():
                outputs = original(context, run, inputs, num_outputs)
        except Exception as error:
            if probe is not None:
                probe.forget()
                _rename(error, probe.clone, text)
            raise
        if held is not None:
            with recorder.suspended(), record.stop_recording():
                self._after(text, probe, inputs, held, outputs or [])
        self.returned(self.library.graphs.get(text))
        return outputs

    def _before(self, context: Any, name: str, inputs: list[Any]) -> tuple[Probe | None, list[Any] | None]:
        """The copy, and what the arguments hold; None where something went wrong."""
        recorder = self._recorder
        if name not in self._probes:
            self._probes[name] = None
            try:
                self._probes[name] = self.library.probe(context, name)
            except Exception as error:
                recorder.failed(plain_name(name), error)
        try:
            held = [recorder.held_by(tensor) for tensor in inputs]
            if recorder.capture is not None and self.library.compiled:
                self._contents = self._keep_variables(held)
            return self._probes[name], held
        except Exception as error:
            recorder.failed(plain_name(name), error)
            return None, None

    def _after(self, name: str, probe: Probe | None, inputs: list[Any], held: list[Any], outputs: list[Any]) -> None:
        recorder = self._recorder
        try:
            records = PendingRecords(recorder)
            if records.keeps:
                self._keep(records, inputs, held)
            if probe is None:
                self._opaque(records, name, held, outputs)
            else:
                replay = Replay(records, self.library, is_backward=name.startswith("__backward"))
                made = replay.run(probe, held)
                records.finish()
                for tensor, value in zip(outputs, made, strict=False):
                    if isinstance(value, Value):
                        recorder.values.made(tensor, value)
                if replay.arrived:
                    recorder.arrived()
            self._note_compiled()
        except Exception as error:
            recorder.failed(plain_name(name), error)
        finally:
            if probe is not None:
                probe.forget()

    def _keep_variables(self, held: list[Any]) -> dict[tuple[bytes, int], Any]:
        """Copy what variables hold before a function writes them."""
        found = {}
        for one in held:
            value = self._recorder.variables.get(one.key) if isinstance(one, Resource) else None
            content = None if value is None else content_of(one.handle)
            if value is not None and content is not None:
                found[value.digest, value.layout] = np.array(as_array(content))
        return found

    def _keep(self, records: PendingRecords, inputs: list[Any], held: list[Any]) -> None:
        """Keep the arguments of a function."""
        records.kept.update(self._contents)
        for tensor, one in zip(inputs, held, strict=True):
            if isinstance(one, Value) and has_value(tensor.dtype):
                records.kept[one.digest, one.layout] = tensor

    def _opaque(self, records: PendingRecords, name: str, held: list[Any], outputs: list[Any]) -> None:
        """Record a function that cannot be copied: its inputs, its outputs, and what it may have written."""
        recorder = self._recorder
        if name not in self.library.compiled:
            recorder.writer.blind_spot("function", plain_name(name), _UNKNOWN_GRAPH)
        resources = [one for one in held if isinstance(one, Resource) and records.is_variable(one)]
        read = [one for one in held if isinstance(one, Value)] + [records.content(one) for one in resources]
        valued = [tensor for tensor in outputs if has_value(tensor.dtype)]
        made = [(recorder.layout(tensor), digest_tensor(tensor)) for tensor in valued]
        parts = digest_many([digest_text(plain_name(name)), *(value.digest for value in read)])
        left = [(records.content(one).layout, parts) for one in resources]
        place = Place(recorder.phase, "", ())
        phase = Phase.BACKWARD if name.startswith("__backward") else recorder.phase
        text = self._input_paths(name, held, resources)
        call = None
        if records.keeps and name in self.library.compiled:
            call = partial(self._compiled, records, name, held, resources, read, valued)
        number = records.append(Role.OP, phase, f"tf::{plain_name(name)}", place, text, read, [*made, *left], (), call)
        for position, one in enumerate(resources, len(made)):
            records.wrote(one, Value(number, position, records.content(one).layout, parts), is_known=False)
        records.finish()
        for position, tensor in enumerate(valued):
            recorder.values.made(tensor, Value(number, position, *made[position]))

    def _input_paths(self, name: str, held: list[Any], resources: list[Resource]) -> str:
        """Text that names the arguments of a function that a record reads, in its order; empty if the graph is unknown."""
        graph = self.library.graphs.get(name)
        if graph is None or len(graph.inputs) != len(held):
            return ""
        known = {one.handle._id: one.name for one in graph.variables if hasattr(one.handle, "_id")}
        paths = [t.op.name for t, one in zip(graph.inputs, held, strict=True) if isinstance(one, Value)]
        paths += [known.get(one.key, "") for one in resources]
        return INPUT_PATHS + json.dumps(paths) if any(paths) else ""

    def _compiled(
        self,
        records: PendingRecords,
        name: str,
        held: list[Any],
        resources: list[Resource],
        read: list[Value],
        outputs: list[Any],
    ) -> Call:
        """The run of a function that XLA compiles, with what it left in variables."""

        def content(value: Value | None) -> Any:
            return None if value is None else records.kept.get((value.digest, value.layout))

        # What the variables held before; the records of this call represent what they hold now.
        before = iter(read[len(read) - len(resources) :])
        given = [
            (content(next(before)), True)
            if isinstance(one, Resource) and one in resources
            else (content(one) if isinstance(one, Value) else None, False)
            for one in held
        ]
        left = [content_of(one.handle) for one in resources]
        contents = [content(value) for value in read]
        return self.library.look_into(self.library, name, given, contents, [*outputs, *left], returns_variables=True)

    def _note_compiled(self) -> None:
        for name in sorted(self.library.compiled - self._told):
            self._told.add(name)
            self._recorder.writer.blind_spot("xla", plain_name(name), _COMPILED)


def _rename(error: Exception, clone: str, name: str) -> None:
    """Make an error name the function as the program knows it."""
    message = getattr(error, "_message", None)
    if isinstance(message, str):
        error._message = message.replace(clone, name)  # type: ignore[attr-defined]
    if error.args:
        error.args = tuple(one.replace(clone, name) if isinstance(one, str) else one for one in error.args)
