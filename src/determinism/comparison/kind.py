"""Determines the kind of a divergence and what exactly differs, from the two records at the root, and whether threads or processes raced."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from itertools import zip_longest
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from determinism.comparison.columns import Group, held_by_position
from determinism.comparison.divergence import DeadDifference, Divergence, InputDifference, OutputDifference
from determinism.comparison.records import DigestSearch, Entry, Received, Root, entry_of, heads_of, only_moves
from determinism.op_semantics import OpSemantics
from determinism.trace.chunks import Chunk
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import MOST_OVERLAPS, Frame, Layout, Table
from determinism.trace.views import JoinedStreams
from determinism.types import Kind, Level, Phase, Role

_MAX_TEXT = 160
_PROGRAM = "program="
"""Prefix of the arguments of a compiled JAX function: the digest of what XLA compiled follows."""


def kind_of(root: Root, level: Level) -> Kind | None:
    """Return the first kind whose rule holds, in the order of `Kind`; None where the recording level does not show it."""
    if root.is_extra:
        return Kind.STRUCTURE
    first, second = root.first, root.second
    assert first is not None and second is not None
    if root.aspects.generators:
        return Kind.RNG
    if level is not Level.OP and first.role is not Role.BATCH:
        return None
    if _external_differs(first, second):
        return Kind.ORDER if _is_read_elsewhere(root) else Kind.DATA
    if root.received_at is not None and _is_read_elsewhere(root):
        return Kind.ORDER
    if root.came_in or (first.role is Role.BATCH and not root.aspects.edges and not first.inputs):
        return Kind.DATA
    if root.aspects.arguments:
        return Kind.ARGUMENT
    if root.aspects.edges:
        return _kind_of_other_inputs(root)
    if root.reads_unwritten:
        return Kind.UNINITIALIZED
    if root.aspects.digests:
        return Kind.MUTATION
    if first.role is Role.BATCH:
        return Kind.DATA
    # An op that reads nothing cannot choose the size of its output: that was chosen when the memory was allocated.
    return Kind.ARGUMENT if not first.reads and not second.reads and _output_layouts(root) else Kind.OP


def inputs_equal(root: Root, kind: Kind | None) -> bool | None:
    """Whether the inputs were equal, judging by the two runs alone; None where only repeating the op can show it."""
    if kind in (None, Kind.OP, Kind.STRUCTURE):
        first, second = root.first, root.second
        if first is not None and second is not None and first.role is Role.MODULE and not root.aspects.digests:
            return True
        return None
    if kind not in (Kind.RNG, Kind.ARGUMENT) or root.aspects.edges or root.aspects.digests:
        return False
    # Edges say what produced an input, not that it was still unchanged; only an op without inputs needs no more proof.
    first, second = root.first, root.second
    has_none = first is not None and second is not None and not first.reads and not second.reads
    if _output_layouts(root):
        return None if has_none else False
    return True if has_none else None


def differing_inputs(root: Root, kind: Kind | None) -> tuple[InputDifference, ...]:
    """Return the inputs whose digests differ; none if the op itself is at fault."""
    one, other = (root.first, root.second) if root.first is not None else (root.second, root.first)
    if one is None or other is None or kind in (Kind.OP, Kind.UNINITIALIZED, None):
        return ()
    found = []
    for position, (mine, theirs) in enumerate(zip(one.inputs, other.inputs, strict=False)):
        layout = mine.layout
        if layout is None or mine.digest is None or theirs.digest is None or mine.digest == theirs.digest:
            continue
        views = [_view(view) for view in (layout, theirs.layout) if view is not None]
        found.append(
            InputDifference(
                position=position,
                path=(one.input_paths[position] or None) if position < len(one.input_paths) else None,
                dtype=layout.dtype,
                shape=layout.shape,
                device=layout.device,
                elements=layout.elements,
                other=views[-1] if views[0] != views[-1] else None,
            )
        )
    return tuple(found)


def _view(layout: Layout) -> str:
    return f"{layout.dtype} {list(layout.shape)} on {layout.device}"


def detail_of(root: Root, kind: Kind | None) -> str:
    """Describe exactly what differs, with both values."""
    first, second = root.first, root.second
    if first is None or second is None:
        has, lacks = ("run 1", "run 2") if second is None else ("run 2", "run 1")
        return f"{has} has a record here that {lacks} does not have."
    if kind is Kind.RNG:
        text = "The generator's state already differed before the op drew from it."
        if first.arguments != second.arguments:
            text += f" Its arguments differ, too. Run 1: {_cut(first.arguments)}. Run 2: {_cut(second.arguments)}."
        return text
    if kind is Kind.ARGUMENT:
        layouts = _output_layouts(root)
        if first.arguments == second.arguments and not root.aspects.edges and layouts:
            mine, other = map(_view, layouts)
            return f"The tensor that the op writes to has a different size, dtype or device. Run 1: {mine}. Run 2: {other}."
        if first.arguments == second.arguments:
            return f"The op read a different part of the same tensor: {_parts(first, second)}."
        if first.arguments.startswith(_PROGRAM) and second.arguments.startswith(_PROGRAM):
            return "XLA compiled the function to a different program in each run: a constant in it differs, or the choice of kernels."
        return f"Arguments of run 1: {_cut(first.arguments)}. Arguments of run 2: {_cut(second.arguments)}."
    if kind is Kind.DATA and root.came_in:
        return "The value received from another process differs."
    if kind is Kind.DATA:
        text = "The values that entered from outside the framework differ."
        # The arguments of a batch list the pipeline stages that it passed through.
        return (
            f"{text} They entered through {first.arguments}." if first.role is Role.BATCH and first.arguments else text
        )
    if kind is Kind.ORDER and (root.received_at is not None or root.received_behind is not None):
        return "It was received from whichever process sent first: both runs received the same tensors, in a different order."
    if kind is Kind.ORDER:
        return (
            "The op received the same tensors in a different order. The program iterated over something without a "
            "fixed order, such as a set, a queue or a directory listing."
        )
    if kind is Kind.STRUCTURE:
        return "The op read a different tensor in run 2 than in run 1."
    if kind is Kind.UNINITIALIZED:
        return "The op read memory that no op had written."
    if kind is Kind.MUTATION:
        return (
            "An input no longer held what its producer had written, although the producer's output was equal in "
            "both runs."
        )
    if kind is Kind.OP:
        return "Arguments and the producers of all inputs are equal; the outputs differ."
    return ""


def _output_layouts(root: Root) -> tuple[Layout, Layout] | None:
    """Return both runs' layouts of the first output whose shape, dtype or device differs; None if there is none."""
    if root.first is None or root.second is None:
        return None
    for mine, other in zip(root.first.outputs, root.second.outputs, strict=False):
        first, second = mine.layout, other.layout
        if first is None or second is None:
            continue
        if (first.shape, first.dtype, first.device) != (second.shape, second.dtype, second.device):
            return first, second
    return None


