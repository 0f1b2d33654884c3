"""Looks for pairs of tensors that differ and share a digest, among those that weaker digests miss; needs no GPU.

    python -m benchmarks.digest_fuzz --pairs 100000000 --json benchmarks/results/digest-fuzz.json

The digest is a sum over lanes of a tensor, so of each pair only the lanes that the change touched are computed, with the functions of the
definition; for some pairs whole tensors are made and digested, to check that the result is the same. It continues where the file
of an earlier call ends.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.digest_pairs import CHANGES, NEAR, Array, Pairs, make_pairs
from benchmarks.measured import markdown, surroundings, write
from determinism.device_digest import (
    FIRST_STEP,
    LANES,
    SECOND_STEP,
    lane_sums,
    mix,
    reference_digest,
    scattered,
)

BATCH = 20_000
CHECKED = 2
STEPS = (FIRST_STEP, SECOND_STEP)


def differences(pairs: Pairs, steps: tuple[int, int] = STEPS) -> tuple[Array, Array]:
    """The differences of both halves of the digests of each pair, modulo 2**64."""
    found = []
    for shift, step, other in ((0, *steps), (2, *steps[::-1])):
        change = scattered(lane_sums(pairs.after, shift), pairs.numbers, step)
        change -= scattered(lane_sums(pairs.before, shift), pairs.numbers, step)
        ends = mix(pairs.lengths - pairs.shorter + np.uint64(other)) - mix(pairs.lengths + np.uint64(other))
        found.append(change.sum(1) + ends)
    return found[0], found[1]


def missed(kind: str, seed: tuple[int, ...], count: int, steps: tuple[int, int] = STEPS) -> dict[str, int]:
    """Make pairs of one kind and count those that differ, and those of them that a half of the digest or the whole misses."""
    pairs = make_pairs(kind, np.random.default_rng(seed), count)
    differ = (pairs.before != pairs.after).any((1, 2, 3)) | (pairs.shorter > 0)
    first, second = (change[differ] == 0 for change in differences(pairs, steps))
    return {
        "pairs": int(differ.sum()),
        "missed": int((first & second).sum()),
        "missed_by_first_half": int(first.sum()),
        "missed_by_second_half": int(second.sum()),
    }


def check_whole_tensors(kind: str, seed: tuple[int, ...], count: int = CHECKED) -> None:
    """Make whole tensors from pairs, and compare the differences of their digests with `differences`."""
    pairs = make_pairs(kind, np.random.default_rng(seed), count, near=True)
    wanted = np.stack(differences(pairs), axis=1)
    for pair in range(count):
        digests = []
        for content, shorter in ((pairs.before, 0), (pairs.after, int(pairs.shorter[pair]))):
            lanes = np.zeros((NEAR, 16, 2), np.int32)
            lanes[pairs.numbers[pair].astype(np.int64) - 1] = content[pair]
            tiles = lanes.reshape(-1, LANES, 8, 2, 2).transpose(0, 2, 1, 3, 4)
            length = int(pairs.lengths[pair]) - shorter
            digests.append(np.frombuffer(reference_digest(tiles.tobytes()[:length]), np.uint64))
        assert (digests[1] - digests[0] == wanted[pair]).all(), f"{kind}: what lanes add is not what digests differ by"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1_000_000, help="how many pairs there should be in the end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="keep results in a file, and continue where it ends")
    asked = parser.parse_args()
    totals = read(asked.json) if asked.json and asked.json.exists() else {kind: {} for kind in CHANGES}
    shown = time.monotonic()
    while sum(found.get("pairs", 0) for found in totals.values()) < asked.pairs:
        for kind, found in totals.items():
            batch = found.get("batches", 0)
            seed = (asked.seed, [*CHANGES].index(kind), batch)
            for name, number in (missed(kind, seed, BATCH) | {"batches": 1, "checked_whole": CHECKED}).items():
                found[name] = found.get(name, 0) + number
            check_whole_tensors(kind, seed)
        if asked.json and time.monotonic() - shown > 20:
            shown = time.monotonic()
            keep(asked.json, totals)
            print(f"{sum(found['pairs'] for found in totals.values()):,} pairs", file=sys.stderr, flush=True)
    if asked.json:
        keep(asked.json, totals)
    print(markdown([row(kind, found) for kind, found in totals.items()]))
    if any(found["missed"] for found in totals.values()):
        sys.exit(1)


def read(path: Path) -> dict[str, dict[str, int]]:
    return {one.pop("change"): one for one in json.loads(path.read_text())["results"]}


def keep(path: Path, totals: dict[str, dict[str, int]]) -> None:
    pairs = sum(found["pairs"] for found in totals.values())
    around = surroundings("determinism", "numpy") | {"pairs": pairs}
    write(path, around, [{"change": kind, **found} for kind, found in totals.items()])


def row(kind: str, found: dict[str, Any]) -> dict[str, str]:
    return {
        "change": kind,
        "pairs that differ": f"{found['pairs']:,}",
        "missed": f"{found['missed']:,}",
        "missed by the first half": f"{found['missed_by_first_half']:,}",
        "missed by the second half": f"{found['missed_by_second_half']:,}",
    }


if __name__ == "__main__":
    main()
