"""Tells which global generators were not put back, from what was drawn and from the states at the ends of steps."""

from __future__ import annotations

import json
from collections.abc import Mapping

from determinism.comparison.first_step import of_step
from determinism.comparison.held_at import HeldAt, states_at_end
from determinism.comparison.origins import Entry
from determinism.comparison.resumed import ResumedProcess
from determinism.diagnose.resumed_evidence import drawn_from
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import PUT_BACK_FILE
from determinism.types import Kind, Role

_GENERATORS = ("rng-torch", "rng-python", "rng-numpy")
"""In the order in which the ends of steps have their states."""


class GeneratorSearch:
    """Looks for the global generators that a resumed run did not go on with."""

    def __init__(
        self, process: ResumedProcess, full: Mapping[int, HeldAt], resumed: Mapping[int, HeldAt], record: Entry
    ) -> None:
        """Take what is known.

        Args:
            process: How a process of the resumed run compares; it must have departed.
            full: What the full run held at the ends of steps, by step.
            resumed: The same of the resumed run, by its own steps.
            record: The first divergence.

        Raises:
            TraceError: A trace is damaged.
        """
        assert process.result.divergence is not None and process.parts is not None
        self._process, self._full, self._resumed, self._record = process, full, resumed, record
        self._divergence, self._parts = process.result.divergence, process.parts
        self._before = process.steps_before
        self.torch_was_put_back = self._has_drawn_from_saved_state()
        """Whether PyTorch's generator had the saved state in the resumed run."""
        self.put_back = self._put_back()
        """The generators that were put into a state in which the first run left them."""

    def identifiers(self) -> list[str]:
        """The generators that were in another state, and were drawn from until the divergence.

        Of one that was put back, another number of draws may follow from any other difference.
        """
        found = []
        for index, identifier in enumerate(_GENERATORS):
            states = {step: held.generators[index] for step, held in self._full.items() if index < len(held.generators)}
            is_drawn = len(set(states.values())) > 1
            if is_drawn and any(
                step in states and index < len(held.generators) and states[step] != held.generators[index]
                for step, held in ((step + self._before, held) for step, held in self._resumed.items())
            ):
                found.append(identifier)
        if "rng-torch" in found and (self._comes_from_batch() or self._first_draws_are_equal()):
            # What was drawn since, or was not, follows from another difference.
            found.remove("rng-torch")
        lost = [identifier for identifier in found if identifier not in self.put_back]
        return lost or found

    def _put_back(self) -> frozenset[str]:
        states = _states_put_into(self._process.resumed)
        left = [self._full.get(self._before - 1, HeldAt()).generators, states_at_end(self._process.first)]
        found = {
            identifier
            for index, identifier in enumerate(_GENERATORS)
            if any(index < len(kept) and kept[index] in states[identifier] for kept in left)
        }
        return frozenset(found | ({"rng-torch"} if self.torch_was_put_back else set()))

    def _comes_from_batch(self) -> bool:
        """Whether equal batches came from a data loader, and no op drew from another state: samplers and workers draw before the batch."""
        if self._record.role is Role.BATCH or self._divergence.kind is Kind.RNG:
            return False
        chunk = of_step(self._process.resumed, self._divergence.step - self._before)
        return chunk is not None and bool((chunk.columns["role"] == Role.BATCH).any())

    def _first_draws_are_equal(self) -> bool:
        """Whether both runs first draw from the same state, so that PyTorch's generator went on as it was."""
        if self._record.role is Role.BATCH or self._divergence.kind is Kind.RNG:
            return False
        last = self._divergence.step
        mine, other = (drawn_from(part, last) for part in self._parts)
        seen = {
            state
            for step, held in self._resumed.items()
            if step + self._before <= last
            for state in held.generators[:1]
        }
        return bool(mine) and mine[0] in {*other, *seen}

    def _has_drawn_from_saved_state(self) -> bool:
        """Whether an op of the resumed run drew from the state that PyTorch's generator had at the end of the first run."""
        saved = self._full.get(self._before - 1, HeldAt()).generators[:1]
        chunk = of_step(self._process.resumed, 0)
        if not saved or chunk is None:
            return False
        generators = chunk.children["generators"]
        before_end = int(generators.starts[chunk.rows - 1])
        return any(state.tobytes() == saved[0] for state in generators.columns["digest"][:before_end])


def _states_put_into(process: ProcessTrace) -> dict[str, set[bytes]]:
    """The digests of the states that the program put each generator into, as far as that was watched."""
    try:
        noted = json.loads((process.folder / PUT_BACK_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        noted = {}
    return {
        identifier: {bytes.fromhex(text) for text in noted.get(identifier.removeprefix("rng-"), ())}
        for identifier in _GENERATORS
    }