def _parts(first: Entry, second: Entry) -> str:
    """Describe the views that differ, as indices into the memory."""
    for mine, other in zip(first.inputs, second.inputs, strict=False):
        if mine.layout != other.layout and mine.layout is not None and other.layout is not None:
            texts = [
                f"run {run} shape {list(view.shape)} from element {view.offset} on"
                for run, view in ((1, mine.layout), (2, other.layout))
            ]
            return ", ".join(texts)
    return "its view differs"


_MANY_TENSORS = re.compile(r"\btensor(?:, tensor){2,}")


def _cut(text: str) -> str:
    text = _MANY_TENSORS.sub(lambda found: f"{found[0].count('tensor')} tensors", text)
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " …"


def _external_differs(first: Entry, second: Entry) -> bool:
    """Whether an input differs that has no recorded producer (or that was handed out before it was filled)."""
    for mine, other in zip(first.inputs, second.inputs, strict=False):
        if mine.digest != other.digest and (mine.producer < 0 or other.producer < 0):
            return True
    return False


def _is_read_elsewhere(root: Root) -> bool:
    """Whether each external value that only one run reads here is read by the same op elsewhere in the other run."""
    group, row = root.group, root.position
    sides = ((group.first, int(group.pairing.first[row])), (group.second, int(group.pairing.second[row])))
    here = [set(chunk.children["input_digests"].digests_of(at)) for chunk, at in sides]
    return all(_are_read(*sides[1 - side], here[side] - here[1 - side]) for side in (0, 1))


