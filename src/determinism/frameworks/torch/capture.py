"""Looks closely at one record in a further run: are its inputs what their producers left, does the op repeat, what are the values?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from determinism.frameworks.torch.captured_call import CapturedCall, is_saveable, save
from determinism.frameworks.torch.edges import written_tensors
from determinism.frameworks.torch.op_repeats import OpRepeats, Output, filled_memory, one_thread
from determinism.frameworks.torch.op_traits import OpTraits
from determinism.frameworks.torch.record_maker import RecordMaker
from determinism.frameworks.torch.settings_inside import run_with_settings, runner_of
from determinism.frameworks.torch.tensor_bytes import is_plain
from determinism.trace.files import write_json
from determinism.trace.schema import CAPTURE_FILE, CAPTURED_INPUTS_FILE, CAPTURED_OUTPUTS_FILE
from determinism.trace.waiting_rows import settled

_MAX_BYTES = 4 << 30
"""Of an op with larger inputs no copies are made."""


class Capture:
    """Waits for one record, examines it, and ends the program."""

    def __init__(self, request: dict[str, Any], folder: Path, finish: Callable[[str], None]) -> None:
        """Take what to look for.

        Args:
            request: `step`, `phase`, `op`, `module` (or None), `occurrence`; `most_bytes` that may be kept; `repeats` and
                `seconds`, of which the first may be 0 if only values are wanted.
            folder: Of the stream that holds the record, since records of other threads may look the same; the result is
                written there.
            finish: Ends the program.
        """
        self._request = request
        self._folder = folder
        self._finish = finish
        self._seen = 0
        self._left = int(request["most_bytes"])

    def __call__(self, recorder: RecordMaker, traits: OpTraits, func: Any, args: Any, kwargs: Any) -> None:
        """An op is about to run."""
        if not self._is_wanted(recorder, traits.name):
            return
        recorder.capture = None
        result: dict[str, Any] = {"changed_inputs": changed_inputs(recorder, args, kwargs), "repeats": 0, "outputs": []}
        try:
            result |= self._examine(recorder, traits, func, args, kwargs, has_changed=bool(result["changed_inputs"]))
        except Exception as error:
            # The op may fail on copies, or there may be no memory for them; what is known of the inputs stands.
            result["saved"] = _saved(f"running it failed ({type(error).__name__}: {error})")
        self._end(result)

    def after(self, recorder: RecordMaker, traits: OpTraits, record: int, written: list[torch.Tensor]) -> None:
        """It has run; the one that was waited for ended the program."""

    def event(self, recorder: RecordMaker, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Something that is no op is about to be recorded."""
        if self._is_wanted(recorder, name):
            recorder.capture = None
            named = {f"output_{position}": tensor.detach() for position, tensor in enumerate(tensors)}
            saved = _saved(self._keep(CAPTURED_OUTPUTS_FILE, "tensors", named))
            self._end({"changed_inputs": [], "repeats": 0, "outputs": [], "saved": saved})

    def _end(self, result: dict[str, Any]) -> None:
        write_json(self._folder / CAPTURE_FILE, result)
        self._finish("captured")

    def _is_wanted(self, recorder: RecordMaker, op: str) -> bool:
        wanted = self._request
        if op != wanted["op"] or recorder.writer.folder != self._folder or recorder.progress.step != wanted["step"]:
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
        call = CapturedCall(traits, args, kwargs)
        if traits.is_uninitialized or traits.is_collective:
            what = "leaves memory as it was" if traits.is_uninitialized else "returns before its outputs are there"
            return {"saved": _saved(f"the op {what}")}
        if not self._request["repeats"]:
            return {"saved": self._values(recorder, traits, func, args, kwargs, call)}
        if _size(tensors_in((args, kwargs))) > _MAX_BYTES:
            return {"saved": _saved(f"its inputs take more than {_MAX_BYTES >> 30} GiB")}
        return self._repeat(traits, func, args, kwargs, call)

    def _values(
        self, recorder: RecordMaker, traits: OpTraits, func: Any, args: Any, kwargs: Any, call: CapturedCall
    ) -> dict[str, Any]:
        """Keep what the op reads, let it run as it would have, and keep what it made."""
        left_out = self._keep(CAPTURED_INPUTS_FILE, "inputs", call.tensors)
        if traits.needs_settings:
            result = run_with_settings(recorder.writer, func, args, kwargs)
        else:
            result = runner_of(func)(*args, **kwargs)
        outputs = enumerate(written_tensors(traits, args, kwargs, result))
        named = {f"output_{position}": output for position, output in outputs}
        return _saved(left_out, self._keep(CAPTURED_OUTPUTS_FILE, "results", named))

    def _repeat(self, traits: OpTraits, func: Any, args: Any, kwargs: Any, call: CapturedCall) -> dict[str, Any]:
        """Run the op again and again on copies, and keep its inputs with up to two results of each output."""
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
        return {"repeats": done, "outputs": facts, "saved": saved}

    def _keep(self, file: str, what: str, tensors: dict[str, torch.Tensor]) -> str | None:
        """Keep tensors as a file, without those that cannot be; says why if they are too large for what is left."""
        kept = {name: tensor for name, tensor in tensors.items() if is_saveable(tensor)}
        needed = _size(kept.values())
        if needed > self._left:
            mebibytes = [size / (1 << 20) for size in (needed, self._request["most_bytes"])]
            return f"its {what} take {mebibytes[0]:,.1f} MiB, and {mebibytes[1]:,.1f} MiB may be kept"
        self._left -= needed
        if file == CAPTURED_OUTPUTS_FILE:
            # Each element stands there by itself, so that files of two runs can be compared.
            kept = {name: tensor.detach().contiguous() for name, tensor in kept.items()}
        save(self._folder / file, kept, about=f"{what} of {self._request['op']}")
        return None


def _saved(*left_out: str | None) -> dict[str, Any]:
    """What is said of what was kept: the call, why there is none, and why tensors are missing."""
    reason = next((text for text in left_out if text is not None), None)
    return {"call": None, "reason": reason, "left_out": reason}


def _further_series(
    repeats: OpRepeats, outputs: dict[int, Output], limits: dict[str, Any]
) -> Iterator[tuple[str, dict[int, Output]]]:
    """Series that hold another factor each, as long as there is something left to be told apart."""
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


def _size(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of tensors, without the sparse ones, which are small."""
    return sum(tensor.nbytes for tensor in tensors if is_plain(tensor))


def _varies(outputs: dict[int, Output]) -> bool:
    return any(output.distinct > 1 for output in outputs.values())


def changed_inputs(recorder: RecordMaker, args: Any, kwargs: Any) -> list[int]:
    """Positions of the inputs whose memory no longer holds what the last recorded write left there."""
    changed = []
    for position, tensor in enumerate(tensors_in((args, tuple(kwargs.values())))):
        state = recorder.edges.storages.known(tensor) if tensor.layout is torch.strided else None
        if state is None or state.view is None or not any(before := settled(state.digest)):
            continue
        size, stride, offset, dtype = state.view
        left = torch.empty(0, dtype=dtype, device=tensor.device).set_(tensor.untyped_storage(), offset, size, stride)
        if settled(recorder.stream.digests.of(left)) != before:
            changed.append(position)
    return changed


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []
