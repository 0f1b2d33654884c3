"""Equal records of two runs are skipped in whole columns, or in whole batches whose bytes are equal."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from determinism.comparison import lockstep
from determinism.comparison.columns import Canonical
from determinism.comparison.result import Comparison
from determinism.comparison.runs import compare
from determinism.report.document import document
from determinism.trace.chunks import Decoder
from determinism.trace.stream import BatchStream
from determinism.types import Role, Verdict
from tests.traces import Ref, TraceBuilder, layout, process_of

RECORDS = 24
PER_STEP = 6
BATCH = 9
"""Program records per batch, chosen so that batches end within steps."""
STORED = Path("processes") / "main" / "records.arrow"

Edit = Callable[[int, dict[str, Any]], None]


def write(
    folder: Path,
    edit: Edit | None = None,
    *,
    batch: int = BATCH,
    names: tuple[str, ...] = (),
    extra: tuple[int, ...] = (),
) -> Path:
    """Write a trace of a few steps.

    Args:
        folder: The folder to write to.
        edit: Changes the fields of records.
        batch: The number of records per batch.
        names: Ops that get the first numbers.
        extra: Records that are followed by an extra record.
    """
    builder = TraceBuilder(folder)
    for name in names:
        builder._op(name)
    made = [-1]
    for number in range(RECORDS):
        earlier = made[max(0, number - PER_STEP)]
        record: dict[str, Any] = {
            "op": f"op::{number % 5}",
            "inputs": [Ref(made[-1], digest=f"held {number}" if number % 4 == 0 else None), Ref(earlier)],
            "outputs": [f"value {number}"],
            "layouts": [layout(4)],
            "module": f"layers.{number % 3}",
            "site": ("/work/train.py", number % 7 + 1),
            "arguments": f"n={number}",
            "generators": [f"state {number}"] if number % 6 == 2 else [],
        }
        if edit is not None:
            edit(number, record)
        made.append(builder.add(**record))
        if number in extra:
            builder.add("determinism::tolist", [made[-1]], ["seen"], role=Role.ESCAPE)
        if number % PER_STEP == PER_STEP - 1:
            builder.step({"weight": made[-1]})
        if number % batch == batch - 1:
            builder._writer.flush()
    return builder.close()


def at(number: int, **fields: Any) -> Edit:
    """Change one record."""
    return lambda current, record: record.update(fields) if current == number else None


def stored(trace: Path) -> bytes:
    """The batches of records, without the header, which identifies the run."""
    return (trace / STORED).read_bytes()[BatchStream(trace / STORED).start or 0 :]


def found(comparison: Comparison) -> dict[str, Any]:
    """The report, without the entries that differ between any two runs."""
    return {key: value for key, value in document(comparison).items() if key != "runs"}


def record_of(number: int) -> int:
    """The number of a program's record among all records."""
    return number + number // PER_STEP


def differences(first: Path, second: Path) -> list[int]:
    """Keys of the records that differ or have no partner; records before the first were skipped, not returned."""
    processes = process_of(first), process_of(second)
    side_by_side = lockstep.Lockstep(*processes, Canonical(*processes))
    keys: list[int] = []
    for group in side_by_side.groups():
        alone = (group.pairing.first < 0) | (group.pairing.second < 0)
        differing = alone | group.flags.any()
        assert keys or (differing[0] and side_by_side.num_equal == group.first.first)
        keys += group.keys[differing].tolist()
    return keys


def test_equal_bytes_are_decoded_once(tmp_path: Path) -> None:
    first, second = process_of(write(tmp_path / "1")), process_of(write(tmp_path / "2"))
    decoder = Decoder()
    pairs = list(zip(first.chunks(decoder), second.chunks(decoder), strict=True))
    assert len(pairs) == 3 and all(mine is other for mine, other in pairs)


def test_different_bytes_or_positions_are_decoded_again(tmp_path: Path) -> None:
    process = process_of(write(tmp_path / "1"))
    other = process_of(write(tmp_path / "2", at(1, outputs=["other"])))
    placed, changed = (one._streams[0].at(one._streams[0].start or 0) for one in (process, other))
    assert placed is not None and changed is not None
    decoder = Decoder()
    chunk = decoder.chunk(0, placed.message)
    moved, differing = decoder.chunk(7, placed.message), decoder.chunk(7, changed.message)
    assert chunk is not None and moved is not None and differing is not None
    assert (chunk.first, moved.first) == (0, 7)
    digests = [c.children["outputs"].columns["digest"] for c in (chunk, moved, differing)]
    assert (digests[0] == digests[1]).all() and not (digests[1] == digests[2]).all()


