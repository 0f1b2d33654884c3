"""Looks closely at one record in a confirming run: are its inputs what their producers left, and does the op repeat?"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from determinism.frameworks.torch.edges import written_tensors
from determinism.frameworks.torch.generators import generator_of
from determinism.frameworks.torch.op_traits import OpTraits
from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.torch.tensor_bytes import digest_tensor
from determinism.frameworks.torch.value_difference import difference
from determinism.trace.files import write_json
from determinism.trace.schema import CAPTURE_FILE

_MAX_BYTES = 4 << 30


class Capture:
    """Waits for one op, examines it, and ends the program."""

    def __init__(self, request: dict[str, Any], folder: Path, finish: Callable[[str], None]) -> None:
        """Take what to look for.

        Args:
            request: `step`, `phase`, `op`, `module` (or None), `occurrence`, `repeats`, `seconds`.
            folder: Where the result is written.
            finish: Ends the program.
        """
        self._request = request
        self._folder = folder
        self._finish = finish
        self._seen = 0

    def __call__(self, recorder: Recorder, traits: OpTraits, func: Any, args: Any, kwargs: Any) -> None:
        """An op is about to run."""
        wanted = self._request
        if traits.name != wanted["op"] or recorder.progress.step != wanted["step"]:
            return
        phase, link = recorder.place()
        number = -1 if wanted["module"] is None else recorder.modules.number(wanted["module"])
        if phase.label != wanted["phase"] or link.module != number:
            return
        self._seen += 1
        if self._seen <= wanted["occurrence"]:
            return
        recorder.capture = None
        changed = changed_inputs(recorder, args, kwargs)
        repeated = {"repeats": 0, "outputs": []} if changed else self._repeat(traits, func, args, kwargs)
        result = {"changed_inputs": changed, **repeated}
        write_json(self._folder / CAPTURE_FILE, result)
        self._finish("captured")

    def _repeat(self, traits: OpTraits, func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
        """Run the op again and again on equal inputs, and count what comes out."""
        tensors = _tensors((args, tuple(kwargs.values())))
        if traits.is_uninitialized or sum(tensor.nbytes for tensor in tensors) > _MAX_BYTES:
            return {"repeats": 0, "outputs": []}
        generator = generator_of(args, kwargs) if traits.draws else None
        state = generator.get_state() if generator is not None else None
        seen: list[set[bytes]] = []
        first: list[torch.Tensor] = []
        worst: list[dict[str, Any]] = []
        repeats, until = 0, time.monotonic() + self._request["seconds"]
        # On a busy machine threads run one after the other, and a race shows only after many repeats.
        while repeats < 2 or (
            time.monotonic() < until and (repeats < self._request["repeats"] or all(len(found) < 2 for found in seen))
        ):
            if generator is not None and state is not None:
                generator.set_state(state)
            copies_args, copies_kwargs = _copied(args), _copied(kwargs)
            result = func(*copies_args, **copies_kwargs)
            outputs = written_tensors(traits, copies_args, copies_kwargs, result)
            if not first:
                first = [output.clone() for output in outputs]
                seen = [set() for _ in outputs]
                worst = [{"elements_different": 0, "max_ulp": None, "max_abs": None} for _ in outputs]
            for index, output in enumerate(outputs):
                digest = digest_tensor(output)
                if digest not in seen[index]:
                    seen[index].add(digest)
                    _note_worst(worst[index], difference(first[index], output))
            repeats += 1
        outputs_found = [{"distinct": len(s), **w} for s, w in zip(seen, worst, strict=True)]
        return {"repeats": repeats, "outputs": outputs_found}


def changed_inputs(recorder: Recorder, args: Any, kwargs: Any) -> list[int]:
    """Positions of the inputs whose memory no longer holds what the last recorded write left there."""
    changed = []
    for position, tensor in enumerate(_tensors((args, tuple(kwargs.values())))):
        state = recorder.edges.storages.known(tensor) if tensor.layout is torch.strided else None
        if state is None or state.view is None or not any(state.digest):
            continue
        size, stride, offset, dtype = state.view
        left = torch.empty(0, dtype=dtype, device=tensor.device).set_(tensor.untyped_storage(), offset, size, stride)
        if digest_tensor(left) != state.digest:
            changed.append(position)
    return changed


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _copied(value: Any) -> Any:
    """The same arguments with their own memory; strides stay as they are."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return value.clone()
        copy = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
        return copy.copy_(value.detach())
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value]
    return value


def _note_worst(worst: dict[str, Any], found: dict[str, Any]) -> None:
    for name, value in found.items():
        if value is not None and (worst[name] is None or value > worst[name]):
            worst[name] = value
