"""Names what a checkpoint lacks from how the resumed run departs from the full one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from determinism.comparison.divergence import Divergence
from determinism.comparison.records import Entry, Input, entry_of
from determinism.comparison.result import Comparison, Missing
from determinism.diagnose.checkpoints import (
    CARRIED_ARRAYS,
    DRAWN_OTHERWISE,
    NOT_TAKEN_UP,
    ONLY_READ,
    PUT_BACK_TOO_EARLY,
    callback_advice,
    fix,
    fix_of_loading,
    is_saved_by,
)
from determinism.errors import first_few
from determinism.op_semantics import Op, OpSemantics
from determinism.resume.observed import (
    HeldAt,
    ResumedProcess,
    added_to_gradients,
    batches_of,
    digests,
    drawn_from,
    first_of,
    gathered,
    held_at_ends,
    made,
    of_step,
    read_by,
    saving_site,
    seeds_of_epoch,
    states_at_end,
)
from determinism.trace.files import read_document
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import LOAD_OP, NONE, PUT_BACK_FILE, Frame, Table
from determinism.types import Kind, Phase, Role

# Finds the global generators that were not restored, from the draws and from the states at the ends of steps.

_GENERATORS = ("rng-torch", "rng-python", "rng-numpy")
"""In the order in which their states are recorded at the ends of steps."""


class GeneratorSearch:
    """Looks for the global generators whose state a resumed run did not continue from."""

    def __init__(
        self, process: ResumedProcess, full: Mapping[int, HeldAt], resumed: Mapping[int, HeldAt], record: Entry
    ) -> None:
        """Take the evidence.

        Args:
            process: How a process of the resumed run compares; it must have departed.
            full: What the full run held at the ends of steps, by step.
            resumed: The same for the resumed run, by its own steps.
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
        """The generators that were put back into a state in which the first run left them."""

    def identifiers(self) -> list[str]:
        """The generators that were in a different state, and were drawn from before the divergence.

        One that was put back is named only if no other is: any other difference may change how often it is drawn from.
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
            # Draws since then, or their absence, follow from another difference.
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
        """Whether a loader gave equal batches, and no op drew from another state: samplers draw before the batch."""
        if self._record.role is Role.BATCH or self._divergence.kind is Kind.RNG:
            return False
        chunk = of_step(self._process.resumed, self._divergence.step - self._before)
        return chunk is not None and bool((chunk.columns["role"] == Role.BATCH).any())

    def _first_draws_are_equal(self) -> bool:
        """Whether both runs first draw from the same state, so that PyTorch's generator continued as it was."""
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
    """The digests of the states that the program was seen to put each generator into."""
    try:
        noted = read_document(process.folder / PUT_BACK_FILE)
    except FileNotFoundError:
        noted = {}
    return {
        identifier: {bytes.fromhex(text) for text in noted.get(identifier.removeprefix("rng-"), ())}
        for identifier in _GENERATORS
    }


# Finds data that the program keeps itself, from the inputs of the first op that departs.


class Kept(NamedTuple):
    """Data that the program keeps itself."""

    identifier: str
    """`carried-tensor`, `rng-key` for a key of JAX, or `own-data` for anything that is not a tensor."""
    made_at: Frame | None
    """For a tensor, the line of the full run that made it last."""


def kept_by_program(process: ResumedProcess, record: Entry) -> Kept | None:
    """The data that the program keeps itself, if the op that departs read any.

    A tensor that was made before the checkpoint, and is nowhere in the resumed run, was carried over from step to step.
    Data from outside the framework was made from something else.

    Raises:
        TraceError: A trace is damaged.
    """
    divergence, parts = process.result.divergence, process.parts
    if divergence is None or parts is None or divergence.records_of or divergence.kind is not Kind.DATA:
        return None
    partner = _partner(parts[1], record, divergence.step, _occurrence(parts[0], record, divergence.step))
    if partner is None:
        return None
    number = divergence.record + parts[0].start
    whole = entry_of(process.full, *process.full.record(number))
    is_outside = False
    for position, (mine, other) in enumerate(zip(record.reads, partner.reads, strict=False)):
        held = _digest(parts[0], mine)
        if held is not None and held == _digest(parts[1], other):
            continue
        source = whole.reads[position].producer
        if 0 <= source < parts[0].start and _is_lost(process, source, whole.reads[position].output):
            identifier = "rng-key" if _is_key(whole, position) else "carried-tensor"
            return Kept(identifier, _line(process.full, source))
        is_outside |= source < 0 and other.producer < 0
    return Kept("own-data", None) if is_outside else None


