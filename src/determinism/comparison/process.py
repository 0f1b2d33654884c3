"""Compares one process of two runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from determinism.comparison.canonical import Canonical
from determinism.comparison.dataflow import Dataflow
from determinism.comparison.divergence import DeadDifference, Divergence, OutputDifference, Visible
from determinism.comparison.flow import Flow
from determinism.comparison.kind import detail_of, inputs_equal, kind_of
from determinism.comparison.lockstep import Lockstep
from determinism.comparison.neighbours import dataflow
from determinism.comparison.origins import Entry
from determinism.comparison.received import NOTHING, Pair, Received, received_by
from determinism.comparison.roots import Root
from determinism.comparison.step_counts import StepCounts
from determinism.comparison.visible import SORTS, VisibleDifferences
from determinism.trace.names import Frame
from determinism.trace.reader import ProcessTrace
from determinism.types import Kind, Level, Phase, Stream


@dataclass
class ProcessComparison:
    """What comparing one process of two runs came to."""

    key: str
    started: float = 0.0
    """When the process of the first run began to record, in seconds since 1970."""
    divergence: Divergence | None = None
    first_visible: Visible | None = None
    infected: list[Visible] = field(default_factory=list)
    absorbed: bool = False
    dead_differences: int = 0
    dead_first: list[DeadDifference] = field(default_factory=list)
    first_dead: Divergence | None = None
    """As a divergence, for those who count dead differences too."""
    sent: Divergence | None = None
    """The first that other processes got through a collective, whether anything here read it or not."""
    shared: Divergence | None = None
    """The first that began here and was written where other processes may read it, whether anything here read it or not."""
    received: Received = NOTHING
    """What the divergence got from other streams."""
    loaded: frozenset[Pair] = frozenset()
    """What differs of all that was loaded from files before it."""
    stream: Stream = Stream.PROCESS
    part_of: str = ""
    """Key of the process; that of the streams of its threads, pools and workers as well."""
    traces: tuple[ProcessTrace, ProcessTrace] | None = None
    counts: StepCounts | None = None
    """How many records differ in each step; None for streams without an order, and where nothing that counts differs."""
    dataflow: Dataflow | None = None
    """What is around the divergence."""


def compare_processes(first: ProcessTrace, second: ProcessTrace) -> ProcessComparison:
    """Compare the records of two processes with the same key."""
    lockstep = Lockstep(first, second, Canonical(first, second))
    flow = Flow(first, second, lambda number: lockstep.translation.key(number))
    visible = VisibleDifferences(first, second)
    for group in lockstep.groups():
        flow.add(group)
        lockstep.pairs_by_content = not flow.is_settled
        visible.add(group)
        lockstep.counts.add(group.first, group.second, group.pairing, group.flags.outputs)
        if flow.is_settled and visible.is_complete:
            lockstep.count_on()
            break
    started = float(first.description.get("started") or 0.0)
    result = ProcessComparison(first.key, started, traces=(first, second), part_of=first.key)
    level = Level(first.description.get("level", "op"))
    result.dead_differences, dead = flow.dead()
    result.dead_first = [dead_difference(describe(root, first, second, Level.OP)) for root in dead[:5]]
    if dead:
        result.first_dead = describe(dead[0], first, second, level)
    if flow.sent is not None and flow.sent is not flow.live:
        result.sent = describe(flow.sent, first, second, level)
    if flow.shared is not None and not received_by(flow.shared).by_shared_memory:
        result.shared = describe(flow.shared, first, second, level)
    if flow.live is not None:
        result.divergence = describe(flow.live, first, second, level)
        result.received = received_by(flow.live)
        result.loaded = frozenset(flow.loaded)
        result.first_visible = visible.earliest()
        result.infected = [visible.first[sort] for sort in SORTS if sort in visible.first]
        vanished = not visible.first and not flow.is_held
        result.absorbed = vanished and result.divergence.kind is not Kind.STRUCTURE
        result.counts = lockstep.counts
        result.dataflow = dataflow(flow.live, (first, second), lockstep.num_equal)
    return result


def describe(root: Root, first: ProcessTrace, second: ProcessTrace, level: Level) -> Divergence:
    """Put what is known of a root into words and places."""
    side = 0 if root.first is not None else 1
    one = root.first if side == 0 else root.second
    assert one is not None
    process = (first, second)[side]
    chunk = (root.group.first, root.group.second)[side]
    row = int((root.group.pairing.first, root.group.pairing.second)[side][root.position])
    kind = kind_of(root, level)
    stack = process.names.stack(int(chunk.columns["stack"][row]))
    forward = process.names.stack(int(chunk.columns["forward_stack"][row]))
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
        outputs=_outputs(root, one),
        detail=detail_of(root, kind),
        allocated_at=None if root.allocation is None else _site_of(first, root.allocation),
    )


def _site_of(process: ProcessTrace, number: int) -> Frame | None:
    """The line of the program that made a record."""
    chunk, row = process.record(number)
    return _first(process.names.stack(int(chunk.columns["stack"][row])))


def _first(stack: tuple[Frame, ...]) -> Frame | None:
    return stack[0] if stack else None


def _outputs(root: Root, one: Entry) -> tuple[OutputDifference, ...]:
    """The outputs that differ; of a record that only one run has, all."""
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
    """What is said of a divergence that nothing read."""
    return DeadDifference(found.step, found.phase, found.op, found.site)
