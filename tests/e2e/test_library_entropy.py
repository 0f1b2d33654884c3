"""A library that seeds itself from the operating system is named, with the line of the program that led there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.e2e.checking import check_command
from tests.e2e.running import ENVIRONMENT

LIBRARY = """
import numpy


class Sampler:
    def __init__(self, seed=None):
        self._generator = numpy.random.RandomState(seed)

    def suggest(self, low, high):
        return int(self._generator.randint(low, high))
"""
PROGRAM = """
import sys
import torch
from samplers import Sampler

torch.manual_seed(0)
sampler = Sampler(*map(int, sys.argv[1:]))
layer = torch.nn.Linear(2, sampler.suggest(4, 1_000_000))
print(layer(torch.ones(1, 2)).sum().item())
"""


def checked(folder: Path, *seed: str) -> dict[str, Any]:
    library = folder / "site-packages" / "samplers"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(LIBRARY)
    (folder / "search.py").write_text(PROGRAM)
    environment = {**(ENVIRONMENT or os.environ), "PYTHONPATH": str(library.parent)}
    command = [sys.executable, "search.py", *seed]
    return check_command(folder, command, options=("--budget", "600"), environment=environment).report


def test_the_librarys_frame_and_the_line_that_led_there_are_named(tmp_path: Path) -> None:
    report = checked(tmp_path)
    (cause,) = report["causes"]
    assert (cause["id"], cause["status"]) == ("outside-entropy", "confirmed")
    places = [(Path(site["file"]).name, site["code"], site["function"]) for site in cause["sites"][:2]]
    assert places[0][:2] == ("search.py", "sampler = Sampler(*map(int, sys.argv[1:]))")
    assert places[1][0] == "__init__.py" and places[1][2] == "Sampler.__init__"


def test_a_library_with_a_seed_is_the_same(tmp_path: Path) -> None:
    assert checked(tmp_path, "3")["verdict"] == "same"
