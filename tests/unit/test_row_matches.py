"""Rows are found along the dimension that follows the batch size, and are paired by their inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from determinism.batch.compare import SHARED, UNKNOWN, Matches, Place, PlacedCall, axes_of, by_shapes, match
from determinism.digest import digest_bytes, digest_text
from determinism.errors import TraceError
from determinism.trace.row_calls import RowCallsWriter, SeenCall, SeenTensor, read_row_calls
from determinism.trace.schema import ROWS_FILE

FACTS = {"phase": "forward", "training": False, "draws": False, "state": ""}


def tensor(rows: str, *, shape: tuple[int, ...] | None = None, dimension: int = 0) -> SeenTensor:
    """A tensor with a row for each letter."""
    digests = b"".join(digest_text(letter) for letter in rows)
    whole = digest_text(rows) if len(rows) > 1 else digests
    return SeenTensor(shape or (len(rows), 3), whole, {dimension: digests} if len(rows) > 1 else {})


def shared(text: str) -> SeenTensor:
    return SeenTensor((3, 3), digest_text(text), {})


def call(run: int, given: str, made: str, *, weight: str = "w", arguments: str = "", index: int = 0) -> PlacedCall:
    inputs, outputs = (tensor(given), shared(weight)), (tensor(made),)
    seen = SeenCall(7, "aten::mm", -1, len(given), FACTS, inputs, outputs)
    return PlacedCall(run, index, seen, None, "", arguments, (), 0)


def matched(*calls: PlacedCall) -> Matches:
    place = Place("aten::mm", False, list(calls))
    return match(place, axes_of(place))


def test_the_dimension_that_follows_the_batch_holds_the_rows() -> None:
    place = Place("aten::mm", False, [call(0, "a", "A"), call(1, "ab", "AB")])

    assert axes_of(place).inputs == (0, SHARED)
    assert axes_of(place).is_by_row


@pytest.mark.parametrize(
    ("first", "second", "axis"),
    [
        ((1, 5, 3), (4, 5, 3), 0),
        ((5, 1, 3), (5, 4, 3), 1),
        ((10, 3), (40, 3), 0),
        ((3, 3), (3, 3), SHARED),
        ((1, 1), (4, 4), UNKNOWN),
        ((1, 5), (4, 9), UNKNOWN),
        ((1, 5), (3, 5), UNKNOWN),
    ],
)
def test_shapes_determine_the_dimension_of_rows(first: tuple[int, ...], second: tuple[int, ...], axis: int) -> None:
    def one(run: int, batch: int, shape: tuple[int, ...]) -> PlacedCall:
        seen = SeenCall(7, "aten::relu", -1, batch, FACTS, (SeenTensor(shape, b"", {}),), ())
        return PlacedCall(run, 0, seen, None, "", "", (), 0)

    assert axes_of(Place("aten::relu", False, [one(0, 1, first), one(1, 4, second)])).inputs == (axis,)


def test_equal_rows_with_equal_results_are_matched_whatever_their_order() -> None:
    found = matched(call(0, "a", "A"), call(0, "b", "B"), call(1, "bca", "BCA"))

    assert (found.matched, found.rows, found.conflicts) == (2, {0: 2, 1: 3}, [])


def test_equal_rows_with_different_results_are_in_conflict() -> None:
    found = matched(call(0, "a", "A"), call(0, "b", "B"), call(1, "ab", "AX"))

    assert len(found.conflicts) == 1
    assert (found.conflicts[0].earlier.run, found.conflicts[0].later.run) == (0, 1)


@pytest.mark.parametrize("other", [{"weight": "v"}, {"arguments": "2"}])
def test_rows_with_different_weights_are_not_the_same(other: dict[str, str]) -> None:
    """Different arguments are ignored if they differ in each run, as sizes that follow the batch do."""
    found = matched(call(0, "a", "A"), call(1, "ab", "XY", **other))

    assert found.matched == ("arguments" in other)


def test_arguments_that_both_runs_have_distinguish_calls() -> None:
    first = [call(0, "a", letter, arguments=letter) for letter in "AB"]
    second = [call(1, "ab", letter * 2, arguments=letter) for letter in "AB"]
    found = matched(*first, *second)

    assert (found.matched, found.conflicts) == (2, [])


def test_duplicated_rows_with_two_results_are_in_conflict() -> None:
    assert len(matched(call(0, "a", "A"), call(1, "aa", "AX")).conflicts) == 1


def test_runs_without_a_common_row_match_nothing() -> None:
    assert matched(call(0, "a", "A"), call(1, "bc", "BC")).matched == 0


def test_calls_from_one_line_with_different_shapes_are_distinguished() -> None:
    def one(run: int, batch: int, *shapes: tuple[int, ...]) -> PlacedCall:
        seen = SeenCall(7, "aten::mm", -1, batch, FACTS, tuple(SeenTensor(shape, b"", {}) for shape in shapes), ())
        return PlacedCall(run, 0, seen, None, "", "", (), 0)

    likeness = [one(0, 2, (2, 9), (9, 2)), one(1, 8, (8, 9), (9, 8))]
    mixing = [one(0, 2, (2, 2), (2, 9)), one(1, 8, (8, 8), (8, 9))]
    parts = by_shapes(Place("aten::mm", False, [likeness[0], mixing[0], likeness[1], mixing[1]]))

    assert sorted([part.calls for part in parts], key=str) == sorted([likeness, mixing], key=str)


def test_calls_are_read_back_from_the_file(tmp_path: Path) -> None:
    padded = SeenTensor((2, 4), digest_bytes(b"x"), {0: b"a" * 32, 1: b"b" * 64}, b"c" * 32)
    calls = [
        SeenCall(3, "aten::add.Tensor", -1, 2, FACTS, (padded, shared("w")), (tensor("ab"),)),
        SeenCall(-1, "Linear", 5, 2, {**FACTS, "state": "00"}, (padded,), ()),
    ] * 200
    writer = RowCallsWriter(tmp_path, max_bytes=1 << 20)
    reasons = [writer.add(one) for one in calls]
    writer.close()
    writer.close()

    assert list(read_row_calls(tmp_path)) == calls and not any(reasons)


def test_calls_beyond_the_size_limit_are_left_out(tmp_path: Path) -> None:
    writer = RowCallsWriter(tmp_path, max_bytes=100)
    reasons = [writer.add(SeenCall(3, "aten::relu", -1, 2, FACTS, (tensor("ab"),), ())) for _ in range(4)]
    writer.close()

    assert len(list(read_row_calls(tmp_path))) == 2
    # Said once.
    assert reasons == [None, None, "their digests take more than 100 bytes, so later rows were not examined", None]


def test_a_process_without_recorded_rows_has_none(tmp_path: Path) -> None:
    assert list(read_row_calls(tmp_path)) == []


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / ROWS_FILE).write_bytes(b"no Arrow")

    with pytest.raises(TraceError, match="cannot be read"):
        list(read_row_calls(tmp_path))
