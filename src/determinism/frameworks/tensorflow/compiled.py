"""Examines one run of a function that XLA compiles: whether it repeats, and which of its ops varies.

XLA returns only the results of a compiled function. So a copy of the function that also returns intermediate values is compiled, and run
repeatedly on the inputs of the record: the first op whose results vary is the place. Called functions, branches and loop bodies are
searched in the same way. Compiled like this, XLA fuses less, so kernels may differ from those of the program; the report says so.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import function_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import tensor_util
from tensorflow.python.ops import resource_variable_ops

from determinism.frameworks.array_capture import NotWritable, Place, distinct_places, fitting_groups, place_at
from determinism.frameworks.tensorflow import ops
from determinism.frameworks.tensorflow.functions import XLA, Library, plain_name, reference
from determinism.frameworks.tensorflow.graphs import called_functions, needed_ops, place_of
from determinism.frameworks.tensorflow.ops import content_of, digest_array, has_value
from determinism.frameworks.tensorflow.records import as_array
from determinism.source_files import Owner, owner_of_file

_REPEATS = 30
_MOST_ITERATIONS = 100
_MOST_DEPTH = 40
_UNKNOWN = "the content of one of its inputs was not kept"
_XLA_COMPILES = "it is a function that XLA compiles, which cannot be put into a script"
_NO_KERNEL = "TensorFlow exposes the text of what XLA compiled, but no way to run parts of it"
_WITHOUT_VALUES = frozenset({"Placeholder", "Const", "VarHandleOp", "NoOp"})
_numbers = itertools.count(1)
"""Numbers of the copies: TensorFlow keeps functions for as long as the process runs, so their names must be unique."""


class Given(NamedTuple):
    """An argument of a function."""

    content: Any
    """An array; None if it cannot be read."""
    is_variable: bool = False
    """Whether it is the content of a variable, which the function may write."""


def run_function(name: str, given: Sequence[Given], number_of_outputs: int) -> tuple[list[Any], list[Any]]:
    """Run a function on variables made for this run; return its results, and what these variables hold afterwards.

    Raises:
        Exception: Whatever TensorFlow raises.
    """
    variables = [resource_variable_ops.ResourceVariable(one.content) if one.is_variable else None for one in given]
    arguments = [
        tf.convert_to_tensor(one.content) if variable is None else variable.handle
        for one, variable in zip(given, variables, strict=True)
    ]
    made = context.context().call_function(name.encode(), arguments, number_of_outputs)
    made = list(made) if isinstance(made, (list, tuple)) else [made] if number_of_outputs else []
    return made, [content_of(variable.handle) for variable in variables if variable is not None]


class CompiledCall:
    """One run of a function that XLA compiles: its inputs and outputs, and how to run it again."""

    def __init__(
        self,
        library: Library,
        name: str,
        given: Sequence[tuple[Any, bool]],
        read: Sequence[Any],
        made: Sequence[Any],
        *,
        returns_variables: bool = False,
    ) -> None:
        """Take what is known about the run.

        Args:
            library: Has the graphs of functions.
            name: Name of the function.
            given: For each argument, its content and whether that is a variable's.
            read: Contents in the order of the record's inputs; None for an unknown one.
            made: Its results, apart from handles.
            returns_variables: Whether the final contents of the variables follow these results.
        """
        self._library = library
        self._name = name
        self._given = [Given(*one) for one in given]
        self.inputs = [one for one in read if one is not None]
        self.outputs = made
        self._returns_variables = returns_variables
        is_unknown = any(content is None for content, _ in given) or len(self.inputs) != len(read)
        self.problem = _UNKNOWN if is_unknown else None

    def input_paths(self) -> dict[int, str]:
        """Return an empty dictionary: the record names them."""
        return {}

    def run(self) -> list[Any]:
        """Run it once more; return its results as arrays.

        Raises:
            Exception: Whatever TensorFlow raises.
        """
        definition = context.context().get_function_def(self._name)
        made, held = run_function(self._name, self._given, len(definition.signature.output_arg))
        held = held if self._returns_variables else []
        return [as_array(one) for one in made if has_value(one.dtype)] + [as_array(one) for one in held]

    def varying_place(self, seconds: float) -> dict[str, Any] | None:
        """The op that varies, and its line; None if none varied in the copy that returns intermediate values."""
        place = _Search(self._library, time.monotonic() + seconds).place(self._name, self._given, ())
        return None if place is None else {**place._asdict(), "no_kernel": _NO_KERNEL}

    def places(self) -> list[dict[str, Any]]:
        """The ops of the function, once per op type and line."""
        places = (_place(*one) for one in _all_ops(self._library, self._name, ()))
        return [one._asdict() for one in distinct_places(places)]

    def document(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Not supported.

        Raises:
            NotWritable: Always.
        """
        raise NotWritable(_XLA_COMPILES)


