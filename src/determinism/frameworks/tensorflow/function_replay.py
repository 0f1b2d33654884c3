"""Makes the records of a function that has run: goes through its plan in the order of the program, with what came back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tensorflow.python.framework import tensor_util

from determinism.digest import digest_many, digest_text
from determinism.frameworks.made_values import EXTERNAL, Value
from determinism.frameworks.tensorflow import op_traits
from determinism.frameworks.tensorflow.draws import drawn_from
from determinism.frameworks.tensorflow.function_plan import FunctionPlan, Node, Sort
from determinism.frameworks.tensorflow.function_probes import Execution, Probe
from determinism.frameworks.tensorflow.op_call import graph_call
from determinism.frameworks.tensorflow.pending_records import PendingRecords
from determinism.frameworks.tensorflow.values import Resource
from determinism.types import Phase, Role

Held = Value | Resource | None


class Replay:
    """One call of a function, as records."""

    def __init__(self, records: PendingRecords, *, is_backward: bool) -> None:
        """Begin.

        Args:
            records: Take the records.
            is_backward: Whether the whole function computes gradients.
        """
        self._records = records
        self._is_backward = is_backward
        self.arrived = False
        """Whether values came in from a data pipeline."""

    def run(self, probe: Probe, arguments: Sequence[Held]) -> list[Held]:
        """Go through one run of a function.

        Args:
            probe: Its second version, which has run.
            arguments: What it was given.

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
            # A function whose results nobody wants does not run.
            made = self.run(known[0], arguments) if known[0].executions or not known[0].plan.watched else ()
        elif node.sort is Sort.BRANCH:
            made = self._branch(known, arguments[1:])
        else:
            made = self._loop(known, arguments)
        for (slot, _), value in zip(node.outputs, made, strict=False):
            slots[slot] = value

    def _given_each(self, node: Node, slots: list[Held]) -> list[Held]:
        """One value per input of the op; a constant came from outside of the function that gets it."""
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
        """Whichever function ran; where several places of a loop wait, the one that came back first."""
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
        if op_traits.writes_variables(kind):
            self._write(node, kind, given, slots, execution)
            return
        made = self._made(node, values, execution)
        if kind in op_traits.ARRIVALS:
            iterators = [held for held in given if isinstance(held, Resource)]
            node.arguments = self._records.stages_before(iterators[0]) if iterators else node.arguments
        if not made:
            if kind in op_traits.SHOWS or kind in op_traits.SAVES:
                self._append(node, values, [])
            return
        number = self._append(node, values, made, drawn_from(kind, values, made))
        _put(node, slots, made, number)

    def _made(self, node: Node, values: list[Value], execution: Execution) -> list[tuple[int, bytes]]:
        """Layout and digest of each output; handles that tensors cannot show stand for what went into them."""
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
        """An op whose functions cannot be looked into: what went in, what came out, and what they may have written."""
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
        number = self._append(node, read, [*made, *left])
        _put(node, slots, made, number)
        for position, (one, (layout, digest)) in enumerate(zip(written, left, strict=True), len(made)):
            self._records.wrote(one, Value(number, position, layout, digest), is_known=False)

    def _append(
        self, node: Node, read: Sequence[Value], made: Sequence[tuple[int, bytes]], drawn: Sequence[bytes] = ()
    ) -> int:
        place = node.place
        assert place is not None
        phase = Phase.BACKWARD if self._is_backward else place.phase
        role = op_traits.role_of(node.op.type, has_inputs=bool(read))
        self.arrived |= role is Role.BATCH
        phase = Phase.CHECKPOINT if role is Role.CHECKPOINT else phase
        call = None
        if self._records.keeps:
            contents = [self._records.kept.get((digest, layout)) for layout, digest in made]
            call = partial(graph_call, node.op, self._contents(node, read), contents, is_fused="+" in node.name)
        return self._records.append(role, phase, node.name, place, node.arguments, read, made, drawn, call)

    def _contents(self, node: Node, read: Sequence[Value]) -> list[Any]:
        """What the inputs of an op held, in their order; None for one that is not known."""
        values = iter(read)
        found: list[Any] = []
        for tensor in node.op.inputs:
            constant = tensor_util.constant_value(tensor)
            if constant is None:
                value = next(values, None)
                constant = None if value is None else self._records.kept.get((value.digest, value.layout))
            found.append(constant)
        return found


def _put(node: Node, slots: list[Held], made: list[tuple[int, bytes]], number: int) -> None:
    for position, ((slot, _), (layout, digest)) in enumerate(zip(node.outputs, made, strict=True)):
        slots[slot] = Value(number, position, layout, digest)


def _results(plan: FunctionPlan, slots: list[Held]) -> list[Held]:
    return [slots[of[0]] if len(of) == 1 else None for of in plan.results]
