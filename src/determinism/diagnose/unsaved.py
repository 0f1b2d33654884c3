"""Names what a checkpoint lacks, from how a resumed run departs from the full one."""

from __future__ import annotations

import numpy as np

from determinism.comparison.divergence import Divergence
from determinism.comparison.held_at import HeldAt, held_at_ends
from determinism.comparison.origins import Entry, entry
from determinism.comparison.result import Missing
from determinism.comparison.resumed import ResumedProcess, of_step
from determinism.trace.names import Frame
from determinism.trace.reader import ProcessTrace
from determinism.types import Kind, Role

_GENERATORS = ("rng-torch", "rng-python", "rng-numpy")
"""In the order in which the ends of steps have their states."""
_SCALING = ("aten::_amp_update_scale_", "aten::_amp_foreach_non_finite_check_and_unscale_")
"""What a gradient scaler does."""

_PUT_BACK_TOO_EARLY = (
    "It was saved and put back, but was drawn from before the first step: making an iterator of a DataLoader draws, for instance. Put "
    "it back last, or use loader = determinism.state.resumable(loader) and determinism.state.restore(state, loader=loader)."
)

_FIXES = {
    "model": ("model.state_dict()", "model.load_state_dict(...)", "model=model"),
    "optimizer": ("optimizer.state_dict()", "optimizer.load_state_dict(...)", "optimizer=optimizer"),
    "scheduler": ("scheduler.state_dict()", "scheduler.load_state_dict(...)", "scheduler=scheduler"),
    "scaler": ("scaler.state_dict()", "scaler.load_state_dict(...)", "scaler=scaler"),
    "rng-torch": ("torch.get_rng_state()", "torch.set_rng_state(...)", ""),
    "rng-python": ("random.getstate()", "random.setstate(...)", ""),
    "rng-numpy": ("numpy.random.get_state()", "numpy.random.set_state(...)", ""),
    "rng-generator": ("generator.get_state()", "generator.set_state(...)", "generator=generator"),
    "sampler-position": ("", "", "loader=loader"),
}
"""What is to be saved, what takes it back, and what `determinism.state` is given."""


def unsaved(process: ResumedProcess) -> list[Missing]:
    """What the checkpoint lacks; empty if nothing differs, or if what differs is nothing that is known of.

    Args:
        process: How a process of the resumed run compares.

    Raises:
        TraceError: A trace is damaged.
    """
    if process.result.divergence is None:
        return []
    site = saving_site(process.first)
    search = _Search(process)
    found = search.identifiers()
    return [
        Missing(one, site, _PUT_BACK_TOO_EARLY if one == "rng-torch" and search.was_put_back else fix(one))
        for one in found
    ]


def fix(identifier: str) -> str:
    """What to write so that it is saved."""
    save, load, part = _FIXES[identifier]
    whole = f"determinism.state.capture({part}) and determinism.state.restore(state{', ' if part else ''}{part})"
    if identifier == "sampler-position":
        return f"Save how far the epoch has come: loader = determinism.state.resumable(loader), with {whole}."
    return f"Save {save} and load it with {load}, or use {whole}."


def saving_site(process: ProcessTrace) -> Frame | None:
    """The line that saved last; None if nothing is known to have been saved."""
    found = None
    for chunk in process.chunks():
        rows = np.flatnonzero(chunk.columns["role"] == Role.CHECKPOINT)
        if len(rows):
            found = int(chunk.columns["stack"][rows[-1]])
    stack = () if found is None else process.names.stack(found)
    return stack[0] if stack else None


