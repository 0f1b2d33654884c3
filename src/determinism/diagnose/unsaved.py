"""Names what a checkpoint lacks, from how a resumed run departs from the full one."""

from __future__ import annotations

import numpy as np

from determinism.comparison.divergence import Divergence
from determinism.comparison.held_at import HeldAt, held_at_ends
from determinism.comparison.origins import Entry, entry
from determinism.comparison.result import Missing
from determinism.comparison.resumed import ResumedProcess
from determinism.diagnose.resumed_evidence import (
    added_to_gradients,
    batches_of,
    digests,
    first_of,
    gathered,
    made,
    read_by,
    seeds_of_epoch,
)
from determinism.diagnose.unsaved_fixes import DRAWN_OTHERWISE, NOT_TAKEN_UP, PUT_BACK_TOO_EARLY, fix
from determinism.diagnose.unsaved_generators import GeneratorSearch
from determinism.diagnose.unsaved_inputs import Kept, kept_by_program
from determinism.diagnose.unsaved_modes import Mode, mode_apart
from determinism.diagnose.unsaved_order import Taken, taken_by_others
from determinism.trace.names import Frame
from determinism.trace.reader import ProcessTrace
from determinism.types import Kind, Phase, Role

_SCALING = ("aten::_amp_update_scale_", "aten::_amp_foreach_non_finite_check_and_unscale_")
"""What a gradient scaler does."""

_PARTS = {"parameter": "model", "buffer": "model", "optimizer state": "optimizer"}
"""Where each kind of what is held belongs."""
_STEPS_TO_TAKE_UP = 16
"""Some optimizers do not step each time, and some modules are not called in each step."""


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
        Missing(
            one,
            site,
            _fix_of(one, search),
            is_saved=bool(search.absent.get(one)) and search.was_loaded(one),
            is_put_back=one in search.generators.put_back,
        )
        for one in found
    ]


