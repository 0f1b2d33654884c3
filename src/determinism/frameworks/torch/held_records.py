"""Records what a program holds at the end of a step: parameters, gradients, buffers, optimizer state, generators."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from determinism import rng
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
    held = [
        h._replace(tensor=part) for h in recorder.held.tensors() for part in plain_parts(h.tensor) if is_plain(part)
    ]
    if recorder.tracks_ops:
        text = json.dumps([[h.kind, h.name] for h in held])
        tensors = [h.tensor for h in held]
        recorder.event(Role.STATE, name, tensors, text=text, generators=generators, phase=Phase.OTHER)
        return
    for one in held:
        _record_one(recorder, one)
    recorder.event(Role.STATE, name, [], generators=generators, phase=Phase.OTHER)


def _record_one(recorder: Recorder, held: Held) -> None:
    recorder.event(Role.HELD, _HELD_OPS[held.kind], [held.tensor], text=held.name, values=True, phase=Phase.OTHER)
