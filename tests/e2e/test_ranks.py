"""Programs started by `torchrun`: replicas, shards, collectives, pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.clean_programs import RANKS, ranks
from tests.e2e.families import Fault, assert_named, assert_same, only, only_named


@pytest.mark.parametrize("name", only_named(["replicas"], RANKS))
def test_clean_programs_are_the_same(name: str, tmp_path: Path) -> None:
    assert_same(RANKS[name], tmp_path)


def fault(program: str, name: str, kind: str, step: int, rank: int = 1, site: str | None = None) -> Fault:
    """Return a fault in one rank."""
    site = f"ranks/{program} {site or f'SITE {name}'}"
    return Fault(f"{program}, {name}", ranks(f"ranks/{program}", name), kind, step, site, f"main.rank-{rank}")


FAULTS = [
    fault("replicas", "bit", "op", 1),
    fault("replicas", "seed", "rng", 0),
    fault("shards", "bit", "op", 1, site="SITE"),
    fault("collectives", "bit", "op", 1, site="SITE"),
    fault("pipeline", "forward", "op", 1, rank=0),
    fault("pipeline", "back", "op", 1),
]


@pytest.mark.parametrize("planted", only([], FAULTS))
def test_a_fault_is_named_and_the_other_rank_received_it(planted: Fault, tmp_path: Path) -> None:
    report = assert_named(planted, tmp_path)
    other = {"main.rank-0": "main.rank-1", "main.rank-1": "main.rank-0"}[planted.process]
    assert (other, planted.process) in [(d["process"], d["received_from"]) for d in report["divergences"]]


@pytest.mark.thorough("programs")
def test_a_sum_that_is_read_before_it_is_complete_is_named(tmp_path: Path) -> None:
    """Both ranks send the same values in both runs, so the cause is the collective, in the rank that reads its result."""
    report = assert_named(fault("unawaited", "hasty", "op", 0, rank=0, site="SITE"), tmp_path)
    assert report["first_divergence"]["op"] == "c10d::allreduce_"
    assert "read before it was complete" in report["first_divergence"]["detail"]
