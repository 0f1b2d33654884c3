"""Examines one record closely in a further run: whether the op repeats, and what the values are.

For frameworks with immutable tensors: an input still holds its producer's output, so it need not be checked again.
"""

from __future__ import annotations

import linecache
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from determinism.comparison.tensors import ValueDifference, difference
from determinism.source_files import Owner, owner_of_file
from determinism.trace.files import StoredTensor, write_json, write_tensors
from determinism.trace.schema import CAPTURE_FILE, CAPTURED_INPUTS_FILE, CAPTURED_OUTPUTS_FILE
from determinism.types import Phase

_STORED = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32", "uint64": "U64",
    "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip


_SECONDS_INSIDE = 30.0
"""Time limit for searching within a compiled function that varies."""


_MOST_BYTES_INSIDE = 256 << 20
"""Limit on the intermediate values that one copy of a compiled function returns."""
_MOST_PLACES = 500
_Part = TypeVar("_Part")


def fitting_groups(parts: Iterable[_Part], bytes_of: Callable[[_Part], int]) -> Iterator[list[_Part]]:
    """Group consecutive parts of a compiled function so that the values of each group fit into memory together."""
    group: list[_Part] = []
    size = 0
    for part in parts:
        needed = bytes_of(part)
        if group and size + needed > _MOST_BYTES_INSIDE:
            yield group
            group, size = [], 0
        group.append(part)
        size += needed
    if group:
        yield group


class Place(NamedTuple):
    """An op of a compiled function."""

    op: str
    file: str
    line: int
    function: str
    code: str
    inside: tuple[str, ...]
    """The functions and loops that it is in, outermost first."""


def place_at(op: str, frames: Sequence[tuple[str, int, str]], inside: tuple[str, ...]) -> Place:
    """The place of an op: the innermost line of the program in its frames.

    Args:
        op: Its name.
        frames: File, line and function of each frame, innermost first.
        inside: The functions and loops that it is in.
    """
    own = [one for one in frames if owner_of_file(one[0]) is Owner.USER] or frames
    if not own:
        return Place(op, "", 0, "", "", inside)
    file, line, function = own[0]
    return Place(op, file, line, function, linecache.getline(file, line).strip(), inside)


def distinct_places(places: Iterable[Place]) -> list[Place]:
    """The first places, each op once per line, in order."""
    found: dict[tuple[str, str, int], Place] = {}
    for place in places:
        found.setdefault((place.op, place.file, place.line), place)
        if len(found) >= _MOST_PLACES:
            break
    return list(found.values())


class NotWritable(Exception):
    """The call cannot be written as data; the text says why, and continues a sentence after "because"."""