def _are_read(chunk: Chunk, at: int, wanted: Set[bytes]) -> bool:
    """Whether records of the same op as the one at a position read all of these digests from outside."""
    entries = chunk.children["input_digests"]
    digests = entries.columns["digest"]
    # Turning all of the op's digests into Python objects would take long, since each root of a thread asks.
    alike = np.flatnonzero(np.isin(digests[:, 0], heads_of(wanted)))
    alike = alike[chunk.columns["op"][entries.owners[alike]] == chunk.columns["op"][at]]
    return wanted <= {row.tobytes() for row in digests[alike]}


def _kind_of_other_inputs(root: Root) -> Kind:
    """Return the kind when the op read different inputs: another order, another part of the same tensor, or other tensors."""
    group, row = root.group, root.position
    rows = (int(group.pairing.first[row]), int(group.pairing.second[row]))
    chunks = (group.first, group.second)
    here = [
        group.reads(side)[chunk.children["inputs"].part(at)]
        for side, (chunk, at) in enumerate(zip(chunks, rows, strict=True))
    ]
    # What only one run reads here must be read by a record of the same op, or of the same line, elsewhere in the other run:
    # the first iteration of a sum often uses a different op from the later ones.
    missing = [[read for read in here[side] if read not in here[1 - side]] for side in (0, 1)]
    elsewhere = [_reads_like(group, side, rows[side]) for side in (0, 1)]
    found = [all(read in elsewhere[1 - side] for read in missing[side]) for side in (0, 1)]
    # Where records have no order, the rest of a sum that was added up differently is in one run only.
    if all(found) or (group.is_unordered and any(missing[side] and found[side] for side in (0, 1))):
        return Kind.ORDER
    has_same_producers = [producer for producer, _ in here[0]] == [producer for producer, _ in here[1]]
    return Kind.ARGUMENT if has_same_producers else Kind.STRUCTURE


def _reads_like(group: Group, side: int, row: int) -> set[tuple[int, int]]:
    """Return what is read by the records with the same op as a given record, or from the same place in the program."""
    chunk = (group.first, group.second)[side]
    columns = chunk.columns
    alike = columns["op"] == columns["op"][row]
    # All ops of a backward pass or an optimizer step carry the line that started it.
    if columns["stack"][row] >= 0 and columns["phase"][row] not in (Phase.BACKWARD, Phase.OPTIMIZER):
        alike = alike | np.logical_and.reduce(
            [columns[name] == columns[name][row] for name in ("stack", "module", "phase")]
        )
    chosen = chunk.children["inputs"].spread(alike).tolist()
    return {read for read, is_chosen in zip(group.reads(side), chosen, strict=True) if is_chosen}


_RACE = (
    "Two threads use the same tensor, and at least one writes to it. Which comes first differs "
    "from run to run, and an update can be lost."
)


def as_race(divergence: Divergence) -> Divergence:
    """Return the same divergence, attributed to racing threads."""
    return replace(divergence, kind=Kind.MUTATION, inputs_equal=False, detail=_RACE)


def describe(root: Root, first: ProcessTrace, second: ProcessTrace, level: Level) -> Divergence:
    """Describe a root as a divergence, with its place in the program."""
    side = 0 if root.first is not None else 1
    one = root.first if side == 0 else root.second
    assert one is not None
    process = (first, second)[side]
    chunk = (root.group.first, root.group.second)[side]
    row = int((root.group.pairing.first, root.group.pairing.second)[side][root.position])
    kind = kind_of(root, level)
    stack = process.names.stack(int(chunk.columns["stack"][row]))
    forward = process.names.stack(int(chunk.columns["forward_stack"][row]))
    received = root.received_behind if root.received_at is None and kind is Kind.ORDER else root.received_at
    return Divergence(
        kind=kind,
        process=first.key,
        record=one.number,
        records_of=side,
        step=one.step,
        phase=Phase(one.phase).label,
        op=one.op,
        module=one.module,
        site=_first(stack),
        forward_site=_first(forward),
        stack=stack,
        inputs_equal=inputs_equal(root, kind),
        inputs=differing_inputs(root, kind),
        outputs=_outputs(root, one),
        detail=detail_of(root, kind),
        allocated_at=None if root.allocation is None else _site_of(first, root.allocation),
        received_at=None if received is None else _site_of(first, received),
    )