_KEY_WORDS = (2, 4)
"""How many 32-bit words a JAX key has: two for threefry, else four (https://docs.jax.dev/en/latest/jax.random.html)."""


def _is_key(record: Entry, position: int) -> bool:
    """Whether an input of a compiled program is a random key: it looks like one, and the program's or input's name fits."""
    layout = record.reads[position].layout
    if layout is None or OpSemantics.COMPILED_PROGRAM not in record.op.semantics:
        return False
    looks_like_one = layout.dtype == "uint32" and bool(layout.shape) and layout.shape[-1] in _KEY_WORDS
    at = record.inputs.index(record.reads[position])
    path = record.input_paths[at] if at < len(record.input_paths) else ""
    named = f"{record.op} {path}".lower()
    return looks_like_one and any(word in named for word in ("threefry", "random", "rng", "rbg", "key", "seed"))


def _is_lost(process: ResumedProcess, number: int, output: int) -> bool:
    """Whether an output of the full run never was in the resumed run, or is a single number, which may be there by chance.

    The count of a generator's draws may equal the step of an optimizer.
    """
    made = entry_of(process.full, *process.full.record(number)).outputs
    if output >= len(made):
        return False
    layout = made[output].layout
    is_one_number = layout is not None and math.prod(layout.shape) == 1
    return is_one_number or made[output].digest not in digests(process.resumed, upto_step=0)


def _digest(process: ProcessTrace, one: Input) -> bytes | None:
    if one.producer < 0:
        return one.digest
    made = entry_of(process, *process.record(one.producer)).outputs
    return made[one.output].digest if one.output < len(made) else None


def _occurrence(process: ProcessTrace, record: Entry, step: int) -> int:
    """How many records like this one precede it in its step."""
    return sum(one.number < record.number for one in _alike(process, record, step))


def _partner(process: ProcessTrace, record: Entry, step: int, occurrence: int) -> Entry | None:
    alike = _alike(process, record, step)
    return alike[occurrence] if occurrence < len(alike) else None


def _alike(process: ProcessTrace, record: Entry, step: int) -> list[Entry]:
    """The records of a step with the op and the module of a record."""
    chunk = of_step(process, step)
    found = () if chunk is None else (entry_of(process, chunk, row) for row in range(chunk.rows))
    return [one for one in found if (one.op, one.module, one.phase) == (record.op, record.module, record.phase)]


def _line(process: ProcessTrace, number: int) -> Frame | None:
    chunk, row = process.record(number)
    stack = process.names.stack(int(chunk.columns["stack"][row]))
    return stack[0] if stack else None


# Detects that a model continues in a different mode: evaluation instead of training, or the reverse.


class Mode(NamedTuple):
    """How the modes of a model differ between two runs."""

    is_evaluating: bool
    """Whether it is the resumed run that continues in evaluation mode."""
    modules: tuple[str, ...]
    """Paths of the modules that show it, in order."""
    site: Frame | None
    """The line that calls the first of them."""

    @property
    def fix(self) -> str:
        """What to do about it."""
        names = first_few([repr(name) if name else "the model itself" for name in self.modules], 3)
        where = "" if self.site is None else f", called at {self.site.file}:{self.site.line}"
        does = "draws random numbers or uses batch statistics"
        if self.is_evaluating:
            return (
                f"The full run {does} in {names}{where}, and the resumed run does not: it seems to continue in "
                "evaluation mode. Call model.train() after loading: checkpoints do not store the mode."
            )
        return (
            f"The resumed run {does} in {names}{where}, and the full run does not: there it seems to be in "
            "evaluation mode. Call eval() on it after loading, too: checkpoints do not store the mode."
        )