class Call(Protocol):
    """One op with its inputs and outputs, to be repeated in isolation."""

    @property
    def inputs(self) -> Sequence[Any]:
        """Tensors or arrays; None for an unknown one, empty if all are unknown."""

    @property
    def outputs(self) -> Sequence[Any]:
        """Tensors or arrays."""

    @property
    def problem(self) -> str | None:
        """Why it cannot be run again; None if it can."""

    def input_paths(self) -> dict[int, str]:
        """The name of the parameter that takes each input, by the input's position; unknown ones are left out."""

    def run(self) -> list[Any]:
        """Run it once; return its results.

        Raises:
            Exception: Whatever the framework raises.
        """

    def varying_place(self, seconds: float) -> dict[str, Any] | None:
        """The place that varies within a compiled function that can be searched; None for anything else, or if nothing varied."""

    def places(self) -> list[dict[str, Any]]:
        """The ops that a compiled function consists of, each with its line; empty for anything else."""

    def document(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The call as JSON, from which a script can make it again.

        Args:
            arrays: Its inputs in order, by the names that they are stored under.

        Raises:
            NotWritable: A script cannot make such a call.
        """


class Capture:
    """Waits for one record, examines it, and ends the program."""

    def __init__(
        self,
        request: dict[str, Any],
        folder: Path,
        finish: Callable[[str], None],
        *,
        as_array: Callable[[Any], Any],
        digest: Callable[[Any], bytes],
    ) -> None:
        """Take the request.

        Args:
            request: `step`, `phase`, `op`, `module` (or None) and `occurrence` of the record; `most_bytes`, the limit on kept
                values; `repeats`, 0 if only values are needed, and `seconds`, their time limit.
            folder: Folder of the process; the result is written there.
            finish: Ends the program, or lets it continue.
            as_array: Converts a tensor of the framework to a NumPy array.
            digest: Returns the digest of an array.
        """
        self._as_array = as_array
        self._digest = digest
        self._request = request
        self._folder = folder
        self._finish = finish
        self._seen = 0
        self._left = int(request["most_bytes"])

    def wants(self, name: str) -> bool:
        """Whether a record of an op with this name may be the requested one."""
        return bool(name == self._request["op"])

    def look(self, name: str, step: int, phase: Phase, module: str, call: Callable[[], Call] | None) -> None:
        """Examine a record that is about to be made, if it is the requested one.

        Args:
            name: Name of its op.
            step: Its step.
            phase: Its phase.
            module: Its layer's path; empty if there is none.
            call: Returns the op with its tensors; None if the record is not of an op.
        """
        wanted = self._request
        place = (wanted["op"], wanted["step"], wanted["phase"], wanted["module"] or "")
        if (name, step, phase.label, module) != place:
            return
        self._seen += 1
        if self._seen != wanted["occurrence"] + 1:
            return
        result: dict[str, Any] = {"changed_inputs": [], "repeats": 0, "outputs": []}
        try:
            result |= {"saved": _saved("it is not an op")} if call is None else self._examine(call())
        except Exception as error:
            result["saved"] = _saved(f"running it failed ({type(error).__name__}: {error})")
        write_json(self._folder / CAPTURE_FILE, result)
        self._finish("captured")

    def _examine(self, call: Call) -> dict[str, Any]:
        paths = call.input_paths()
        inputs = {f"input_{at}": paths.get(at) for at in range(len(call.inputs))}
        return {"inputs": inputs, **self._values(call)}

    def _values(self, call: Call) -> dict[str, Any]:
        outputs = [self._as_array(one) for one in call.outputs]
        if self._request["repeats"] and call.problem is None:
            return self._repeat(call, outputs)
        left_out = self._keep(CAPTURED_INPUTS_FILE, {f"input_{at}": one for at, one in enumerate(call.inputs)})
        left_out = (
            self._keep(CAPTURED_OUTPUTS_FILE, {f"output_{at}": one for at, one in enumerate(outputs)}) or left_out
        )
        return {"saved": _saved(left_out or (call.problem if self._request["repeats"] else None), left_out)}

    def _repeat(self, call: Call, outputs: list[Any]) -> dict[str, Any]:
        """Run the op repeatedly, and keep its inputs with up to two results of each output."""
        series = [_Output(one, self._digest) for one in outputs]
        until, done = time.monotonic() + self._request["seconds"], 0
        while done < self._request["repeats"] and (not done or time.monotonic() < until):
            for output, made in zip(series, call.run(), strict=True):
                output.add(self._as_array(made))
            done += 1
        inputs = {f"input_{at}": self._as_array(one) for at, one in enumerate(call.inputs)}
        left_out = self._keep(CAPTURED_INPUTS_FILE, inputs)
        kept = {f"output_{at}": one.first for at, one in enumerate(series)}
        kept |= {f"output_{at}_other": one.other for at, one in enumerate(series) if one.other is not None}
        left_out = self._keep(CAPTURED_OUTPUTS_FILE, kept) or left_out
        facts = [{"position": at, "distinct": len(one.digests), **one.facts()} for at, one in enumerate(series)]
        found = {"repeats": done, "outputs": facts, "saved": _with_call(call, inputs, left_out)}
        if any(len(one.digests) > 1 for one in series):
            # If a compiler crashes the process during the search, the findings so far are kept.
            interrupted = {
                "changed_inputs": [],
                **found,
                "inside_failed": "the process ended while the search looked inside it",
            }
            write_json(self._folder / CAPTURE_FILE, {"inputs": {}, **interrupted})
            try:
                found["inside"] = call.varying_place(_SECONDS_INSIDE)
            except Exception as error:
                found["inside_failed"] = f"{type(error).__name__}: {error}"[:300]
        if found.get("inside") is None:
            found["made_of"] = call.places()
        return found

    def _keep(self, file: str, values: Mapping[str, Any]) -> str | None:
        """Keep values in a file; return why not if they exceed the remaining limit."""
        arrays = {name: self._as_array(value) for name, value in values.items() if value is not None}
        arrays = {name: array for name, array in arrays.items() if not array.dtype.hasobject}
        needed = sum(array.nbytes for array in arrays.values())
        if needed > self._left:
            return f"its tensors take {needed / (1 << 20):,.1f} MiB, and {self._left / (1 << 20):,.1f} MiB may be kept"
        self._left -= needed
        about = {"about": f"tensors of {self._request['op']}"}
        write_tensors(self._folder / file, {name: stored(array) for name, array in arrays.items()}, about=about)
        return None


class _Output:
    """The results for one output of the op, over a series of repeats."""

    def __init__(self, first: Any, digest: Callable[[Any], bytes]) -> None:
        self._digest = digest
        self.first = first
        self.other: Any = None
        self.digests: set[bytes] = set()
        self._found: ValueDifference | None = None

    def add(self, result: Any) -> None:
        """Add a result."""
        digest = self._digest(result)
        if digest in self.digests:
            return
        self.digests.add(digest)
        found = difference(stored(self.first), stored(result), tuple(self.first.shape))
        if found is None or not found.elements_different:
            return
        if self._found is None or found.elements_different > self._found.elements_different:
            self.other, self._found = np.array(result), found

    def facts(self) -> dict[str, Any]:
        """How far the results differ."""
        found = self._found
        if found is None:
            return {"elements_different": None, "max_ulp": None, "max_abs": None}
        examples = [
            {"index": list(one.index), "first": one.first, "second": one.second} for one in found.examples or ()
        ]
        extent = None if found.extent is None else [list(ends) for ends in found.extent]
        return {**found._asdict(), "examples": examples, "extent": extent}


def stored(array: Any) -> StoredTensor:
    """Convert an array for a file: complex numbers to pairs, other types that the format lacks to the bytes of each element."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    shape = tuple(array.shape)
    kind = _STORED.get(array.dtype.name)
    if array.dtype.kind == "c":
        kind, shape = ("F32" if array.dtype.itemsize == 8 else "F64"), (*shape, 2)
    elif kind is None:
        kind, shape = "U8", (*shape, array.dtype.itemsize)
    return StoredTensor(kind, shape, array.tobytes())


def _with_call(call: Call, inputs: Mapping[str, Any], left_out: str | None) -> dict[str, Any]:
    """The facts about what was kept, with the call if a script can make it."""
    if left_out is not None:
        return _saved(left_out, left_out)
    try:
        return {**_saved(None), "call": call.document(inputs)}
    except (NotWritable, UnicodeDecodeError) as error:
        return _saved(str(error))


def _saved(reason: str | None, left_out: str | None = None) -> dict[str, Any]:
    """The facts about what was kept: why there is no call that a script could make, and why tensors are missing."""
    return {"call": None, "reason": reason, "left_out": left_out}
