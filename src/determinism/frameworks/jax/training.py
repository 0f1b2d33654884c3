"""Finds the compiled program that trains, and with it the steps, the parameters and the loss of a JAX program.

JAX has no optimizer that steps and no module that holds parameters: a training step is a function of the program whose results are passed
back to it as arguments, directly or through other ops (`optax.apply_updates` outside of `jit`). Among such functions, the one to which the
most bytes return is the training function; a later one that is larger takes over.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src.api_util import fun_sourceinfo

from determinism.frameworks.made_values import Value

STEPS_BY = "training function"

_JAX = os.path.join(os.path.dirname(os.path.abspath(jax.__file__)), "")
_PMAP = os.path.join(_JAX, "_src", "pmap.py")
_MOST_FRAMES = 64
_MOST_RECORDS = 200_000
_PART = re.compile(r"[A-Za-z_]\w*")
_OF_OPTIMIZER = re.compile(r"opt|optim\w*|opt_?states?|optimizers?|optimizer_states?|mu|nu|trace")
"""Words in the path of an argument: optax's states are `opt_state[0].mu`, Flax's TrainState has `state.opt_state`."""


class Called(NamedTuple):
    """A compiled function of the program, as it is called."""

    name: str
    arguments: Sequence[str]
    """Path of each argument of the compiled program among those of the function; empty if unknown."""
    results: Sequence[str]
    """Path of each result, such as `result[1]['loss']`."""


def called(execution_name: str, jaxpr: Any, frame: FrameType | None) -> Called | None:
    """The function of the program that is executed; None for ops of JAX itself.

    Args:
        execution_name: Such as `jit(step)`.
        jaxpr: The traced function; None for one that the program compiled with `.lower().compile()`.
        frame: The caller of the execution.
    """
    information = getattr(getattr(jaxpr, "jaxpr", None), "debug_info", None)
    if information is None:
        return Called(execution_name, (), ())
    file = _file_of(information.func_src_info)
    results = information.result_paths if isinstance(information.result_paths, tuple) else ()
    if file == _PMAP:
        return _mapped(execution_name, frame, results)
    if file.startswith(_JAX):
        return None
    return Called(execution_name, information.arg_names or (), results)


def _file_of(source: object) -> str:
    """The file in JAX's text for a function, `name at file:line`."""
    return str(source).rpartition(" at ")[2].rpartition(":")[0]


def _mapped(execution_name: str, frame: FrameType | None, results: Sequence[str]) -> Called | None:
    """The function that `jax.pmap` executes, within a function of its own whose name and arguments say nothing."""
    for _ in range(_MOST_FRAMES):
        if frame is None or (frame.f_code.co_filename == _PMAP and frame.f_code.co_name == "wrapped"):
            break
        frame = frame.f_back
    held = {} if frame is None else frame.f_locals
    made_by = held.get("infer_params")
    wrapped = None if made_by is None else inspect.getclosurevars(made_by).nonlocals.get("wrapped_fun")
    function = getattr(wrapped, "f", None)
    if not callable(function):
        # This version of JAX keeps it elsewhere.
        return Called(execution_name, (), results)
    source = fun_sourceinfo(function)
    if _file_of(source).startswith(_JAX):
        return None
    names = {id(leaf): path for path, leaf in _paths(function, held["args"], held["kwargs"])}
    arguments = [names.get(id(one), "") for one in held["dyn_args_flat"]]
    return Called(f"pmap({source.partition(' at ')[0]})", arguments if all(arguments) else (), results)


def _paths(function: Any, passed: Sequence[Any], known: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The path of each leaf among a call's arguments, such as `state.params['w']`; empty if it takes others."""
    try:
        arguments = inspect.signature(function).bind(*passed, **known).arguments
    except (TypeError, ValueError):
        return []
    return [
        (name + jax.tree_util.keystr(path), leaf)
        for name, value in arguments.items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]
    ]


class Returning(NamedTuple):
    """An argument of the training function that comes from an earlier call of it."""

    sort: str
    """Such as `parameter`."""
    path: str
    value: Value


class Loss(NamedTuple):
    """The single number among a call's results that is not passed back to the training function."""

    value: Value
    number: float


class _LastCall(NamedTuple):
    number: int
    """Number of calls so far, including this one."""
    made: Sequence[Value]
    scalars: dict[int, float]
    results: Sequence[str]