def mode_difference(process: ResumedProcess) -> Mode | None:
    """How the modes differ in the step of the first divergence; None if they do not, or do not explain it.

    In training a dropout module draws random numbers, and a batch normalization has `training=True` among its arguments.

    Raises:
        TraceError: A trace is damaged.
    """
    divergence, parts = process.result.divergence, process.parts
    if divergence is None or parts is None or divergence.phase != Phase.FORWARD.label or not _may_follow(divergence):
        return None
    sides = [_training(part, divergence.step) for part in parts]
    for is_evaluating, mine, other in ((True, sides[0], sides[1]), (False, sides[1], sides[0])):
        alone = tuple(module for module in mine if module not in other)
        # Layers that are skipped at random are skipped in both runs.
        if alone and other.keys() <= mine.keys() and (divergence.kind is not Kind.RNG or divergence.module in alone):
            return Mode(is_evaluating, alone, mine[alone[0]])
    return None


def _may_follow(divergence: Divergence) -> bool:
    return divergence.kind in (Kind.STRUCTURE, Kind.ARGUMENT, Kind.DATA, Kind.RNG, Kind.ORDER)


def _training(process: ProcessTrace, step: int) -> dict[str, Frame | None]:
    """The modules that in a step do what happens only in training, with the lines that call them."""
    chunk = of_step(process, step)
    found: dict[str, Frame | None] = {}
    if chunk is None:
        return found
    draws = chunk.children["generators"]
    for row in range(chunk.rows):
        if chunk.columns["phase"][row] != Phase.FORWARD or chunk.columns["role"][row] != Role.OP:
            continue
        if chunk.columns["module"][row] < 0:
            continue
        one = entry_of(process, chunk, row)
        if draws.of(row) or ("batch_norm" in one.op and "training=True" in one.arguments):
            stack = process.names.stack(int(chunk.columns["stack"][row]))
            found.setdefault(one.module or "", stack[0] if stack else None)
    return found


# Detects that an optimizer's state or learning rates were loaded into parameters other than those they were saved for.

_MOST_WRITES = 16
"""The most ops that write into one tensor of state in a step."""

Taken = dict[str, str]
"""By the name of a parameter, the one whose state or learning rate it took."""


def taken_by_others(
    process: ResumedProcess, held: Mapping[tuple[str, str], bytes], full: HeldAt, resumed: HeldAt
) -> Taken:
    """Return which parameters took what belongs to others; empty if none did.

    Args:
        process: How a process of the resumed run compares.
        held: What the full run held at the checkpoint, by kind and name.
        full: What it held at the end of the first step after it.
        resumed: What the resumed run held at the end of its first step.

    Raises:
        TraceError: A trace is damaged.
    """
    return _by_states(process.resumed, held, resumed) or _by_arguments((process.full, process.resumed), (full, resumed))


def _by_states(process: ProcessTrace, held: Mapping[tuple[str, str], bytes], resumed: HeldAt) -> Taken:
    """Find them by the states before the optimizer wrote into them."""
    owners: dict[tuple[str, bytes], set[str]] = {}
    for (kind, name), digest in held.items():
        sort, _, parameter = name.partition(" of ")
        if kind == "optimizer state":
            owners.setdefault((sort, digest), set()).add(parameter)
    taken = {}
    for (kind, name), maker in resumed.makers.items():
        sort, _, parameter = name.partition(" of ")
        if kind != "optimizer state" or (before := _before_writes(process, maker)) is None:
            continue
        others = owners.get((sort, before), {parameter})
        if parameter not in others:
            taken[parameter] = min(others)
    return taken


def _before_writes(process: ProcessTrace, number: int) -> bytes | None:
    """What a tensor held before a step wrote into it; None if unknown."""
    for _ in range(_MOST_WRITES):
        if number < 0:
            return None
        one = entry_of(process, *process.record(number))
        if not one.inputs or one.takes_each_by_itself:
            return None
        if one.inputs[0].producer < 0 or not _is_in_place(one.op):
            return one.inputs[0].digest
        before = entry_of(process, *process.record(one.inputs[0].producer))
        if not _is_in_place(before.op) or OpSemantics.COPIES_INTO in before.op.semantics:
            made = before.outputs[one.inputs[0].output : one.inputs[0].output + 1]
            return made[0].digest if made else None
        number = before.number
    return None


def _is_in_place(op: Op) -> bool:
    return OpSemantics.IN_PLACE in op.semantics


