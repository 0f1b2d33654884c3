"""A setting that a program requests but that cannot be applied is in the report of `check`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.checking import check, check_command, command


def test_a_setting_that_needs_a_fresh_process_is_open(tmp_path: Path) -> None:
    report = check(tmp_path, "enabling")

    assert report["verdict"] == "same"
    why = {one["name"]: one["why"] for one in report["open_settings"]}
    assert why["PYTHONHASHSEED"].startswith("needs a fresh process")


def test_no_setting_is_open_if_all_were_applied_in_time(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "determinism", "run", "--seed", "1", "--"]
    report = check_command(tmp_path, [*run, *command("enabling")]).report

    assert (report["verdict"], report["open_settings"]) == ("same", [])
