"""Digests the rows of every op and of every call of an outermost module, so that batches can be compared row by row."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from determinism.digest import digest_bytes, digest_many
from determinism.frameworks.torch.compilers import CompiledKernel, TritonLaunch
from determinism.frameworks.torch.ops import OpTraits
from determinism.frameworks.torch.recorder import RecordMaker
from determinism.frameworks.torch.tensor_bytes import digest_tensor, is_plain, leaves, plain_parts
from determinism.trace.row_calls import RowCallsWriter, SeenCall, SeenTensor, counts_of_rows
from determinism.trace.schema import NONE
from determinism.types import Phase

# Digests of a tensor's rows: of the slices along each dimension that may be that of the samples.

_data_pointer = torch._C.TensorBase.data_ptr


def seen(tensor: torch.Tensor, batch: int, *, with_padding: bool = False) -> SeenTensor:
    """The digests with which a tensor is compared row by row.

    Args:
        tensor: Any tensor.
        batch: How many samples the batch has.
        with_padding: Also digest its rows without the zeros at their ends.
    """
    shape = tuple(tensor.shape)
    if not is_plain(tensor) or tensor.is_quantized or not tensor.numel():
        return SeenTensor(shape, digest_tensor(tensor), {})
    tensor = _on_host(tensor.detach())
    whole = _digests(tensor.contiguous(), 1)
    rows = {}
    for dimension, count in counts_of_rows(shape, batch):
        rows[dimension] = _digests(tensor.movedim(dimension, 0).contiguous(), count)
    unpadded = _unpadded(tensor) if with_padding and len(shape) > 1 and shape[0] == batch else b""
    return SeenTensor(shape, whole, rows, unpadded)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor if tensor.is_cpu else tensor.cpu()


def _digests(block: torch.Tensor, count: int) -> bytes:
    """The digests of equal parts of a block of memory."""
    length = block.nbytes // count
    read, start = (ctypes.c_char * length).from_address, _data_pointer(block)
    return b"".join(digest_bytes(read(start + number * length)) for number in range(count))


def _unpadded(tensor: torch.Tensor) -> bytes:
    """The digests of the rows along the first dimension, each up to its last slice that is not zero."""
    found = []
    is_filled = (tensor != 0).flatten(2).any(2) if tensor.dim() > 2 else tensor != 0
    for row, filled in zip(tensor, is_filled, strict=True):
        positions = filled.nonzero()
        length = int(positions[-1]) + 1 if len(positions) else 0
        part = row[:length].contiguous()
        found.append(_digests(part, 1) if length else digest_bytes(b""))
    return b"".join(found)


_MOST_SENSITIVE = 20
_WITHOUT_ROWS = "rows of ops"
_SENSITIVE = (
    torch.nn.modules.batchnorm._BatchNorm,
    torch.nn.modules.instancenorm._InstanceNorm,
    torch.nn.modules.dropout._DropoutNd,
    torch.nn.RReLU,
)
"""Modules that compute differently in training mode."""


class Rows:
    """The rows that one thread's ops and outermost modules read and made."""

    def __init__(self, request: dict[str, Any], folder: Path) -> None:
        """Open the file.

        Args:
            request: `batch` and `settings`; see `RunSpec.rows`.
            folder: The folder of the process.

        Raises:
            OSError: The file cannot be made.
        """
        self._asked = self._batch = int(request["batch"])
        self._evaluates = "evaluation" in request["settings"]
        self._perturbs = "perturbed" in request["settings"]
        self._mkldnn = torch.backends.mkldnn.set_flags(False)[0] if "mkldnn-off" in request["settings"] else None
        self._writer = RowCallsWriter(folder)
        self._states: dict[int, tuple[weakref.ref[torch.Tensor], int, int, bytes]] = {}
        self._weights: dict[Any, tuple[weakref.ref[torch.Tensor], int, SeenTensor]] = {}
        self._op: tuple[OpTraits, Any, tuple[SeenTensor, ...]] | None = None
        self._module: tuple[torch.nn.Module, tuple[SeenTensor, ...], int, dict[str, tuple[int, bytes]]] | None = None
        self._has_drawn = False

    def watch(self, recorder: RecordMaker) -> None:
        """Follow what this recorder records."""
        recorder.capture = self

    def __call__(self, recorder: RecordMaker, traits: OpTraits, func: Any, args: Any, kwargs: Any) -> None:
        """Digest the inputs of an op that is about to run."""
        self._op = None
        self._has_drawn |= traits.draws
        if recorder.capture is not self or traits.is_uninitialized or traits.is_asynchronous:
            # Ops of other threads come in between; uninitialized or pending results have no content to compare.
            return
        if isinstance(func, (CompiledKernel, TritonLaunch)):
            # Its results are arguments whose memory is not yet written.
            return
        given = [] if traits.has_unvalued_inputs else list(_read_tensors(traits, args, kwargs))
        self._op = (traits, args, tuple(self._seen(tensor) for tensor in given))

    def _seen(self, tensor: torch.Tensor) -> SeenTensor:
        """The digests of an input; weights, which are the same for every batch, are digested once."""
        owner = tensor if tensor._base is None else tensor._base
        if not isinstance(owner, torch.nn.Parameter) or owner.is_inference():
            return seen(tensor, self._batch)
        place = (id(owner), torch._C.TensorBase.data_ptr(tensor), tensor.shape, tensor.stride(), self._batch)
        known = self._weights.get(place)
        if known is None or known[0]() is not owner or known[1] != owner._version:
            known = self._weights[place] = (weakref.ref(owner), owner._version, seen(tensor, self._batch))
        return known[2]

    def event(self, recorder: RecordMaker, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Ignore a record that is not an op: only ops and modules have rows."""

    def after(self, recorder: RecordMaker, traits: OpTraits, record: int, written: list[torch.Tensor]) -> None:
        """Digest the outputs of the op, which has run and was recorded."""
        if self._op is None or self._op[0] is not traits:
            return
        (_, given, inputs), self._op = self._op, None
        calls = recorder.modules.calls
        phase, _ = recorder.place()
        if phase is Phase.OPTIMIZER or phase is Phase.BACKWARD:
            return
        kept = [tensor for at, tensor in enumerate(written) if at not in traits.workspaces]
        facts = {
            "phase": phase.label,
            "training": bool(calls and calls[-1].module.training),
            "draws": traits.draws,
            "trains": _argument(traits, given, "training", "train") is True,
            "dim": dim if isinstance(dim := _argument(traits, given, "dim"), int) else None,
        }
        outputs = tuple(seen(tensor, self._batch) for tensor in kept)
        self._add(recorder, SeenCall(record, traits.name, NONE, self._batch, facts, inputs, outputs))

    def entered(self, recorder: RecordMaker, module: torch.nn.Module, arguments: Any) -> None:
        """Digest the inputs of an outermost module that is about to be called."""
        if recorder.capture is not self:
            return
        stack = recorder.sites.stack(sys._getframe(2))
        recorder.run_unrecorded(self._enter, recorder, module, arguments, stack)

    def _enter(self, recorder: RecordMaker, module: torch.nn.Module, arguments: Any, stack: int) -> None:
        if self._evaluates:
            module.eval()
        if self._perturbs:
            torch.rand(1)
        tensors = [part for tensor in _tensors(arguments) for part in plain_parts(tensor)]
        if tensors:
            self._batch = self._batch_of(tensors[0])
        given = tuple(seen(tensor, self._batch, with_padding=True) for tensor in tensors)
        self._has_drawn = False
        self._module = (module, given, stack, self._state_of(module))

    def returned(self, recorder: RecordMaker, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        """Digest the outputs of a module that returned."""
        if self._module is None or self._module[0] is not module or len(recorder.modules.calls) != 1:
            return
        recorder.run_unrecorded(self._leave, recorder, output)

    def _leave(self, recorder: RecordMaker, output: Any) -> None:
        assert self._module is not None
        (module, given, stack, before), self._module = self._module, None
        after = self._state_of(module)
        changed = sorted(name for name, state in before.items() if after.get(name, state)[1] != state[1])
        facts = {
            "phase": Phase.FORWARD.label,
            "training": module.training,
            "draws": False,
            "drawn": self._has_drawn,
            "state": digest_many(state[1] for name, state in before.items() if name not in changed).hex(),
            "changed": changed[:_MOST_SENSITIVE],
            "sensitive": _sensitive(module),
        }
        made = tuple(seen(part, self._batch) for tensor in _tensors(output) for part in plain_parts(tensor))
        self._add(recorder, SeenCall(NONE, type(module).__name__, stack, self._batch, facts, given, made))

    def _batch_of(self, tensor: torch.Tensor) -> int:
        """How many samples the batch of this tensor has; the last batch of an epoch may have fewer than the others."""
        if self._asked in tensor.shape or not tensor.dim() or not 0 < tensor.shape[0] < self._asked:
            return self._asked
        return int(tensor.shape[0])

    def _state_of(self, module: torch.nn.Module) -> dict[str, tuple[int, bytes]]:
        """Version and digest of each parameter and buffer, by name."""
        held = [*module.named_parameters(), *module.named_buffers()]
        return {name: self._digest_of(tensor) for name, tensor in held}

    def _digest_of(self, tensor: torch.Tensor) -> tuple[int, bytes]:
        if tensor.is_inference():
            return 0, digest_tensor(tensor)
        known = self._states.get(id(tensor))
        version, address = tensor._version, torch._C.TensorBase.data_ptr(tensor)
        if known is None or known[0]() is not tensor or known[1:3] != (version, address):
            known = self._states[id(tensor)] = (weakref.ref(tensor), version, address, digest_tensor(tensor))
        return version, known[3]

    def _add(self, recorder: RecordMaker, call: SeenCall) -> None:
        if (reason := self._writer.add(call)) is not None:
            recorder.writer.blind_spot("rows-cut", _WITHOUT_ROWS, reason)

    def close(self) -> None:
        """Finish the file, and restore the settings.

        Raises:
            OSError: The file cannot be written.
        """
        if self._mkldnn is not None:
            torch.backends.mkldnn.set_flags(self._mkldnn)
        self._writer.close()


def _argument(traits: OpTraits, args: Any, *names: str) -> Any:
    """The value of the first argument of an op with one of these names; None if there is none, or it was left out."""
    at = next((traits.argument_names.index(name) for name in names if name in traits.argument_names), None)
    return args[at] if at is not None and at < len(args) else None


def _read_tensors(traits: OpTraits, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The tensors whose content an op reads, in the order of its arguments."""
    is_hidden = traits.hidden_written and len(args) > traits.hidden_flag and args[traits.hidden_flag]
    for position, value in [*enumerate(args), *kwargs.items()]:
        if position in traits.written and not (traits.reads_written or traits.keeps_unwritten):
            continue
        if is_hidden and position in traits.hidden_written:
            # Statistics that it keeps across batches do not affect its result for this one.
            continue
        yield from _arguments(value)


def _arguments(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arguments(item)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor) and not leaf.is_meta)


def _sensitive(module: torch.nn.Module) -> list[list[str]]:
    """Path and class of the modules that are in training mode, and compute differently because of it."""
    found = []
    for name, child in module.named_modules():
        rate = getattr(child, "dropout", None)
        draws = isinstance(rate, float) and rate > 0
        if child.training and (isinstance(child, _SENSITIVE) or draws):
            found.append([name, type(child).__name__])
    return found[:_MOST_SENSITIVE]