def _by_arguments(processes: tuple[ProcessTrace, ProcessTrace], ends: tuple[HeldAt, HeldAt]) -> Taken:
    """Find them by the numbers of the last write to each parameter: the same overall, but assigned differently."""
    given: list[dict[str, str]] = []
    for process, end in zip(processes, ends, strict=True):
        makers = {name: maker for (kind, name), maker in end.makers.items() if kind == "parameter" and maker >= 0}
        given.append({name: entry_of(process, *process.record(maker)).arguments for name, maker in makers.items()})
    mine, other = given
    if Counter(mine.values()) != Counter(other.values()) or mine.keys() != other.keys():
        return {}
    owner = {arguments: name for name, arguments in reversed(mine.items())}
    return {name: owner[arguments] for name, arguments in other.items() if mine[name] != arguments}


_PARTS = {"parameter": "model", "buffer": "model", "optimizer state": "optimizer"}
"""The part of a checkpoint to which each kind of held tensor belongs."""
_STEPS_TO_TAKE_UP = 16
"""Some optimizers do not step each time, and some modules are not called in each step."""


def unsaved(process: ResumedProcess, *, is_only_read: bool = False) -> list[Missing]:
    """What the checkpoint lacks; empty if nothing differs, or if no known part explains the difference.

    Args:
        process: How a process of the resumed run compares.
        is_only_read: Whether nothing differs but numbers that the program reads, as `only_reads_differ` says.

    Raises:
        TraceError: A trace is damaged.
    """
    if process.result.divergence is None:
        return []
    site = saving_site(process.first, process.resumed)
    search = _Search(process)
    search.is_only_read = is_only_read
    found = search.identifiers()
    return [_missing(one, site, search) for one in found]


def _missing(identifier: str, site: Frame | None, search: _Search) -> Missing:
    found = _missing_part(identifier, site, search)
    files = dict.fromkeys(frame.file for frame in search.frames)
    return replace(found, fix=f"{found.fix}{callback_advice(identifier, files)}")


def _missing_part(identifier: str, site: Frame | None, search: _Search) -> Missing:
    is_put_back = identifier in search.generators.put_back
    if not is_put_back and site is not None and is_saved_by(identifier, site.file, site.line):
        # For a part that has a state_dict, its own advice covers what else may be wrong.
        is_generator = identifier in _GENERATORS
        return Missing(
            identifier, site, fix_of_loading(identifier) if is_generator else _fix_of(identifier, search), is_saved=True
        )
    is_saved = bool(search.absent.get(identifier)) and search.was_loaded(identifier)
    return Missing(identifier, site, _fix_of(identifier, search), is_saved=is_saved, is_put_back=is_put_back)


def _fix_of(identifier: str, search: _Search) -> str:
    if identifier in search.generators.put_back:
        return PUT_BACK_TOO_EARLY if identifier == "rng-torch" else DRAWN_OTHERWISE
    if search.mode is not None and identifier == "training-mode":
        return search.mode.fix
    if identifier == "optimizer-order":
        return fix(identifier).format(", ".join(f"{one} that of {other}" for one, other in [*search.taken.items()][:3]))
    if identifier in ("carried-tensor", "rng-key") and search.kept is not None:
        made = search.kept.made_at
        is_compiled = OpSemantics.COMPILED_PROGRAM in search.record.op.semantics
        advice = CARRIED_ARRAYS if is_compiled and identifier == "carried-tensor" else fix(identifier)
        if search.is_only_read and identifier == "carried-tensor":
            advice = ONLY_READ
        return f"{'' if made is None else f'The full run made it at {made.file}:{made.line}. '}{advice}"
    names = search.absent.get(identifier, [])
    listed = first_few(names, 3)
    if names and search.was_loaded(identifier):
        return NOT_TAKEN_UP[identifier].format(listed)
    never = (
        f" The resumed run never had this value: {listed}. Either it was not loaded, or it was saved before the "
        "last step or in a different precision."
    )
    # What to do comes first: a terminal shows only the first lines of a long entry.
    return f"{fix(identifier)}{never if names else ''}"