_EXCHANGED = (
    "Every process gave the collective the same values in both runs, but its result differs: it sums in a different "
    "order, or its result was read before it was complete (call wait() on its work)."
)


def of_collective(divergence: Divergence, root: Root, process: ProcessTrace) -> Divergence | None:
    """Attribute a divergence to the collective that the difference came through, if all its inputs were equal.

    Args:
        divergence: The root's divergence.
        root: Where the difference shows.
        process: The process in the first run.

    Returns:
        None if it came through no collective, or if this process itself gave the collective different values.
    """
    if root.exchanged_at is None:
        return None
    one = entry_of(process, *process.record(root.exchanged_at))
    if one.number == divergence.record:
        return replace(_laid_to(divergence, one, process, _EXCHANGED), outputs=divergence.outputs, forward_site=None)
    return replace(_laid_to(divergence, one, process, _EXCHANGED), forward_site=None)


def _laid_to(divergence: Divergence, one: Entry, process: ProcessTrace, detail: str) -> Divergence:
    """Attribute a divergence to an earlier record whose results only show in the one found, with all its outputs."""
    chunk, row = process.record(one.number)
    stack = process.names.stack(int(chunk.columns["stack"][row]))
    layouts = enumerate(made.layout for made in one.outputs)
    return replace(
        divergence,
        kind=Kind.OP,
        record=one.number,
        records_of=0,
        step=one.step,
        phase=Phase(one.phase).label,
        op=one.op,
        module=one.module,
        site=_first(stack),
        forward_site=_first(process.names.stack(int(chunk.columns["forward_stack"][row]))),
        stack=stack,
        inputs_equal=None,
        inputs=(),
        outputs=tuple(
            OutputDifference(layout.dtype, layout.shape, layout.device, layout.elements, position=position)
            for position, layout in layouts
            if layout is not None
        ),
        detail=detail,
    )


_READ_LATER = (
    "The kernel got the same inputs in both runs. What it wrote into new memory differed when it was read, at {place}: it is "
    "digested only then, since a kernel may leave part of such memory unwritten."
)


def of_kernel(divergence: Divergence, root: Root, process: ProcessTrace) -> Divergence:
    """Attribute a divergence to the kernel whose results the root read, if nothing else differs; else return it as is.

    Args:
        divergence: The root's divergence.
        root: Where the difference shows.
        process: The process in the first run.
    """
    if divergence.kind is not Kind.MUTATION or root.first is None or root.second is None:
        return divergence
    pairs = zip(root.first.inputs, root.second.inputs, strict=False)
    made = {(mine.producer, mine.output) for mine, theirs in pairs if mine.digest != theirs.digest}
    if len(producers := {producer for producer, _ in made}) != 1:
        return divergence
    one = entry_of(process, *process.record(min(producers)))
    read = {at for _, at in made if at < len(one.outputs) and not any(one.outputs[at].digest)}
    if OpSemantics.WRITES_IN_PART not in one.op.semantics or len(read) < len(made):
        return divergence
    site = divergence.site
    place = "another line" if site is None else f"{PurePath(site.file).name}:{site.line}"
    laid = _laid_to(divergence, one, process, _READ_LATER.format(place=place))
    return replace(laid, outputs=tuple(output for output in laid.outputs if output.position in read))


def _site_of(process: ProcessTrace, number: int) -> Frame | None:
    """Return the line of the program that made a record."""
    chunk, row = process.record(number)
    return _first(process.names.stack(int(chunk.columns["stack"][row])))