class TrainingFunction:
    """The training function, as identified by the calls so far."""

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}
        """A bit for each function of the program."""
        self._descent: dict[int, int] = {}
        """For each record, the bits of the functions whose calls it is, or was computed from."""
        self.takes_over = False
        """Whether the last call with returned results was of another function than the training function until then."""
        self.takes_turns = False
        """Whether an earlier training function was called again after a larger one took over: they train in turns."""
        self._earlier: set[str] = set()
        """Training functions that larger ones have replaced."""
        self._name: str | None = None
        self._most_bytes = 0
        self._last: dict[str, _LastCall] = {}
        self._taken: tuple[str, int] | None = None
        """The call whose loss was taken."""
        self._places: dict[int, tuple[str, str]] = {}
        """The results that are passed back directly, without another op: kind and path of the argument that each becomes."""

    def coming_back(self, function: Called, read: Mapping[int, Value], arrays: Sequence[Any]) -> list[Returning]:
        """The results passed back to the training function, which is about to be called; none for other functions.

        Args:
            function: The function that is called.
            read: What each argument that the compiled program reads holds, by its position among all arguments.
            arrays: All arguments; None for those that are not JAX arrays.
        """
        bit = self._bits.get(function.name, 0)
        back = [at for at, value in read.items() if self._descent.get(value.record, 0) & bit] if bit else []
        if not back:
            return []
        self.takes_over = function.name != self._name
        if self.takes_over:
            size = sum(int(getattr(arrays[at], "nbytes", 0)) for at in back)
            if size <= self._most_bytes:
                self.takes_turns |= function.name in self._earlier
                return []
            if self._name is not None:
                self._earlier.add(self._name)
            self._name, self._most_bytes = function.name, size
        is_named = len(function.arguments) == len(arrays)
        names = function.arguments if is_named else [f"argument {at}" for at in range(len(arrays))]
        found = [Returning(_sort_of(names[at], arrays[at]), names[at], read[at]) for at in back]
        last = self._last[function.name].made
        outputs = {(value.record, value.output) for value in last}
        self._places = {
            one.value.output: (one.sort, one.path) for one in found if (one.value.record, one.value.output) in outputs
        }
        return found

    @property
    def num_calls(self) -> int:
        """Number of calls of the training function."""
        return 0 if self._name is None else self._last[self._name].number

    def held(self) -> list[Returning]:
        """The results of the last call that will be passed back, judging by earlier calls."""
        if self._name is None:
            return []
        made = self._last[self._name].made
        return [Returning(*place, made[at]) for at, place in self._places.items() if at < len(made)]

    def take_loss(self) -> Loss | None:
        """The loss of the last call; None unless exactly one number qualifies, or if it was taken before."""
        if self._name is None or self._taken == (self._name, self.num_calls):
            return None
        last = self._last[self._name]
        self._taken = (self._name, last.number)
        numbers = [at for at in last.scalars if at not in self._places]
        if len(numbers) > 1 and len(last.results) == len(last.made):
            numbers = [at for at in numbers if "loss" in last.results[at].lower()]
        return Loss(last.made[numbers[0]], last.scalars[numbers[0]]) if len(numbers) == 1 else None

    def executed(
        self, function: Called | None, number: int, read: Sequence[Value], made: Sequence[Value], arrays: Sequence[Any]
    ) -> None:
        """Note that a compiled program ran.

        Args:
            function: The program's function; None for an op of JAX.
            number: Number of the record.
            read: Its inputs.
            made: Its results.
            arrays: Its results as JAX arrays.
        """
        descent = 0
        for value in read:
            descent |= self._descent.get(value.record, 0)
        if function is not None:
            descent |= self._bits.setdefault(function.name, 1 << len(self._bits))
            scalars = {at: _number(array) for at, array in enumerate(arrays) if _is_number(array)}
            earlier = self._last.get(function.name)
            number_of_call = 1 if earlier is None else earlier.number + 1
            self._last[function.name] = _LastCall(number_of_call, made, scalars, function.results)
        if descent:
            self._descent[number] = descent

    def forget_all_but(self, records: set[int]) -> None:
        """Forget all other records, whose results no longer exist."""
        self._descent = {record: bits for record, bits in self._descent.items() if record in records}

    @property
    def is_full(self) -> bool:
        """Whether so many records are known that some must be forgotten."""
        return len(self._descent) >= _MOST_RECORDS


def _is_number(array: Any) -> bool:
    return array.ndim == 0 and array.is_fully_addressable and jax.numpy.issubdtype(array.dtype, jax.numpy.floating)


def _number(array: Any) -> float:
    return float(np.asarray(array._arrays[0]))


def _sort_of(path: str, array: Any) -> str:
    """The kind of a returned argument, by its path and dtype: a counter or a generator's key is a buffer."""
    words = _PART.findall(path)
    if any(_OF_OPTIMIZER.fullmatch(word) for word in words):
        return "optimizer state"
    is_inexact = array is None or jax.numpy.issubdtype(array.dtype, jax.numpy.inexact)
    return "parameter" if is_inexact and "batch_stats" not in words else "buffer"
