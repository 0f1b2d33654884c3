"""A setting that a program asks for and that cannot be made is in the report of `check`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.checking import check, check_command, command


def test_what_needs_a_fresh_process(tmp_path: Path) -> None:
    report = check(tmp_path, "enabling")

    assert report["verdict"] == "same"
    why = {one["name"]: one["why"] for one in report["open_settings"]}
    assert why["PYTHONHASHSEED"].startswith("needs a fresh process")


def test_nothing_is_open_where_it_was_set_in_time(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "determinism", "run", "--seed", "1", "--"]
    report = check_command(tmp_path, [*run, *command("enabling")]).report

    assert (report["verdict"], report["open_settings"]) == ("same", [])