def _fix_of(identifier: str, search: _Search) -> str:
    if identifier in search.generators.put_back:
        return PUT_BACK_TOO_EARLY if identifier == "rng-torch" else DRAWN_OTHERWISE
    if search.mode is not None and identifier == "training-mode":
        return search.mode.fix
    if identifier == "optimizer-order":
        return fix(identifier).format(", ".join(f"{one} that of {other}" for one, other in [*search.taken.items()][:3]))
    if search.kept is not None and identifier == search.kept.identifier == "carried-tensor":
        made = search.kept.made_at
        return f"{'' if made is None else f'The full run made it at {made.file}:{made.line}. '}{fix(identifier)}"
    names = search.absent.get(identifier, [])
    listed = f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
    if names and search.was_loaded(identifier):
        return NOT_TAKEN_UP[identifier].format(listed)
    never = f"Never held again: {listed}. If that was saved, then before the last step, in another precision, or it was not loaded. "
    return f"{never if names else ''}{fix(identifier)}"


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
        self._record: Entry = entry(part, *part.record(divergence.record))
        self.generators = GeneratorSearch(process, self._full, self._resumed, self._record)
        self.mode: Mode | None = None
        """In which mode the model goes on, if it is another one."""
        self.taken: Taken = {}
        """Which parameters took the state or the learning rate of others."""
        self.kept: Kept | None = None
        """What the program keeps itself."""
        self.absent: dict[str, list[str]] = {}
        """What was not taken up, by the part that it belongs to."""
        self._lost: dict[str, set[bytes]] = {}

    def identifiers(self) -> list[str]:
        found = self._not_taken_up()
        generators = self.generators.identifiers()
        lost = [one for one in generators if one not in self.generators.put_back]
        # What Python or NumPy draws may decide which modules are called.
        self.mode = None if found or {"rng-python", "rng-numpy"} & {*lost} else mode_apart(self._process)
        if self.mode is not None:
            # What is drawn besides, or no more, moves the generators.
            return ["training-mode", *lost]
        if self._record.role is Role.BATCH:
            return [*found, *self._behind_batch(generators)]
        if self._is_scaling():
            found.append("scaler")
        elif self._divergence.kind is Kind.RNG and not generators:
            found.append("rng-generator")
        elif not found and (part := self._behind_step(has_generators=bool(generators))) is not None:
            found.append(part)
        elif not found and self.generators.put_back.issuperset(generators):
            self.kept = kept_by_program(self._process, self._record)
            found += [] if self.kept is None else [self.kept.identifier]
        return [*found, *generators]

    def _behind_step(self, *, has_generators: bool) -> str | None:
        """What else a step depends on that goes on from equal parameters and states."""
        phase, kind = self._divergence.phase, self._divergence.kind
        if phase == "optimizer" and self._is_taken_by_others():
            return "optimizer-order"
        if (
            kind in (Kind.DATA, Kind.ARGUMENT)
            and phase == "forward"
            and not has_generators
            and self._takes_other_samples()
        ):
            return "sampler-position"
        if kind is Kind.ARGUMENT and phase in ("optimizer", "forward"):
            return "scheduler" if phase == "optimizer" else None if has_generators else "number"
        is_late = phase in ("backward", "optimizer")
        return "gradients" if is_late and (self._stopped_between_steps() or self._had_gradients()) else None

    def _is_taken_by_others(self) -> bool:
        ends = self._full.get(self._before, HeldAt()), self._resumed.get(0, HeldAt())
        self.taken = taken_by_others(self._process, self._held_at_checkpoint(), *ends)
        return bool(self.taken)

    def _takes_other_samples(self) -> bool:
        """Whether the resumed run takes or reads there what the full run took out of the data at another place, without a data loader."""
        assert self._process.parts is not None
        full, resumed = self._process.parts
        other = first_of(resumed, self._divergence.step, self._record.op, self._record.module)
        if self._divergence.records_of or other is None:
            return False
        sides = [read_by(part, one) | set(made(one)) for part, one in ((full, self._record), (resumed, other))]
        return bool((sides[1] - sides[0]) & gathered(self._process.full))

    def was_loaded(self, identifier: str) -> bool:
        """Whether the resumed run read all of a part from a file, without going on with it."""
        lost = self._lost.get(identifier, set())
        return bool(lost) and lost <= digests(self._process.resumed, upto_step=0, of_loads=True)

    def _not_taken_up(self) -> list[str]:
        """What was held when the first run ended and never was in the resumed run, in its first steps."""
        last = max(self._divergence.step - self._before, 0) + _STEPS_TO_TAKE_UP
        present = digests(self._process.resumed, upto_step=last)
        for (kind, name), digest in self._held_at_checkpoint().items():
            if kind in _PARTS and digest not in present:
                self.absent.setdefault(_PARTS[kind], []).append(name)
                self._lost.setdefault(_PARTS[kind], set()).add(digest)
        return [part for part in ("model", "optimizer") if part in self.absent]

    def _held_at_checkpoint(self) -> dict[tuple[str, str], bytes]:
        """What the full run held when the compared part began.

        After the end of the step an average of the weights may have gone on, and the second optimizer of a GAN made its step.
        """
        held = dict(self._full.get(self._before - 1, HeldAt()).digests)
        assert self._process.parts is not None
        later, start = self._full.get(self._before, HeldAt()), self._process.parts[0].start
        held.update({key: later.digests[key] for key, maker in later.makers.items() if 0 <= maker < start})
        return held

    def _stopped_between_steps(self) -> bool:
        """Whether the first run went backward after its last step, and no optimizer took these gradients."""
        last = Phase.INIT
        for chunk in self._process.first.chunks():
            phases = chunk.columns["phase"]
            phases = phases[np.isin(phases, (Phase.BACKWARD, Phase.OPTIMIZER))]
            last = Phase(int(phases[-1])) if len(phases) else last
        return last is Phase.BACKWARD

    def _had_gradients(self) -> bool:
        """Whether the full run went on with gradients of earlier steps, to which it added, and the resumed run had none."""
        assert self._process.parts is not None
        return added_to_gradients(self._process.full, self._process.parts[0].skipped)

    def _behind_batch(self, generators: list[str]) -> list[str]:
        """Another batch: one of another place in the run, or one that the full run never had."""
        if (behind := self._behind_epoch()) is not None:
            return [*([] if behind else ["rng-generator"]), *generators]
        mine = tuple(output.digest for output in self._record_of_resumed().outputs)
        if self.generators.torch_was_put_back:
            # Another batch came because of what was drawn from it, and that is a matter of the loader.
            generators = [identifier for identifier in generators if identifier != "rng-torch"]
        if not generators or mine in batches_of(self._process.full):
            return ["sampler-position"]
        return generators

    def _behind_epoch(self) -> bool | None:
        """Whether an epoch that begins with the batch was drawn from another state of PyTorch's global generator, or (False) of another one.

        None if no epoch begins there, or if it began from the same states.
        """
        step = self._divergence.step
        drawn = seeds_of_epoch(self._process.full, step)
        if not drawn or drawn & seeds_of_epoch(self._process.resumed, step - self._before):
            return None
        return bool(drawn & set(self._full.get(step - 1, HeldAt()).generators[:1]))

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