class _Search:
    """Looks for the parts that a checkpoint lacks, each by its own evidence."""

    def __init__(self, process: ResumedProcess) -> None:
        self._process = process
        divergence = process.result.divergence
        assert divergence is not None and process.parts is not None
        self._divergence: Divergence = divergence
        self.kind, self.phase = divergence.kind, divergence.phase
        self._before = process.steps_before
        last = max(divergence.step, self._before)
        self._full = held_at_ends(process.full, first=self._before - 1, last=last)
        self._resumed = held_at_ends(process.resumed, first=0, last=last - self._before)
        part = process.parts[divergence.records_of]
        self.record: Entry = entry_of(part, *part.record(divergence.record))
        self.generators = GeneratorSearch(process, self._full, self._resumed, self.record)
        self.mode: Mode | None = None
        """How the model's mode differs, if it does."""
        self.frames = process.first.names.frames
        """The frames of the program in the run that saved."""
        self.is_only_read = False
        """Whether nothing differs but numbers that the program reads."""
        self.absent: dict[str, list[str]] = {}
        """The names of what was not taken up, by the part to which they belong."""
        self._lost: dict[str, set[bytes]] = {}

    def identifiers(self) -> list[str]:
        found = self._not_taken_up()
        lost = [one for one in self.apart if one not in self.generators.put_back]
        # Draws from Python or NumPy may decide which modules are called.
        self.mode = None if found or {"rng-python", "rng-numpy"} & {*lost} else mode_difference(self._process)
        if self.mode is not None:
            # Additional or missing draws move the generators.
            return ["training-mode", *lost]
        if self.record.role is Role.BATCH:
            return [*found, *self._behind_batch(self.apart)]
        rules = (rule for rule in RULES if not found or rule.beside_model)
        found += [rule.identifier for rule in rules if rule.holds(self)][:1]
        return [*found, *self.apart]

    @property
    def is_forward(self) -> bool:
        """Whether the divergence is in a forward; a compiled program of JAX is forward, backward and optimizer in one."""
        return self.phase == Phase.FORWARD.label or OpSemantics.COMPILED_PROGRAM in self.record.op.semantics

    @cached_property
    def apart(self) -> list[str]:
        """The global generators that were in a different state."""
        return self.generators.identifiers()

    @cached_property
    def taken(self) -> Taken:
        """Which parameters took the state or the learning rate of others."""
        ends = self._full.get(self._before, HeldAt()), self._resumed.get(0, HeldAt())
        return taken_by_others(self._process, self._held_at_checkpoint(), *ends)

    @cached_property
    def kept(self) -> Kept | None:
        """Data that the program keeps itself; also None if a generator that was not put back explains the difference."""
        is_explained = not self.generators.put_back.issuperset(self.apart)
        return None if is_explained else kept_by_program(self._process, self.record)

    def keeps(self, identifier: str) -> bool:
        """Whether the data that the program keeps itself is of this kind."""
        return self.kept is not None and self.kept.identifier == identifier

    def takes_other_samples(self) -> bool:
        """Whether, without a data loader, the resumed run takes or reads samples that the full run takes elsewhere."""
        assert self._process.parts is not None
        full, resumed = self._process.parts
        other = first_of(resumed, self._divergence.step, self.record.op, self.record.module)
        if self._divergence.records_of or other is None:
            return False
        sides = [read_by(part, one) | set(made(one)) for part, one in ((full, self.record), (resumed, other))]
        return bool((sides[1] - sides[0]) & gathered(self._process.full))

    def was_loaded(self, identifier: str) -> bool:
        """Whether the resumed run read all lost values of a part from a file, but did not use them."""
        lost = self._lost.get(identifier, set())
        return bool(lost) and lost <= digests(self._process.resumed, upto_step=0, of_loads=True)

    def _not_taken_up(self) -> list[str]:
        """The parts of which values held at the end of the first run never appear in the resumed run's first steps."""
        if OpSemantics.COMPILED_PROGRAM in self.record.op.semantics:
            # The held values are the program's arguments: one that differs is named as data that the program carries.
            return []
        last = max(self._divergence.step - self._before, 0) + _STEPS_TO_TAKE_UP
        present = digests(self._process.resumed, upto_step=last)
        for (kind, name), digest in self._held_at_checkpoint().items():
            if kind in _PARTS and digest not in present:
                self.absent.setdefault(_PARTS[kind], []).append(name)
                self._lost.setdefault(_PARTS[kind], set()).add(digest)
        return [part for part in ("model", "optimizer") if part in self.absent]

    def _held_at_checkpoint(self) -> dict[tuple[str, str], bytes]:
        """What the full run held when the compared part began.

        After the end of the step an average of the weights may have been updated, and a GAN's second optimizer have stepped.
        """
        held = dict(self._full.get(self._before - 1, HeldAt()).digests)
        assert self._process.parts is not None
        later, start = self._full.get(self._before, HeldAt()), self._process.parts[0].start
        held.update({key: later.digests[key] for key, maker in later.makers.items() if 0 <= maker < start})
        return held

    def stopped_between_steps(self) -> bool:
        """Whether the first run's last phase was a backward, whose gradients no optimizer used."""
        last = Phase.INIT
        for chunk in self._process.first.chunks():
            phases = chunk.columns["phase"]
            phases = phases[np.isin(phases, (Phase.BACKWARD, Phase.OPTIMIZER))]
            last = Phase(int(phases[-1])) if len(phases) else last
        return last is Phase.BACKWARD

    def had_gradients(self) -> bool:
        """Whether the full run added to gradients of earlier steps, which the resumed run did not have."""
        assert self._process.parts is not None
        return added_to_gradients(self._process.full, self._process.parts[0].skipped)

    def _behind_batch(self, generators: list[str]) -> list[str]:
        """What explains a different batch: it is from another position in the full run, or the full run never had it."""
        if (behind := self._behind_epoch()) is not None:
            return [*([] if behind else ["rng-generator"]), *generators]
        mine = tuple(output.digest for output in self._record_of_resumed().outputs)
        if self.generators.torch_was_put_back:
            # The loader drew from it to choose the batch, so the loader explains the difference.
            generators = [identifier for identifier in generators if identifier != "rng-torch"]
        if not generators or mine in batches_of(self._process.full):
            return ["sampler-position"]
        return generators

    def _behind_epoch(self) -> bool | None:
        """Whether an epoch that begins with the batch drew from a different state of PyTorch's global generator.

        False if it drew from another generator; None if no epoch begins there, or if it began from the same states.
        """
        step = self._divergence.step
        drawn = seeds_of_epoch(self._process.full, step)
        if not drawn or drawn & seeds_of_epoch(self._process.resumed, step - self._before):
            return None
        return bool(drawn & set(self._full.get(step - 1, HeldAt()).generators[:1]))

    def _record_of_resumed(self) -> Entry:
        """The resumed run's counterpart of the divergence: the batch at which it departs."""
        process = self._process.resumed
        step = self._divergence.step - self._before
        for chunk in process.chunks():
            rows = np.flatnonzero((chunk.columns["role"] == Role.BATCH) & (chunk.columns["step"] == step))
            if len(rows):
                return entry_of(process, chunk, int(rows[-1]))
        return self.record

    def is_scaling(self) -> bool:
        """Whether the divergence is an op of a gradient scaler, or takes the scale."""
        if OpSemantics.SCALES_GRADIENTS in self.record.op.semantics:
            return True
        if self._divergence.records_of:
            return False
        assert self._process.parts is not None
        number = self._divergence.record + self._process.parts[0].start
        whole = entry_of(self._process.full, *self._process.full.record(number))
        makers = [self._process.full.record(one.producer) for one in whole.reads if one.producer >= 0]
        ops = (entry_of(self._process.full, *place).op for place in makers)
        return any(OpSemantics.UPDATES_SCALE in op.semantics for op in ops)