def _first(stack: tuple[Frame, ...]) -> Frame | None:
    return stack[0] if stack else None


def _outputs(root: Root, one: Entry) -> tuple[OutputDifference, ...]:
    """Return the outputs that differ, or all outputs of a record that only one run has."""
    other = root.second if one is root.first else root.first
    found = []
    for index, made in enumerate(one.outputs):
        theirs = other.outputs[index] if other is not None and index < len(other.outputs) else None
        if made.layout is None or (theirs is not None and theirs == made):
            continue
        layout = made.layout
        found.append(OutputDifference(layout.dtype, layout.shape, layout.device, layout.elements, position=index))
    return tuple(found)


def dead_difference(found: Divergence) -> DeadDifference:
    """Summarize a divergence whose result nothing read."""
    return DeadDifference(found.step, found.phase, found.op, found.site)


def line_of(stream: ProcessTrace, chunk: Chunk, row: int) -> Frame | None:
    """Return the line that made a record, or the line that started its thread if no code of the program made it."""
    stack = stream.names.stack(int(chunk.columns["stack"][row]))
    return stack[0] if stack else _made_at(stream, int(chunk.columns["thread"][row]))


def _made_at(stream: ProcessTrace, thread: int) -> Frame | None:
    made_at = stream.description.get("threads_made_at") or []
    text = made_at[thread - 1] if 0 < thread <= len(made_at) else ""
    return stream.names.frame(text) if text else None


# Threads and processes that use one tensor concurrently.


_TURNS = (
    "Threads update the same tensor one after the other. Their order differs from run to run, and floating-point sums depend "
    "on it."
)
_PROCESSES_DETAIL = (
    "Processes share this memory, and at least one writes to it. Which comes first differs from "
    "run to run, and an update can be lost."
)
_HANDED_OVER = (
    "Other threads produced the same tensors in both runs, but this op received a different one of them: the "
    "threads' results arrived in a different order."
)
_BATCHES = "Both runs loaded the same batches, in a different order."


def as_race_of_processes(divergence: Divergence) -> Divergence:
    """Return the same divergence, attributed to processes racing for shared memory."""
    return replace(divergence, kind=Kind.MUTATION, inputs_equal=False, detail=_PROCESSES_DETAIL, shares_memory=True)


def writes_shared_memory(process: ProcessTrace) -> bool:
    """Whether an op of a process writes to memory that processes share."""
    return next(_shared_writes(process), None) is not None


def wrote_other_values(first: ProcessTrace, second: ProcessTrace) -> bool:
    """Whether a process wrote different values into shared memory in the two runs."""
    return any(mine != other for mine, other in zip_longest(_shared_writes(first), _shared_writes(second)))


def _shared_writes(process: ProcessTrace) -> Iterator[bytes]:
    """Yield the digests of what a process's ops write into shared memory, in order."""
    numbers = range(len(process.names.texts(Table.LAYOUT)))
    layouts = {number: process.names.layout(number) for number in numbers}
    shared = {number: layout for number, layout in layouts.items() if layout is not None and layout.is_shared}
    for chunk in process.chunks() if shared else ():
        outputs = chunk.children["outputs"]
        rows = np.flatnonzero(np.isin(outputs.columns["layout"], list(shared)))
        ops = outputs.spread(chunk.columns["op"])
        for row in rows.tolist():
            if not only_moves(process.names.op(int(ops[row])), shared[int(outputs.columns["layout"][row])]):
                yield outputs.columns["digest"][row].tobytes()