@pytest.mark.parametrize("batch", [BATCH, 4, 1, RECORDS])
def test_equal_records_are_the_same_however_they_are_batched(batch: int, tmp_path: Path) -> None:
    first, second = write(tmp_path / "1"), write(tmp_path / "2", batch=batch)
    assert (stored(first) == stored(second)) == (batch == BATCH)
    assert compare(first, second).verdict is Verdict.SAME


def test_the_order_of_names_does_not_matter(tmp_path: Path) -> None:
    first = write(tmp_path / "1")
    second = write(tmp_path / "2", names=("op::4", "op::unused", "op::1"))
    assert stored(first) != stored(second)
    assert compare(first, second).verdict is Verdict.SAME


@pytest.mark.parametrize("number", [0, 8, 9, 13, RECORDS - 1])
@pytest.mark.parametrize(
    ("field", "texts"),
    [
        ("op", ("op::mine", "op::other")),
        ("module", ("mine", "other")),
        ("arguments", ("mine", "other")),
        ("site", (("/work/train.py", 91), ("/work/train.py", 92))),
        ("layouts", ([layout(8)], [layout(2, 4)])),
    ],
)
def test_equal_bytes_with_different_names_differ(
    field: str, texts: tuple[Any, Any], number: int, tmp_path: Path
) -> None:
    first, second = (write(tmp_path / str(side), at(number, **{field: texts[side]})) for side in range(2))
    assert stored(first) == stored(second)
    assert record_of(number) in differences(first, second)


@pytest.mark.parametrize("batch", [BATCH, 4], ids=["cut-alike", "cut-elsewhere"])
@pytest.mark.parametrize("number", [1, 8, 9, 13, RECORDS - 1])
@pytest.mark.parametrize(
    "change",
    [
        {"outputs": ["other"]},
        {"outputs": ["one", "two"], "layouts": [layout(4)] * 2},
        {"inputs": []},
        {"inputs": [Ref(-1), Ref(-1)]},
        {"inputs": [Ref(-1, layout=layout(2)), Ref(-1)]},
        {"generators": ["other"]},
        {"arguments": "other"},
    ],
    ids=["digest", "count", "inputs", "producer", "view", "generator", "argument"],
)
def test_a_single_difference_is_found(change: dict[str, Any], number: int, batch: int, tmp_path: Path) -> None:
    first, second = write(tmp_path / "1"), write(tmp_path / "2", at(number, **change), batch=batch)
    assert differences(first, second) == [record_of(number)]


@pytest.mark.parametrize("batch", [BATCH, 4], ids=["cut-alike", "cut-elsewhere"])
def test_entries_that_move_to_the_next_record_are_a_difference(batch: int, tmp_path: Path) -> None:
    """The sequence of all entries is the same; the records that they belong to are not."""

    def three(split: int) -> Edit:
        values = ["a", "b", "c"]
        parts = {13: values[:split], 14: values[split:]}
        return lambda number, record: record.update(
            {"outputs": parts[number], "layouts": [layout(4)] * len(parts[number])} if number in parts else {}
        )

    first, second = write(tmp_path / "1", three(1)), write(tmp_path / "2", three(2), batch=batch)
    assert differences(first, second) == [record_of(13), record_of(14)]


@pytest.mark.parametrize("batch", [BATCH, 4], ids=["cut-alike", "cut-elsewhere"])
@pytest.mark.parametrize("extra", [(), (7,), (2, 13)], ids=["in-step", "shifted", "shifted-twice"])
def test_later_differences_are_found_and_nothing_else(extra: tuple[int, ...], batch: int, tmp_path: Path) -> None:
    def later(number: int, record: dict[str, Any]) -> None:
        at(1, arguments="other")(number, record)
        # The bytes are the same; only their producer differs.
        at(20, inputs=[record["inputs"][0], Ref(0)])(number, record)

    first, second = write(tmp_path / "1"), write(tmp_path / "2", later, batch=batch, extra=extra)
    found = differences(first, second)
    assert [key for key in found if key >= 0] == [record_of(1), record_of(20)]
    assert len([key for key in found if key < 0]) == len(extra)


