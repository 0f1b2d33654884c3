"""Programs that train in common ways: several optimizers, closures, mixed precision, copies, kinds of tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.clean_programs import TRAINING, python
from tests.e2e.families import Fault, assert_named, assert_same, only, only_named


@pytest.mark.parametrize("name", only_named(["rivals"], TRAINING))
def test_a_clean_program_is_the_same(name: str, tmp_path: Path) -> None:
    assert_same(TRAINING[name], tmp_path)


def fault(program: str, name: str, kind: str, step: int) -> Fault:
    """A fault in one of the programs."""
    return Fault(
        f"{program}, {name}", python(f"training/{program}", name), kind, step, f"training/{program} SITE {name}"
    )


FAULTS = [
    # The optimizer of the judge steps first, which begins the next step.
    fault("rivals", "bit", "op", 4),
    fault("rivals", "noise", "rng", 0),
    fault("closures", "bit", "op", 1),
    fault("closures", "rate", "argument", 2),
    fault("mixed", "bit", "op", 2),
    fault("mixed", "recomputed", "op", 1),
    fault("copies", "average", "op", 2),
    fault("copies", "loaded", "op", 2),
    fault("kinds", "bit", "op", 1),
    fault("kinds", "fill", "uninitialized", 1),
]


@pytest.mark.parametrize("planted", only(["mixed, recomputed"], FAULTS))
def test_a_fault_is_located(planted: Fault, tmp_path: Path) -> None:
    assert_named(planted, tmp_path)
