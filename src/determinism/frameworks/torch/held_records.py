"""Records what a program holds at the end of a step: parameters, gradients, buffers, optimizer state, generators."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import torch

from determinism import rng
from determinism.frameworks.torch.forward_links import NO_MODULE, NOWHERE
from determinism.frameworks.torch.generators import state_digest
from determinism.frameworks.torch.held import Held
from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.torch.tensor_bytes import is_plain, plain_parts
from determinism.types import Phase, Role

_HELD_OPS = {
    "parameter": "determinism::parameter",
    "gradient": "determinism::gradient",
    "buffer": "determinism::buffer",
    "optimizer state": "determinism::optimizer_state",
}
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def generator_states() -> list[bytes]:
    """Digests of the states of the generators that everything in this process shares."""
    return [state_digest(torch.default_generator), *rng.state_digests().values()]


def record_held(recorder: Recorder, name: str, generators: Sequence[bytes]) -> None:
    """Record everything that is held.

    Args:
        recorder: That of the thread that holds it.
        name: What the record stands for: the end of a step, or of the process.
        generators: Digests of the states of generators.
    """
    held = [part for whole in recorder.held.tensors() for part in _parts(whole)]
    if recorder.tracks_ops:
        text = json.dumps([[h.kind, h.name] for h in held])
        tensors = [h.tensor for h in held]
        recorder.event(Role.STATE, name, tensors, text=text, generators=generators, phase=Phase.OTHER)
        return
    _record_each(recorder, held)
    recorder.event(Role.STATE, name, [], generators=generators, phase=Phase.OTHER)


def _record_each(recorder: Recorder, held: Sequence[Held]) -> None:
    """Make a record of each tensor that is held, all at one place."""
    stack = recorder.sites.stack(sys._getframe(1), recorder.modules.calls)
    digests = recorder.stream.digests.of_each([one.tensor for one in held])
    for one, digest in zip(held, digests, strict=True):
        name = recorder.arguments.text_number(one.name) if one.name else -1
        op = recorder.stream.op_number(_HELD_OPS[one.kind])
        cells = (recorder.number, recorder.progress.step, Phase.OTHER, Role.HELD, op, NO_MODULE, stack)
        output = (recorder.layouts.number_without_storage(one.tensor), digest)
        record = recorder.writer.append((*cells, NOWHERE.record, NOWHERE.stack, name), (), (), output)
        if recorder.kept_values is not None:
            recorder.kept_values.add(recorder.writer, record, [one.tensor], output)


def _parts(held: Held) -> Sequence[Held]:
    """The tensors that hold the data, without those that other processes may write at any moment.

    To look at these would be our reading, not the program's: what a process finds there when it ends may vary although nothing
    that the program reads does.
    """
    if type(held.tensor) in _PLAIN:
        return (held,) if _is_own(held.tensor) else ()
    return [held._replace(tensor=part) for part in plain_parts(held.tensor) if _is_own(part)]


def _is_own(tensor: torch.Tensor) -> bool:
    return is_plain(tensor) and not (tensor.is_cpu and tensor.untyped_storage().is_shared())
