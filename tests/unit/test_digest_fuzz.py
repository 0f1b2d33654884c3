"""Small fuzz runs of the digest for tensors on a GPU: it misses nothing, and a weaker digest is detected."""

from __future__ import annotations

from collections import Counter

from benchmarks.digest_fuzz import check_whole_tensors, missed
from benchmarks.digest_pairs import CHANGES


def counted(pairs: int, **keywords: tuple[int, int]) -> dict[str, Counter[str]]:
    return {
        kind: sum((Counter(missed(kind, (1, number, at), pairs, **keywords)) for at in range(6)), Counter())
        for number, kind in enumerate(CHANGES)
    }


def test_no_pair_that_differs_in_a_structured_way_shares_a_digest() -> None:
    found = counted(1000)
    assert sum(one["pairs"] for one in found.values()) > 75_000
    assert all(one["pairs"] > 1000 for one in found.values())
    assert not any(one["missed"] for one in found.values())


def test_a_digest_that_did_not_number_its_lanes_would_be_detected() -> None:
    found = counted(100, steps=(0, 0))
    assert found["lanes swapped"]["missed"] == found["lanes swapped"]["pairs"] > 0
    assert found["zeros moved"]["missed"] == found["zeros moved"]["pairs"] > 0
    assert found["one bit"]["missed"] == 0


def test_digests_of_whole_tensors_differ_by_what_lanes_add() -> None:
    for number, kind in enumerate(CHANGES):
        check_whole_tensors(kind, (2, number), count=3)