def unseeded(number: int, record: dict[str, Any]) -> None:
    """A different generator state at each draw, like that of a generator that the program never seeded."""
    if record["generators"]:
        record["generators"] = [f"other {number}"]


def test_steps_that_differ_only_in_generator_states_are_compared_together(tmp_path: Path) -> None:
    first, second = write(tmp_path / "1", batch=RECORDS), write(tmp_path / "2", unseeded, batch=RECORDS)
    processes = process_of(first), process_of(second)
    group, *_ = lockstep.Lockstep(*processes, Canonical(*processes)).groups()
    drawing = [record_of(number) for number in range(RECORDS) if number % 6 == 2]
    assert len(set(group.first.columns["step"].tolist())) > 2
    assert differences(first, second) == group.keys[group.flags.generators].tolist() == drawing
    assert compare(first, second).verdict is Verdict.SAME


@pytest.mark.parametrize("batch", [BATCH, RECORDS])
@pytest.mark.parametrize("number", [9, 13, RECORDS - 1])
def test_a_difference_among_differing_generator_states_is_found(number: int, batch: int, tmp_path: Path) -> None:
    def edit(current: int, record: dict[str, Any]) -> None:
        unseeded(current, record)
        at(number, outputs=["other"])(current, record)

    first, second = write(tmp_path / "1", batch=batch), write(tmp_path / "2", edit, batch=batch)
    drawing = {record_of(one) for one in range(RECORDS) if one % 6 == 2}
    assert set(differences(first, second)) == drawing | {record_of(number)}


def test_a_digest_in_only_one_run_is_not_a_difference(tmp_path: Path) -> None:
    def without_digest(number: int, record: dict[str, Any]) -> None:
        record["inputs"] = [ref._replace(digest=None) for ref in record["inputs"]]

    assert compare(write(tmp_path / "1"), write(tmp_path / "2", without_digest)).verdict is Verdict.SAME


def test_equal_damage_in_both_traces_is_reported(tmp_path: Path) -> None:
    first = write(tmp_path / "1")
    content = bytearray(stored(first))
    content[-200] ^= 0xFF
    (first / STORED).write_bytes(content)
    second = Path(shutil.copytree(first, tmp_path / "2"))
    comparison = compare(first, second)
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert [trouble.identifier for trouble in comparison.trouble] == ["trace-truncated"]


@pytest.mark.parametrize("seed", range(40))
def test_skipping_equal_records_gives_the_same_result_as_comparing_all(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change random records and cut batches at random places; then compare everything record by record."""
    chance = random.Random(seed)
    choices: list[dict[str, Any]] = [
        {"outputs": ["other"]}, {"arguments": "other"}, {"inputs": []}, {"inputs": [Ref(0)]}, {"op": "op::x"},
        {"generators": ["other"]}, {"outputs": ["a", "b"], "layouts": [layout(4)] * 2}, {"site": ("/work/other.py", 1)},
    ]  # fmt: skip
    changes = {chance.randrange(RECORDS): chance.choice(choices) for _ in range(chance.randrange(4))}
    extra = chance.choice([(), (), (chance.randrange(RECORDS),)])
    first = write(tmp_path / "1")
    second = write(
        tmp_path / "2",
        lambda number, record: record.update(changes.get(number, {})),
        batch=chance.choice([BATCH, chance.randrange(1, RECORDS)]),
        extra=extra,
    )
    short = found(compare(first, second))
    monkeypatch.setattr(lockstep, "are_same", lambda *_, **__: False)
    assert short == found(compare(first, second))
    assert short["verdict"] == "same" or changes or extra


def test_a_process_releases_its_data_and_reads_it_again(tmp_path: Path) -> None:
    process = process_of(write(tmp_path / "1"))
    sizes = [chunk.rows for chunk in process.chunks()]
    before = process.names
    process.give_back()
    assert "names" not in vars(process) and process.names is not before
    for number in (0, sum(sizes) - 1):
        chunk, row = process.record(number)
        assert chunk.first + row == number and process.names.op(int(chunk.columns["op"][row]))