# Recognizes that the training continues as it was, and only numbers differ that the program reads, such as a running loss.

_READ = ("value read by", "printed tensor")
"""How reports name what a program only looked at."""


def only_reads_differ(comparison: Comparison, processes: Sequence[ResumedProcess]) -> bool:
    """Whether it is certain that the resumed run trained and saved the same, and differs only in numbers that it reads.

    Reports name the first value that was read. A tensor that is kept without being a parameter, such as an average of the weights,
    may hide behind it, so every tensor of more than one element must also be one that the full run had.

    Args:
        comparison: How the runs compare.
        processes: How each process of the resumed run compares.

    Raises:
        TraceError: A trace is damaged.
    """
    recorded, first = comparison.recorded, comparison.first_divergence
    return (
        first is not None
        # What runs hold that took different paths, or where no optimizer steps, is not compared.
        and first.kind is not Kind.STRUCTURE
        and recorded.steps_by not in (None, "batches")
        and recorded.frameworks == {"torch"}
        and not recorded.blind_spots
        and not any(run.stopped_by for run in comparison.runs)
        and all(_reads_alone_differ(process) for process in processes)
    )


def _reads_alone_differ(process: ResumedProcess) -> bool:
    if process.parts is None or process.result.divergence is None:
        return process.parts is not None
    if not process.result.infected or not all(one.what.startswith(_READ) for one in process.result.infected):
        return False
    full, resumed = (_larger_tensors(part) for part in process.parts)
    return resumed <= full