class _Search:
    """Looks for the parts of a checkpoint, each by evidence of its own."""

    def __init__(self, process: ResumedProcess) -> None:
        self._process = process
        divergence = process.result.divergence
        assert divergence is not None and process.parts is not None
        self._divergence: Divergence = divergence
        self._before = process.steps_before
        last = max(divergence.step, self._before)
        self._full = held_at_ends(process.full, first=self._before - 1, last=last)
        self._resumed = held_at_ends(process.resumed, first=0, last=last - self._before)
        part = process.parts[divergence.records_of]
        self.was_put_back = self._has_drawn_from_saved_state()
        """Whether PyTorch's generator had the saved state in the resumed run."""
        self._record: Entry = entry(part, *part.record(divergence.record))

    def identifiers(self) -> list[str]:
        found = self._not_taken_up()
        generators = self._generators()
        if self._record.role is Role.BATCH:
            return [*found, *self._behind_batch(generators)]
        if self._is_scaling():
            found.append("scaler")
        elif self._divergence.kind is Kind.RNG and not generators:
            found.append("rng-generator")
        elif self._divergence.phase == "optimizer" and "optimizer" not in found:
            found.append("scheduler")
        return [*found, *generators]

    def _not_taken_up(self) -> list[str]:
        """What was held when the first run ended and never was in the resumed run until its first step ended."""
        held = self._full.get(self._before - 1, HeldAt()).digests
        present = _digests(self._process.resumed, upto_step=0)
        absent = {kind for (kind, _), digest in held.items() if digest not in present}
        found = ["model"] if absent & {"parameter", "buffer"} else []
        return [*found, "optimizer"] if "optimizer state" in absent else found

    def _generators(self) -> list[str]:
        """The global generators that were in another state, and were drawn from until the divergence."""
        found = []
        for index, identifier in enumerate(_GENERATORS):
            states = {step: held.generators[index] for step, held in self._full.items() if index < len(held.generators)}
            is_drawn = len(set(states.values())) > 1
            if is_drawn and any(
                step in states and index < len(held.generators) and states[step] != held.generators[index]
                for step, held in ((step + self._before, held) for step, held in self._resumed.items())
            ):
                found.append(identifier)
        return found

    def _has_drawn_from_saved_state(self) -> bool:
        """Whether an op of the resumed run drew from the state that PyTorch's generator had at the end of the first run."""
        saved = self._full.get(self._before - 1, HeldAt()).generators[:1]
        chunk = of_step(self._process.resumed, 0)
        if not saved or chunk is None:
            return False
        generators = chunk.children["generators"]
        before_end = int(generators.starts[chunk.rows - 1])
        return any(state.tobytes() == saved[0] for state in generators.columns["digest"][:before_end])

    def _behind_batch(self, generators: list[str]) -> list[str]:
        """Another batch: one of another place in the run, or one that the full run never had."""
        mine = tuple(output.digest for output in self._record_of_resumed().outputs)
        if self.was_put_back:
            # Another batch came because of what was drawn from it, and that is a matter of the loader.
            generators = [identifier for identifier in generators if identifier != "rng-torch"]
        if not generators or mine in _batches(self._process.full):
            return ["sampler-position"]
        return generators

    def _record_of_resumed(self) -> Entry:
        """The record of the resumed run that pairs with the divergence: the batch at which it departs."""
        process = self._process.resumed
        step = self._divergence.step - self._before
        for chunk in process.chunks():
            rows = np.flatnonzero((chunk.columns["role"] == Role.BATCH) & (chunk.columns["step"] == step))
            if len(rows):
                return entry(process, chunk, int(rows[-1]))
        return self._record

    def _is_scaling(self) -> bool:
        """Whether what departs was made by a gradient scaler, or takes the scale."""
        if self._record.op.partition(".")[0] in _SCALING:
            return True
        if self._divergence.records_of:
            return False
        assert self._process.parts is not None
        number = self._divergence.record + self._process.parts[0].start
        whole = entry(self._process.full, *self._process.full.record(number))
        makers = [self._process.full.record(one.producer) for one in whole.reads if one.producer >= 0]
        return any(entry(self._process.full, *place).op.partition(".")[0] in _SCALING[:1] for place in makers)


def _digests(process: ProcessTrace, *, upto_step: int) -> set[bytes]:
    found: set[bytes] = set()
    for chunk in process.chunks():
        rows = int((chunk.columns["step"] <= upto_step).sum())
        for place in ("outputs", "input_digests"):
            children = chunk.children[place]
            found.update(row.tobytes() for row in children.columns["digest"][: int(children.starts[rows])])
        if rows < chunk.rows:
            break
    return found


def _batches(process: ProcessTrace) -> set[tuple[bytes, ...]]:
    found = set()
    for chunk in process.chunks():
        for row in np.flatnonzero(chunk.columns["role"] == Role.BATCH):
            found.add(tuple(output.digest for output in entry(process, chunk, int(row)).outputs))
    return found