def as_changed_by_threads(divergence: Divergence, root: Root, processes: Sequence[ProcessTrace]) -> Divergence:
    """Attribute a divergence to threads if its op changes a tensor in place that another thread changes, too.

    They race if they overlapped, or may have; if each took what the one before it had left, only their order varies.

    For memory from outside the stream, or that another thread may have written since, the record has a digest but no
    producer. So two tensors are the same one if a thread took what another thread had written. Where no thread takes the
    tensor twice, an equal layout must suffice. If any other input of the op differs, that is reason enough.
    """
    group, first, second = root.group, root.first, root.second
    if divergence.kind is Kind.OP and first is not None and second is not None:
        # The inputs were equal when they were digested, before the op ran. Each run notes whether they changed meanwhile.
        seen = [overlaps(process, one) for process, one in zip(processes, (first, second), strict=True)]
        if any(seen):
            return as_race(divergence)
        # Memory that an op only writes into has no digest: its earlier content may have differed.
        is_known = all(
            value.producer >= 0 or value.digest is not None for one in (first, second) for value in one.inputs
        )
        if is_known and None not in seen:
            return divergence
    if first is None or second is None or not all(_changes_its_first(one) for one in (first, second)):
        return divergence
    sides = zip(processes, (group.first, group.second), (group.pairing.first, group.pairing.second), strict=True)
    uses = [_uses_of(process, chunk, int(rows[root.position])) for process, chunk, rows in sides]
    given = [{value.digest for value in one.inputs[1:] if value.digest is not None} for one in (first, second)]
    if not (given[0] - given[1] <= uses[1].given and given[1] - given[0] <= uses[0].given):
        return divergence
    if any(one.takes_over for one in uses):
        if all(one.is_one_after_the_other for one in uses):
            return replace(divergence, kind=Kind.ORDER, inputs_equal=False, detail=_TURNS)
        return as_race(divergence)
    # If the thread takes the tensor from outside more than once, variation of the op itself is the simpler explanation.
    may_be_shared = not any(one.goes_on for one in uses) and any(one.is_taken_elsewhere for one in uses)
    return as_race(divergence) if may_be_shared and divergence.kind in (Kind.OP, Kind.DATA) else divergence


def overlaps(process: ProcessTrace, record: Entry) -> bool | None:
    """Whether another thread wrote, or may have written, what a record's op used while it ran; None if the trace does not say.

    Of two ops that change one tensor at the same time, only the one that ended later is sure to be noted. So a noted op also
    counts for an op that changes a tensor of the same layout.
    """
    index, number = process.place(record.number) if isinstance(process, JoinedStreams) else (0, record.number)
    stream = process.streams[index] if isinstance(process, JoinedStreams) else process
    noted = stream.description.get("overlapped")
    if noted is None:
        return None
    if number in noted:
        return True
    if len(noted) >= MOST_OVERLAPS and number > noted[-1]:
        return None
    if not _changes_its_first(record):
        return False
    layout, shift, count = record.inputs[0].layout, record.number - number, stream.extent[0]
    others = (entry_of(process, *process.record(shift + other)) for other in noted if other < count)
    return any(_changes_its_first(other) and other.inputs[0].layout == layout for other in others)


def _changes_its_first(one: Entry) -> bool:
    """Whether an op writes into the memory of its first argument."""
    if OpSemantics.IN_PLACE not in one.op.semantics or not one.inputs:
        return False
    return any(made.layout == one.inputs[0].layout for made in one.outputs)


class _Uses(NamedTuple):
    """How threads change what looks like one tensor."""

    takes_over: bool
    """Whether a thread took what another one had written."""
    goes_on: bool
    """Whether the thread in question changed its own result again, with no write by another thread in between."""
    is_taken_elsewhere: bool
    """Whether another thread changes such a tensor that came from outside."""
    given: set[bytes]
    """Digests of the other inputs of these changes that came from outside."""
    is_one_after_the_other: bool
    """Whether each change took what an earlier one had left, and no two took the same."""