def _larger_tensors(process: ProcessTrace) -> set[bytes]:
    """The digests of the tensors of more than one element that records made or read, other than from files."""
    ops = process.names.texts(Table.OP)
    load = ops.index(LOAD_OP) if LOAD_OP in ops else NONE
    layouts = [process.names.layout(number) for number in range(len(process.names.texts(Table.LAYOUT)))]
    is_larger = np.array([layout is not None and math.prod(layout.shape) > 1 for layout in layouts], dtype=bool)
    found: set[bytes] = set()
    for chunk in process.chunks():
        made, inputs, read = (chunk.children[place] for place in ("outputs", "inputs", "input_digests"))
        places = inputs.starts[read.owners] + read.columns["position"]
        computes = chunk.columns["op"] != load
        for held, numbers in ((made, made.columns["layout"]), (read, inputs.columns["layout"][places])):
            wanted = held.spread(computes) & (numbers != NONE)
            wanted[wanted] = is_larger[numbers[wanted]]
            found.update(row.tobytes() for row in held.columns["digest"][wanted])
    return found


# What can be named as missing when a step begins with equal batches, and the evidence for each.


class Rule(NamedTuple):
    """One part of a checkpoint, and the evidence that it is missing."""

    identifier: str
    holds: Callable[[_Search], bool]
    reason: str
    beside_model: bool = False
    """Whether to look for it even if the model or the optimizer was not taken up, which may explain everything else."""


RULES = (
    Rule(
        "scaler",
        lambda search: search.is_scaling(),
        "the op that departs belongs to a gradient scaler, or takes its scale",
        beside_model=True,
    ),
    Rule(
        "rng-generator",
        lambda search: search.kind is Kind.RNG and not search.apart,
        "numbers were drawn from a different state, and every global generator continued as it was",
        beside_model=True,
    ),
    Rule(
        "optimizer-order",
        lambda search: search.phase == "optimizer" and bool(search.taken),
        "a parameter has the state or the learning rate that another one had",
    ),
    Rule(
        "sampler-position",
        lambda search: (
            search.is_forward
            and search.kind in (Kind.DATA, Kind.ARGUMENT)
            and not search.apart
            and search.takes_other_samples()
        ),
        "samples were taken that the full run takes elsewhere",
    ),
    Rule(
        "scheduler",
        lambda search: search.phase == "optimizer" and search.kind is Kind.ARGUMENT,
        "an optimizer got a different number, such as a learning rate",
    ),
    Rule(
        "number",
        lambda search: search.is_forward and search.kind is Kind.ARGUMENT and not search.apart,
        "an op got a different number, and no generator explains it",
    ),
    Rule(
        "gradients",
        lambda search: (
            search.phase in ("backward", "optimizer") and (search.stopped_between_steps() or search.had_gradients())
        ),
        "the full run added to gradients from before the checkpoint",
    ),
    Rule(
        "carried-tensor",
        lambda search: search.keeps("carried-tensor"),
        "the op read a tensor from before the checkpoint that the resumed run never had",
    ),
    Rule("rng-key", lambda search: search.keeps("rng-key"), "such a tensor is a random key"),
    Rule(
        "own-data",
        lambda search: search.keeps("own-data"),
        "the op read data that came from outside the framework in both runs",
    ),
)
"""Checked in this order; the first that holds is named."""