def _place(op: Any, inside: tuple[str, ...]) -> Place:
    name = f"tf::{op.type}"
    if "target_name" in op.node_def.attr:
        name = f"{name}[{op.get_attr('target_name').decode()}]"
    place = place_of(op)
    # The line of a gradient is that of its forward op.
    forward = place_at(name, place.forward_frames, inside)
    is_own = forward.file and owner_of_file(forward.file) is Owner.USER
    return forward if is_own else place_at(name, place.frames, inside)


def _all_ops(library: Library, name: str, inside: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """The ops of a function and of those that it calls."""
    graph, _ = library.graph_of(name, context.context().get_function_def(name))
    for op in graph.get_operations():
        if op.type not in _WITHOUT_VALUES:
            yield op, inside
        for called in called_functions(op):
            if len(inside) < _MOST_DEPTH:
                yield from _all_ops(library, called, (*inside, _word(op, called)))


def _word(op: Any, called: str) -> str:
    """The name of a called function in reports."""
    if op.type in ops.LOOPS:
        return "while"
    return "cond" if op.type in ops.BRANCHES else plain_name(called)


class _Search:
    """One search, with a deadline."""

    def __init__(self, library: Library, until: float) -> None:
        self._library = library
        self._until = until

    def place(self, name: str, given: Sequence[Given], inside: tuple[str, ...]) -> Place | None:
        """The op that varies in a function, or in one that it calls."""
        if len(inside) > _MOST_DEPTH or any(one.content is None for one in given):
            return None
        function = _Function(self._library, name)
        for group in function.groups():
            values, varying = self._values(function, given, [tensor for op in group for tensor in function.kept(op)])
            first = next((op for op in group if any(id(tensor) in varying for tensor in op.outputs)), None)
            if first is not None:
                return self._within(function, first, given, values, inside) or _place(first, inside)
            if time.monotonic() > self._until:
                return None
        return None

    def _values(
        self, function: _Function, given: Sequence[Given], wanted: Sequence[Any]
    ) -> tuple[dict[int, Any], set[int]]:
        """Intermediate values of a function by the ids of their tensors, and the ids of those that vary."""
        if not wanted:
            return {}, set()
        name = function.giving(wanted)
        digests: list[set[bytes]] = [set() for _ in wanted]
        for number in range(_REPEATS):
            arrays = [as_array(one) for one in run_function(name, given, len(wanted))[0]]
            for seen, array in zip(digests, arrays, strict=True):
                seen.add(digest_array(array))
            if number and time.monotonic() > self._until:
                break
        values = {id(tensor): array for tensor, array in zip(wanted, arrays, strict=True)}
        return values, {id(tensor) for tensor, seen in zip(wanted, digests, strict=True) if len(seen) > 1}

    def _within(
        self, function: _Function, op: Any, given: Sequence[Given], values: dict[int, Any], inside: tuple[str, ...]
    ) -> Place | None:
        """The place within the functions that an op runs; None if it runs none, or nothing in them varied by itself."""
        called = called_functions(op)
        if not called or time.monotonic() > self._until:
            return None
        missing = [tensor for tensor in op.inputs if id(tensor) not in values and function.is_kept(tensor)]
        values = values | self._values(function, given, missing)[0]
        arguments = [function.held(tensor, given, values) for tensor in op.inputs]
        for name, taken in self._runs(op, called, arguments):
            found = self.place(name, taken, (*inside, _word(op, name)))
            if found is not None or time.monotonic() > self._until:
                return found
        return None

    def _runs(self, op: Any, called: Sequence[str], arguments: list[Given]) -> Iterator[tuple[str, list[Given]]]:
        """The functions that an op runs, each with its arguments; the body of a loop once per iteration."""
        if op.type in ops.BRANCHES:
            chosen = arguments[0].content
            if chosen is not None:
                at = (0 if bool(chosen) else 1) if op.type in ("If", "StatelessIf") else int(chosen)
                yield called[min(at, len(called) - 1)], arguments[1:]
        elif op.type in ops.LOOPS:
            yield from self._iterations(called[0], called[1], arguments)
        elif op.type in ops.CALLS:
            yield called[0], arguments

    def _iterations(self, condition: str, body: str, state: list[Given]) -> Iterator[tuple[str, list[Given]]]:
        condition_function, body_function = _Function(self._library, condition), _Function(self._library, body)
        for _ in range(_MOST_ITERATIONS):
            if any(one.content is None for one in state):
                return
            continues, _ = run_function(condition_function.giving(condition_function.graph.outputs), state, 1)
            if not bool(as_array(continues[0])):
                return
            yield body, state
            kept = [tensor for tensor in body_function.graph.outputs if has_value(tensor.dtype)]
            made = iter(run_function(body_function.giving(kept), state, len(kept))[0])
            state = [
                Given(as_array(next(made))) if has_value(tensor.dtype) else one
                for tensor, one in zip(body_function.graph.outputs, state, strict=True)
            ]


class _Function:
    """A function, and copies of it that return intermediate values."""

    def __init__(self, library: Library, name: str) -> None:
        self._definition = context.context().get_function_def(name)
        self._name = name
        self.graph, self._names = library.graph_of(name, self._definition)
        self._positions = {id(tensor): at for at, tensor in enumerate(self.graph.inputs)}
        needed = needed_ops(self.graph)
        self._ops = [op for op in self.graph.get_operations() if id(op) in needed and op.type not in _WITHOUT_VALUES]

    def groups(self) -> Iterator[list[Any]]:
        """Groups of consecutive ops whose results fit into memory together."""
        yield from fitting_groups(self._ops, lambda op: sum(map(_bytes_of, self.kept(op))))

    def kept(self, op: Any) -> list[Any]:
        """The outputs of an op that can be read."""
        return [tensor for tensor in op.outputs if self.is_kept(tensor)]

    def is_kept(self, tensor: Any) -> bool:
        """Whether a compiled copy can return a tensor of the function."""
        is_made = id(tensor) not in self._positions and tensor.op.type != "Const"
        return is_made and has_value(tensor.dtype) and tensor.dtype is not tf.string

    def held(self, tensor: Any, given: Sequence[Given], values: Mapping[int, Any]) -> Given:
        """What a tensor of the function held."""
        if id(tensor) in self._positions:
            return given[self._positions[id(tensor)]]
        return Given(values[id(tensor)] if id(tensor) in values else tensor_util.constant_value(tensor))

    def giving(self, wanted: Sequence[Any]) -> str:
        """The name of a copy of the function that returns the wanted tensors, and otherwise does the same."""
        clone = function_pb2.FunctionDef()
        clone.CopyFrom(self._definition)
        clone.signature.name = f"{self._name}_looked_into_{next(_numbers)}"
        arguments = {
            tensor.op.name: one.name for tensor, one in zip(self.graph.inputs, clone.signature.input_arg, strict=True)
        }
        del clone.signature.output_arg[:]
        clone.ret.clear()
        for at, tensor in enumerate(wanted):
            clone.signature.output_arg.add(name=f"inside_{at}", type=tensor.dtype.as_datatype_enum)
            clone.ret[f"inside_{at}"] = reference(tensor, arguments, self._names)
        clone.attr[XLA].b = True
        context.context().add_function_def(clone)
        return str(clone.signature.name)


def _bytes_of(tensor: Any) -> int:
    shape = tensor.shape
    return int(np.prod(shape.as_list())) * int(tensor.dtype.size) if shape.is_fully_defined() else 0
