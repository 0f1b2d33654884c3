"""Examines one record in a further run: its inputs, whether the op's result is repeatable, its values."""

from __future__ import annotations

import ctypes
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from determinism.frameworks.torch.compilers import CompiledKernel
from determinism.frameworks.torch.edges import written_arguments, written_tensors
from determinism.frameworks.torch.ops import OpTraits, generator_of, run_with_settings, runner_of
from determinism.frameworks.torch.recorder import RecordMaker
from determinism.frameworks.torch.settings import computing_settings
from determinism.frameworks.torch.tensor_bytes import digest_tensor, is_plain
from determinism.sites import frame_text, innermost_user_frame
from determinism.trace.files import StoredTensor, write_json, write_tensors
from determinism.trace.schema import CAPTURE_FILE, CAPTURED_INPUTS_FILE, CAPTURED_OUTPUTS_FILE
from determinism.trace.spool import resolved_digest

# Copies of tensors with the memory layout of the originals: the same strides, and an equally aligned address.

ALIGNMENT = 64
"""Bytes. Vector instructions and cache lines depend only on an address modulo this."""


def alignment_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's first element modulo `ALIGNMENT`."""
    return int(tensor.data_ptr() % ALIGNMENT)


def copied(value: Any, *, shift: int = 0) -> Any:
    """Copy arguments into new memory; a tensor that occurs twice is copied once.

    Args:
        value: Tensors and other values, in nested lists, tuples and dictionaries.
        shift: Elements by which each tensor is moved away from the original's alignment.
    """
    return _copied(value, shift, {})


