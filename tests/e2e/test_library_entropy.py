"""A library that seeds itself from the operating system is named, with the line of the program that led there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from textwrap import dedent
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


STUDIES = {
    "samplers.py": """
        import numpy

        class TPESampler:
            def __init__(self, seed=None):
                self.numbers = numpy.random.RandomState(seed)
        """,
    "study/study.py": """
        from optuna.samplers import TPESampler

        class Study:
            def __init__(self, sampler):
                self.sampler = sampler

            def suggest(self, low, high):
                return int(self.sampler.numbers.randint(low, high))

        def create_study(*, direction=None, sampler=None, directions=None):
            return Study(sampler or TPESampler())
        """,
    "study/__init__.py": "from optuna.study.study import create_study",
    "__init__.py": """
        from optuna import samplers
        from optuna.study import create_study
        """,
}
"""As Optuna: the function that makes a study takes no seed, but a sampler that has one."""
OF_A_STUDY = """
import optuna
import torch

torch.manual_seed(0)
study = optuna.create_study(direction="minimize")
layer = torch.nn.Linear(2, study.suggest(4, 1_000_000))
print(layer(torch.ones(1, 2)).sum().item())
"""


def checked(folder: Path, *seed: str) -> dict[str, Any]:
    return checked_with(folder, "samplers", {"__init__.py": LIBRARY}, PROGRAM, *seed)


def checked_with(folder: Path, name: str, library: dict[str, str], program: str, *seed: str) -> dict[str, Any]:
    packages = folder / "site-packages"
    for file, text in library.items():
        (packages / name / file).parent.mkdir(parents=True, exist_ok=True)
        (packages / name / file).write_text(dedent(text))
    (folder / "search.py").write_text(program)
    environment = {**(ENVIRONMENT or os.environ), "PYTHONPATH": str(packages)}
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


def test_a_study_of_optuna_gets_a_sampler_with_a_seed(tmp_path: Path) -> None:
    report = checked_with(tmp_path, "optuna", STUDIES, OF_A_STUDY)
    (cause,) = report["causes"]
    assert (cause["id"], cause["status"]) == ("outside-entropy", "confirmed")
    fix = report["fixes"][0]
    assert 'create_study(direction="minimize", sampler=optuna.samplers.TPESampler(seed=0))' in fix["code"]
    assert fix["verified"]


def test_no_sampler_is_chosen_for_a_study_with_several_objectives(tmp_path: Path) -> None:
    several = OF_A_STUDY.replace('direction="minimize"', 'directions=["minimize", "maximize"]')
    report = checked_with(tmp_path, "optuna", STUDIES, several)
    assert report["causes"][0]["id"] == "outside-entropy"
    assert "TPESampler" not in str(report["fixes"])