def _uses_of(process: ProcessTrace, chunk: Chunk, row: int) -> _Uses:
    """Find out how a record's thread and the others change what looks like the tensor that the record changes."""
    thread = chunk.columns["thread"][row]
    layout = chunk.children["inputs"].columns["layout"][chunk.children["inputs"].starts[row]]
    ops = process.names.ops_that(OpSemantics.IN_PLACE)
    taken: dict[int, set[bytes]] = {}
    last: dict[int, bytes] = {}
    consumed: list[bytes | None] = []
    given: set[bytes] = set()
    written: dict[int, set[bytes]] = {}
    goes_on = takes_over = False
    for other in process.chunks():
        inputs, digests, outputs = (other.children[name] for name in ("inputs", "input_digests", "outputs"))
        rows = np.flatnonzero(np.isin(other.columns["op"], ops) & (inputs.counts > 0))
        rows = rows[inputs.columns["layout"][inputs.starts[rows]] == layout]
        for at in rows.tolist():
            who = int(other.columns["thread"][at])
            held = held_by_position(digests, at)
            given |= {digest for position, digest in held.items() if position}
            if inputs.columns["producer"][inputs.starts[at]]:
                goes_on |= who == thread
                consumed.append(last.get(who))
            else:
                # Memory that it writes into without reading it has no digest.
                takes_over |= 0 not in held and who in last and who == thread
                taken.setdefault(who, set()).update({held[0]} if 0 in held else ())
                consumed.append(held.get(0))
            last[who] = outputs.columns["digest"][outputs.starts[at]].tobytes()
            written.setdefault(who, set()).add(last[who])
    takes_over |= any(
        held & what
        for who, held in taken.items()
        for whose, what in written.items()
        if who != whose and thread in (who, whose)
    )
    begins = set(consumed) - set().union(*written.values())
    takes_turns = None not in consumed and len(begins) <= 1 and len(set(consumed)) == len(consumed)
    return _Uses(takes_over, goes_on, any(who != thread for who in taken), given, takes_turns)


def changes_in_place(one: Entry) -> bool:
    """Whether an op writes into its first argument, if that came from outside."""
    return _changes_its_first(one) and one.inputs[0].producer < 0


class Threads:
    """The streams of all threads of a process, in both runs."""

    def __init__(self, streams: Sequence[tuple[ProcessTrace, ProcessTrace]], search: DigestSearch) -> None:
        self._streams = streams
        self._search = search

    def made(self, digest: bytes, run: int) -> bool:
        """Whether one of them made a value in a run."""
        return any(self._search.of(traces[run], digest).made for traces in self._streams)

    def distinguished(self, divergence: Divergence, received: Received) -> Divergence | None:
        """Explain a divergence where each run received a different one of two values that both runs made; None if they did not.

        If the tensor is changed in place, it was read at a different moment. If it is never changed, a different tensor was
        handed over, for instance by a queue.
        """
        pairs = [pair for pair in received.pairs if all(self.made(digest, run) for digest in pair for run in (0, 1))]
        if not pairs:
            return None
        if divergence.detail == _TURNS:
            return divergence
        if any(self._written(digest, run) for pair in pairs for digest in pair for run in (0, 1)):
            return as_race(divergence)
        return replace(divergence, kind=Kind.ORDER, detail=_HANDED_OVER)

    def _written(self, digest: bytes, run: int) -> bool:
        return any(self._search.of(traces[run], digest).written for traces in self._streams)

    def looks_at_another_moment(self, root: Root, received: Received, made: Set[bytes]) -> bool:
        """Whether a thread read values at a different moment in each run, and no other thread took what it made from them.

        Args:
            root: The first op on these values.
            received: The values; both runs made all of them.
            made: Digests of what was made from them.
        """
        if not received.pairs or root.first is None or changes_in_place(root.first):
            return False
        if root.aspects.arguments or root.aspects.generators:
            return False
        values = {digest for pair in received.pairs for digest in pair}
        if not all(self.made(digest, run) for digest in values for run in (0, 1)):
            return False
        if kind_of(root, Level.OP) is not Kind.DATA:
            return False
        return not any(self._search.of(traces[0], new).taken for traces in self._streams for new in made - values)


def yields_batches_in_other_order(
    received: Received, own: tuple[ProcessTrace, ProcessTrace], search: DigestSearch
) -> bool:
    """Whether a batch differs only because both runs yield the same batches in a different order."""
    return any(search.of(own[1], mine).made and search.of(own[0], other).made for mine, other in received.pairs)


def as_other_batch(divergence: Divergence) -> Divergence:
    """Return the same divergence, attributed to the order of batches."""
    return replace(divergence, kind=Kind.ORDER, detail=_BATCHES)