def _copied(value: Any, shift: int, known: dict[tuple[Any, ...], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            return value.clone()
        key = (value.untyped_storage()._cdata, value.dtype, value.storage_offset(), value.shape, value.stride())
        if key not in known:
            known[key] = _copy(value.detach(), shift)
        return known[key]
    if isinstance(value, dict):
        return {name: _copied(item, shift, known) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(item, shift, known) for item in value]
    return value


def _copy(tensor: torch.Tensor, shift: int) -> torch.Tensor:
    item = tensor.element_size()
    pairs = list(zip(tensor.shape, tensor.stride(), strict=True))
    span = 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0
    memory = torch.empty(span * item + 2 * ALIGNMENT, dtype=torch.uint8, device=tensor.device)
    wanted = alignment_of(tensor) + shift * item if tensor.numel() else 0
    start = (wanted - memory.data_ptr()) % ALIGNMENT // item * item
    flat = memory[start : start + span * item].view(tensor.dtype)
    # A dimension that repeats the same elements (in an expanded tensor) is stored once in the copy, too.
    once = [1 if size and not stride else size for size, stride in pairs]
    first = tensor.as_strided(once, tensor.stride(), tensor.storage_offset())
    flat.as_strided(once, tensor.stride()).copy_(first)
    return flat.as_strided(tensor.shape, tensor.stride())


# A call of an op as data: its arguments as JSON, and the tensors among them with their memory layouts.

_BUILT_IN = frozenset({"aten", "prims", "mkldnn", "mkldnn_prepacked", "onednn", "quantized", "sparse"})
"""Namespaces of PyTorch's own ops; others need the package that registers them."""
_STORED = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
    torch.complex64: "F32", torch.complex128: "F64",
}  # fmt: skip
"""Type names in the safetensors format. Complex numbers are stored as two numbers; other types as their bytes."""
_NAMED = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


class CapturedCall:
    """The arguments of one call."""

    def __init__(self, traits: OpTraits, args: Any, kwargs: Any) -> None:
        """Capture arguments."""
        self.problem: str | None = None
        """Why the call could not be repeated from this; continues a sentence after "because"."""
        self.tensors: dict[str, torch.Tensor] = {}
        """The tensors, by names derived from the parameters' names."""
        self.paths: dict[str, str] = {}
        """The path of each tensor within the arguments, in order."""
        op, names = traits.name, traits.argument_names
        if op.startswith("inductor::"):
            self.problem = f"{op} is a kernel that Inductor compiled for this program"
        elif op.startswith("triton::"):
            self.problem = f"{op} is a kernel that the program wrote in Triton"
        elif op.partition("::")[0] not in _BUILT_IN:
            self.problem = f"{op} is not part of PyTorch: it exists only where the package that defines it is loaded"
        self._op = op
        self._args = [
            self._argument(value, names[position] if position < len(names) else f"argument_{position}")
            for position, value in enumerate(args)
        ]
        self._kwargs = {name: self._argument(value, name) for name, value in kwargs.items()}
        self._written = [
            self.name_of(tensor)
            for target in written_arguments(traits, args, kwargs)
            for tensor in (target if isinstance(target, (list, tuple)) else [target])
            if tensor is not None
        ]
        takes_default = traits.draws and not _has_own_generator(args, kwargs)
        generator = generator_of(args, kwargs) if takes_default else None
        self._generator = None if generator is None else self._argument(generator, "default_generator")

    def document(self) -> dict[str, Any]:
        """Return the call as JSON."""
        return {
            "op": self._op,
            "args": self._args,
            "kwargs": self._kwargs,
            "tensors": {name: _layout(tensor) for name, tensor in self.tensors.items()},
            "written": self._written,
            "default_generator": self._generator,
            "settings": computing_settings(),
        }

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Return the name of a tensor among the arguments."""
        return next((name for name, known in self.tensors.items() if known is tensor), None)

    def _argument(self, value: Any, name: str) -> Any:
        return self._node(value, name, name)

    def _node(self, value: Any, name: str, path: str) -> Any:
        """Convert a value to JSON; a type that JSON lacks becomes a dictionary with one key, which names it."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return {"float": value.hex()}
        if type(value) is complex:
            return {"complex": [value.real.hex(), value.imag.hex()]}
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value, name, path)}
        if isinstance(value, (list, tuple)):
            return [self._node(item, f"{name}_{index}", f"{path}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, torch.device):
            return {"device": value.type}
        if isinstance(value, torch.Generator):
            state = value.get_state()
            return {"generator": self._tensor(state, f"{name}_state", f"{path}.state"), "device": value.device.type}
        kind = _NAMED.get(type(value))
        if kind is None:
            self.problem = f"its argument {name} is of type {type(value).__qualname__}"
            return None
        return {kind: str(value).removeprefix("torch.")}

    def _tensor(self, tensor: torch.Tensor, name: str, path: str) -> str:
        if not is_saveable(tensor):
            self.problem = f"its argument {name} is a sparse, quantized or nested tensor"
            return name
        known = self.name_of(tensor)
        if known is None:
            known = name if name not in self.tensors else f"{name}_{len(self.tensors)}"
            self.tensors[known] = tensor
            self.paths[known] = path
        return known


def is_saveable(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements can be written one after the other."""
    return is_plain(tensor) and not tensor.is_quantized


def save(path: Path, tensors: Mapping[str, torch.Tensor], *, about: str) -> None:
    """Write tensors to a safetensors file.

    Raises:
        OSError: The file cannot be written.
    """
    write_tensors(path, {name: stored(tensor) for name, tensor in tensors.items()}, about={"about": about})


def stored(tensor: torch.Tensor) -> StoredTensor:
    """Return a tensor's elements in index order; a dimension that repeats them (stride 0) is stored once."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    shape = tuple(
        1 if size and not stride else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    tensor = tensor.as_strided(shape, tensor.stride(), tensor.storage_offset()).cpu().contiguous()
    kind = _STORED.get(tensor.dtype)
    if tensor.is_complex():
        shape += (2,)
    elif kind is None:
        kind, shape = "U8", (*shape, tensor.element_size())
    return StoredTensor(kind or "U8", shape, _memory(tensor))


def _memory(tensor: torch.Tensor) -> memoryview:
    if not tensor.nbytes:
        return memoryview(b"")
    block: Any = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    # The memory must live as long as the view of it.
    block.tensor = tensor
    return memoryview(block).cast("B")


def _layout(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "address": alignment_of(tensor) if tensor.numel() else 0,
        "device": tensor.device.type,
    }


# How far apart two tensors of equal shape and dtype are.

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


MOST_EXAMPLES = 3


def difference(first: torch.Tensor, second: torch.Tensor) -> dict[str, Any]:
    """Compare two tensors bit by bit.

    Returns:
        `elements_different`; for real floats `max_ulp` (how many representable numbers apart, counted through zero; None
        if a differing element is not finite), `max_abs` (None if not finite) and `max_relative` (`max_abs` divided by the
        largest finite element; None if one of the others is); `examples`, the first elements that differ, each with
        `index`, `first` and `second` (as texts that differ for different values); and `extent`, per dimension the lowest
        and the highest index at which there are differences.
    """
    found: dict[str, Any] = dict.fromkeys(
        ("elements_different", "max_ulp", "max_abs", "max_relative", "examples", "extent")
    )
    if first.shape != second.shape or first.dtype != second.dtype or first.layout is not torch.strided:
        return found
    first, second = first.detach().contiguous(), second.detach().contiguous()
    parts = [torch.view_as_real(one) if one.is_complex() else one for one in (first, second)]
    kind = _BITS.get(parts[0].element_size())
    if kind is None or first.is_quantized:
        return found
    parts_differ = parts[0].view(kind) != parts[1].view(kind)
    different = parts_differ.any(dim=-1) if first.is_complex() else parts_differ
    count = int(different.sum())
    found["elements_different"] = count
    if not count:
        return found
    places = different.nonzero()
    found["examples"] = [
        {"index": place, "first": value_text(first[tuple(place)]), "second": value_text(second[tuple(place)])}
        for place in places[:MOST_EXAMPLES].tolist()
    ]
    if first.dim():
        found["extent"] = [list(ends) for ends in zip(*(e.tolist() for e in places.aminmax(dim=0)), strict=True)]
    if parts[0].is_floating_point():
        found["max_ulp"], found["max_abs"] = _distance(*(part[parts_differ] for part in parts))
        largest = max(
            float(part[part.isfinite()].double().abs().max()) if part.isfinite().any() else 0.0 for part in parts
        )
        if found["max_ulp"] is not None and found["max_abs"] is not None and largest:
            found["max_relative"] = found["max_abs"] / largest
    return found


def value_text(element: torch.Tensor) -> str:
    """Format one element as a text that differs for different values."""
    value = element.item()
    digits = {8: ".17g", 4: ".9g"}.get(element.element_size(), ".5g")
    return format(value, digits) if isinstance(value, float) else str(value)


def _distance(first: torch.Tensor, second: torch.Tensor) -> tuple[int | None, float | None]:
    apart = float((first.double() - second.double()).abs().max())
    if not bool(torch.isfinite(first).all() and torch.isfinite(second).all()):
        return None, apart if math.isfinite(apart) else None
    ordered = [_ordered(part.view(_BITS[part.element_size()])).tolist() for part in (first, second)]
    return max(abs(a - b) for a, b in zip(*ordered, strict=True)), apart if math.isfinite(apart) else None


def _ordered(bits: torch.Tensor) -> torch.Tensor:
    """Map the bits of floats to integers in the same order as the floats."""
    lowest = torch.iinfo(bits.dtype).min
    return torch.where(bits < 0, lowest - bits.to(torch.int64), bits.to(torch.int64))


# Repeats one op on copies of its inputs, and counts the different results of each output.

_SHIFTS = (0, 1, 2, 3, 5, 8, 12)
"""Elements by which buffers are moved to other alignments."""
_M_PERTURB = -6
"""The option of glibc's `mallopt` that fills allocated memory with a byte."""


@dataclass
class Output:
    """The results of one output of the op, over a series of repeats."""

    first: torch.Tensor
    other: torch.Tensor | None = None
    """The result that differs from the first in the most elements."""
    worst: dict[str, Any] = field(default_factory=dict)
    """The largest differences from the first; `examples` and `extent` describe `other`."""
    digests: set[bytes] = field(default_factory=set)

    @property
    def distinct(self) -> int:
        """The number of different results."""
        return len(self.digests)

    def add(self, result: torch.Tensor) -> None:
        """Add one more result."""
        digest = digest_tensor(result)
        if digest in self.digests:
            return
        self.digests.add(digest)
        if len(self.digests) == 1:
            return
        found = difference(self.first, result)
        if self.other is None or (found["elements_different"] or 0) > (self.worst["elements_different"] or 0):
            self.other = result.clone()
            self.worst.update({name: found[name] for name in ("elements_different", "examples", "extent")})
        for name in ("max_ulp", "max_abs", "max_relative"):
            known = self.worst.get(name)
            self.worst[name] = found[name] if known is None else max(known, found[name] or 0)


def private_copies(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Copy a call's tensors and generators, so that no other code can change its arguments."""
    own_args, own_kwargs = copied([args, kwargs])
    return [_own_generator(value) for value in own_args], {name: _own_generator(v) for name, v in own_kwargs.items()}


def _own_generator(value: Any) -> Any:
    if not isinstance(value, torch.Generator):
        return value
    own = torch.Generator(device=value.device)
    own.set_state(value.get_state())
    return own


class OpRepeats:
    """One op with its inputs, to be run repeatedly."""

    def __init__(self, traits: OpTraits, func: Any, args: Any, kwargs: Any) -> None:
        """Take a call, without making it yet.

        Args:
            traits: The traits of the op.
            func: The op.
            args: Its positional arguments, which no other code may change meanwhile: see `private_copies`.
            kwargs: Its keyword arguments, likewise.
        """
        self._traits = traits
        self._func = func
        self._args = args
        self._kwargs = kwargs
        self._generator = generator_of(args, kwargs) if traits.draws else None
        self._state = self._generator.get_state() if self._generator is not None else None

    def outputs(self, *, shift: int = 0) -> list[torch.Tensor]:
        """Run the op once on copies, leaving the program's tensors as they are; returns what it wrote and made."""
        self.put_back()
        args, kwargs = copied([self._args, self._kwargs], shift=shift)
        result = self._func(*args, **kwargs)
        return written_tensors(self._traits, args, kwargs, result)

    def put_back(self) -> None:
        """Restore the generator's state."""
        if self._generator is not None and self._state is not None:
            self._generator.set_state(self._state)

    def series(
        self, *, repeats: int, seconds: float, insists: bool = False, moves: bool = False
    ) -> tuple[int, dict[int, Output]]:
        """Run the op at least twice.

        Args:
            repeats: How often to run it.
            seconds: The time limit.
            insists: Whether to use the whole time as long as no output has varied. On a busy machine threads run one
                after the other, and a race shows only after many repeats.
            moves: Whether to give the buffers another alignment in each repeat.

        Returns:
            How often it was run, and its outputs by position, without those that are only scratch memory.
        """
        found: dict[int, Output] = {}
        done, until = 0, time.monotonic() + seconds
        while done < 2 or (time.monotonic() < until and (done < repeats or (insists and _are_constant(found)))):
            outputs = self.outputs(shift=_SHIFTS[done % len(_SHIFTS)] if moves else 0)
            for position, output in enumerate(outputs):
                if position not in self._traits.workspaces:
                    found.setdefault(position, Output(output.clone())).add(output)
            done += 1
        return done, found


def _are_constant(outputs: dict[int, Output]) -> bool:
    return all(output.distinct < 2 for output in outputs.values())


@contextmanager
def one_thread() -> Iterator[None]:
    """Make ops run in one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def filled_memory(value: int = 0x55) -> Iterator[bool]:
    """Have allocated memory filled with a byte; yields False where the C library cannot do so."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        yield False
        return
    is_done = bool(set_option(_M_PERTURB, value))
    try:
        yield is_done
    finally:
        set_option(_M_PERTURB, 0)


_MAX_BYTES = 4 << 30
"""The inputs of an op are not copied if they are larger."""


class Capture:
    """Waits for one record, examines it, and then usually ends the program."""

    def __init__(self, request: dict[str, Any], folder: Path, finish: Callable[[str], None]) -> None:
        """Take what to look for.

        Args:
            request: `step`, `phase`, `op`, `module` (or None) and `occurrence`; `most_bytes` that may be kept; `repeats`
                (0 if only values are wanted) and `seconds`.
            folder: The folder of the stream that holds the record, as records of other threads may look the same; the
                result is written there.
            finish: Ends the program, or lets it continue.
        """
        self._request = request
        self._folder = folder
        self._finish = finish
        self._seen = 0
        self._left = int(request["most_bytes"])

    def __call__(self, recorder: RecordMaker, traits: OpTraits, func: Any, args: Any, kwargs: Any) -> None:
        """Examine an op that is about to run, if it is the wanted one."""
        if not self._is_wanted(recorder, traits.name, (args, tuple(kwargs.values()))):
            return
        recorder.capture = None
        result: dict[str, Any] = {"changed_inputs": changed_inputs(recorder, args, kwargs), "repeats": 0, "outputs": []}
        try:
            result |= self._examine(recorder, traits, func, args, kwargs, has_changed=bool(result["changed_inputs"]))
        except Exception as error:
            # The op may fail on copies, or memory may not suffice; what is known about the inputs is still reported.
            result["saved"] = _saved(f"running it failed ({type(error).__name__}: {error})")
        self._end(result)

    def after(self, recorder: RecordMaker, traits: OpTraits, record: int, written: list[torch.Tensor]) -> None:
        """Do nothing: the wanted op was examined before it ran."""

    def event(self, recorder: RecordMaker, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Keep the tensors of an event that is about to be recorded, if it is the wanted one."""
        if self._is_wanted(recorder, name, tensors):
            recorder.capture = None
            named = {f"output_{position}": tensor.detach() for position, tensor in enumerate(tensors)}
            saved = _saved(self._keep(CAPTURED_OUTPUTS_FILE, "tensors", named))
            self._end({"changed_inputs": [], "repeats": 0, "outputs": [], "saved": saved})

    def _end(self, result: dict[str, Any]) -> None:
        write_json(self._folder / CAPTURE_FILE, result)
        self._finish("captured")

    def _is_wanted(self, recorder: RecordMaker, op: str, given: Any) -> bool:
        wanted = self._request
        if op != wanted["op"] or recorder.writer.folder != self._folder:
            return False
        if wanted.get("alike") is not None:
            return _is_alike(wanted["alike"], given)
        if recorder.progress.step != wanted["step"]:
            return False
        phase, link = recorder.place()
        number = -1 if wanted["module"] is None else recorder.modules.number(wanted["module"])
        if phase.label != wanted["phase"] or link.module != number:
            return False
        self._seen += 1
        return bool(self._seen > wanted["occurrence"])

    def _examine(
        self, recorder: RecordMaker, traits: OpTraits, func: Any, args: Any, kwargs: Any, *, has_changed: bool
    ) -> dict[str, Any]:
        if has_changed and self._request["repeats"]:
            return {}
        if traits.is_uninitialized or traits.is_asynchronous:
            what = "leaves memory as it was" if traits.is_uninitialized else "returns before its outputs are ready"
            return {"saved": _saved(f"the op {what}")}
        if not self._request["repeats"]:
            call = CapturedCall(traits, args, kwargs)
            return {"inputs": call.paths, "saved": self._values(recorder, traits, func, args, kwargs, call)}
        if _size(tensors_in((args, kwargs))) > _MAX_BYTES:
            return {"saved": _saved(f"its inputs take more than {_MAX_BYTES >> 30} GiB")}
        if traits.draws and not _has_own_generator(args, kwargs) and threading.active_count() > 1:
            return {"saved": _saved("other threads of the program may draw from its random generator in the meantime")}
        # Another thread may write the program's tensors meanwhile; results that vary due to that do not count.
        args, kwargs = private_copies(args, kwargs)
        return self._repeat(traits, func, args, kwargs, CapturedCall(traits, args, kwargs))

    def _values(
        self, recorder: RecordMaker, traits: OpTraits, func: Any, args: Any, kwargs: Any, call: CapturedCall
    ) -> dict[str, Any]:
        """Keep what the op reads, run it as the program would have, and keep what it made."""
        left_out = self._keep(CAPTURED_INPUTS_FILE, "inputs", call.tensors)
        if traits.needs_settings:
            result = run_with_settings(recorder.writer, func, args, kwargs)
        else:
            result = runner_of(func)(*args, **kwargs)
        outputs = enumerate(written_tensors(traits, args, kwargs, result))
        named = {f"output_{position}": output for position, output in outputs}
        return _saved(left_out, self._keep(CAPTURED_OUTPUTS_FILE, "results", named))

    def _repeat(self, traits: OpTraits, func: Any, args: Any, kwargs: Any, call: CapturedCall) -> dict[str, Any]:
        """Run the op repeatedly on copies, and keep its inputs and up to two results of each output."""
        repeats = OpRepeats(traits, func, args, kwargs)
        limits = {"repeats": self._request["repeats"], "seconds": self._request["seconds"]}
        done, outputs = repeats.series(**limits, insists=True)
        found = {position: {"distinct": output.distinct, **output.worst} for position, output in outputs.items()}
        for name, series in _further_series(repeats, outputs, limits):
            for position, output in series.items():
                found[position][name] = output.distinct
        named = {f"output_{position}": output.first for position, output in outputs.items()}
        named |= {f"output_{at}_other": output.other for at, output in outputs.items() if output.other is not None}
        left_out = self._keep(CAPTURED_INPUTS_FILE, "inputs", call.tensors)
        saved = _saved(left_out, self._keep(CAPTURED_OUTPUTS_FILE, "results", named))
        saved["reason"] = left_out or call.problem
        if saved["reason"] is None:
            saved["call"] = {**call.document(), "compared": list(outputs)}
        facts = [{"position": position, **facts} for position, facts in found.items()]
        return {"repeats": done, "outputs": facts, "saved": saved, **_within_kernel(func, outputs)}

    def _keep(self, file: str, what: str, tensors: dict[str, torch.Tensor]) -> str | None:
        """Save tensors to a file, except unsavable ones; returns the reason if they exceed the remaining space."""
        kept = {name: tensor for name, tensor in tensors.items() if is_saveable(tensor)}
        needed = _size(kept.values())
        if needed > self._left:
            mebibytes = [size / (1 << 20) for size in (needed, self._request["most_bytes"])]
            return f"its {what} take {mebibytes[0]:,.1f} MiB, and {mebibytes[1]:,.1f} MiB may be kept"
        self._left -= needed
        if file == CAPTURED_OUTPUTS_FILE:
            # The files store every element, even repeated ones, so that files of two runs can be compared.
            kept = {name: tensor.detach().contiguous() for name, tensor in kept.items()}
        save(self._folder / file, kept, about=f"{what} of {self._request['op']}")
        return None


def _has_own_generator(args: Any, kwargs: Any) -> bool:
    return any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values()))


def _is_alike(wanted: dict[str, Any], given: Any) -> bool:
    """Whether the program is at the wanted line, and an op gets tensors like those of the wanted record."""
    got = {(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in tensors_in(given)}
    if not {(dtype, tuple(shape)) for dtype, shape in wanted["inputs"]} <= got:
        return False
    # In a thread that runs no code of the program, the wanted line is the one that made the thread.
    frame = frame_text(innermost_user_frame())
    return not frame or wanted["site"] is None or json.loads(frame)[:2] == wanted["site"]


def _saved(*left_out: str | None) -> dict[str, Any]:
    """Describe what was kept: no call yet, why there is none, and why tensors are missing."""
    reason = next((text for text in left_out if text is not None), None)
    return {"call": None, "reason": reason, "left_out": reason}


def _further_series(
    repeats: OpRepeats, outputs: dict[int, Output], limits: dict[str, Any]
) -> Iterator[tuple[str, dict[int, Output]]]:
    """Yield further series, each with one more factor held fixed, as long as a cause remains to be ruled out."""
    if not any(output.first.is_cpu for output in outputs.values()):
        return
    with one_thread():
        varies = _varies(outputs)
        if varies:
            _, found = repeats.series(**limits)
            yield "distinct_one_thread", found
            varies = _varies(found)
        with filled_memory() as is_filled:
            if varies and is_filled:
                _, found = repeats.series(**limits)
                yield "distinct_filled_memory", found
                varies = _varies(found)
            if not varies:
                _, found = repeats.series(**limits, moves=True)
                yield "distinct_alignments", found


def _within_kernel(func: Any, outputs: dict[int, Output]) -> dict[str, Any]:
    """Return the ops fused into a kernel that varies."""
    if not isinstance(func, CompiledKernel) or not _varies(outputs):
        return {}
    return {"fused": [vars(one) for one in func.fused], "inside": func.varying_place()}


def _size(tensors: Iterable[torch.Tensor]) -> int:
    """Sum up the bytes of tensors, without sparse ones, which are small."""
    return sum(tensor.nbytes for tensor in tensors if is_plain(tensor))


def _varies(outputs: dict[int, Output]) -> bool:
    return any(output.distinct > 1 for output in outputs.values())


def changed_inputs(recorder: RecordMaker, args: Any, kwargs: Any) -> list[int]:
    """Return the positions of inputs whose memory no longer holds what the last recorded write left there."""
    changed = []
    for position, tensor in enumerate(tensors_in((args, tuple(kwargs.values())))):
        state = recorder.edges.storages.known(tensor) if tensor.layout is torch.strided else None
        if state is None or state.view is None or not any(before := resolved_digest(state.digest)):
            continue
        size, stride, offset, dtype = state.view
        left = torch.empty(0, dtype=dtype, device=tensor.device).set_(tensor.untyped_storage(), offset, size, stride)
        if resolved_digest(recorder.stream.digests.of(left)) != before:
            changed.append(position)
    return changed


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []
