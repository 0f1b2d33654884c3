"""An op that varies inside a function compiled by XLA is reported with its line; nothing is reported if nothing varies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.checking import PROGRAMS, check_command, line
from tests.e2e.running import ENVIRONMENT

PROGRAM = "tensorflow/racing_call"


@pytest.mark.parametrize(
    "how", ["looped", pytest.param("within", marks=pytest.mark.thorough("tensorflow")), pytest.param("plain", marks=pytest.mark.thorough("tensorflow"))]
)  # fmt: skip
def test_the_op_that_varies_is_reported_with_its_line(how: str, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAMS / f"{PROGRAM}.py"), how]
    report = check_command(tmp_path, command, options=("--budget", "1"), environment=ENVIRONMENT).report

    first = report["first_divergence"]
    assert (report["verdict"], first["kind"], first["inputs_equal"]) == ("different", "op", True)
    # Inside another function, the record has the line that calls the compiled function there.
    assert first["site"]["code"].startswith("return step(" if how == "within" else "loss = ")
    assert max(output["distinct"] for output in first["outputs"] if output["distinct"]) > 1
    inside = first["inside"]
    assert (inside["op"], inside["functions"]) == (
        "tf::XlaCustomCall[add_in_any_order]",
        ["while"] if how == "looped" else [],
    )
    assert inside["site"]["line"] == line(PROGRAM, "SITE race")
    assert any("XLA fuses less" in one["text"] for one in report["story"] if one["label"] == "detail")


@pytest.mark.thorough("tensorflow")
def test_the_stable_variant_is_the_same(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAMS / f"{PROGRAM}.py"), "stable"]
    report = check_command(tmp_path, command, options=("--budget", "1"), environment=ENVIRONMENT).report

    assert (report["verdict"], report["first_divergence"]) == ("same", None)
    assert [one["id"] for one in report["recorded"]["blind_spots"]] == ["xla"]
