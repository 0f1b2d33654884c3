"""Likely causes in programs that call libraries, whose files are read as far as the program is seen to use them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from determinism.diagnose.experiments import Hypothesis
from determinism.diagnose.hypotheses import likely_hypotheses
from determinism.trace.opening import open_trace
from determinism.trace.schema import Frame
from determinism.types import Kind
from tests.builders import make_different, make_divergence
from tests.traces import TraceBuilder

LIBRARY = """
import glob, random
import numpy as np
from . import seeds

KEYS = {"a", "b"}

def rows(number):
    options = {key: 1 for key in KEYS & set("abc")}
    return sampled(number, options), glob.glob("*")

def sampled(number, options):
    return random.sample(range(99), number)
"""


@pytest.mark.parametrize(
    ("ran", "seeds", "cause"),
    [
        ("rows", "", None),
        ("sampled", "", "seed-missing-python"),
        # The program may have the library seed: no op shows that it did.
        ("sampled", "import random\n\ndef everything():\n    random.seed(0)\n\neverything\n", None),
    ],
)
def test_in_libraries_only_draws_of_functions_that_ran_are_likely(
    ran: str, seeds: str, cause: str | None, tmp_path: Path
) -> None:
    package = tmp_path / "lib" / "site-packages" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY, encoding="utf-8")
    (package / "seeds.py").write_text(seeds, encoding="utf-8")
    used = "x = torch.tensor(package.rows(3)[0])"
    (tmp_path / "train.py").write_text(f"import package\n{used}\n", encoding="utf-8")
    line = next(number for number, text in enumerate(LIBRARY.splitlines(), 1) if f"def {ran}" in text) + 1
    frames = (
        Frame(str(tmp_path / "train.py"), 2, "<module>", used),
        Frame(str(package / "__init__.py"), line, f"Package.{ran}", LIBRARY.splitlines()[line - 1].strip()),
    )
    builder = TraceBuilder(tmp_path / "trace", framework="torch")
    builder.add("aten::lift_fresh", outputs=["a"], site=(frames[0].file, frames[0].line))
    trace = open_trace(builder.close())
    divergence = replace(
        make_divergence(kind=Kind.DATA, site=frames[0], op="aten::lift_fresh", outputs=()), stack=frames
    )
    found = likely_hypotheses(make_different(first_divergence=divergence), [trace])
    assert [one.cause for one in found] == [cause] * (cause is not None)
    # The program itself may be installed.
    installed = replace(divergence, site=frames[1], stack=frames[::-1])
    (own,) = likely_hypotheses(make_different(first_divergence=installed), [trace])
    assert own.cause == (cause or "hash-order")


SEEDING = """
import os
import torch

def everything(seed=None):
    if seed is None:
        seed = os.environ.get("SEED", 0)
    torch.manual_seed(int(seed))

REGISTRY = {}

def GET(key, default=None):
    return REGISTRY.get(key, default)

def wrapped(loader):
    return GET("wrapper", loader)
"""


@pytest.mark.parametrize("named", ["get", "found"])
@pytest.mark.parametrize("is_library", [True, False])
def test_a_seed_of_the_environment_is_not_taken_for_what_a_function_of_the_same_name_returns(
    is_library: bool, named: str, tmp_path: Path
) -> None:
    folder = tmp_path / "lib" / "site-packages" / "package" if is_library else tmp_path / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from . import seeds\n\nseeds.everything\n", encoding="utf-8")
    (folder / "seeds.py").write_text(SEEDING.replace("GET", named), encoding="utf-8")
    text = (
        "import tempfile, torch\nfrom package import seeds\n"
        "loader = seeds.wrapped(tempfile.mkdtemp().strip())\nx = torch.rand(2)\n"
    )
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    frames = (
        Frame(str(tmp_path / "train.py"), 4, "<module>", "x = torch.rand(2)"),
        Frame(str(folder / "__init__.py"), 3, "<module>", "seeds.everything"),
    )
    assert _of_rng(frames, tmp_path) == []


@pytest.mark.parametrize(("value", "causes"), [("7", []), ("time.time()", ["seed-varies"])])
def test_a_seed_that_the_program_passes_to_a_library_is_followed_to_its_origin(
    value: str, causes: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "lib" / "site-packages" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from . import seeds\n\nseeds.everything\n", encoding="utf-8")
    (folder / "seeds.py").write_text(SEEDING.replace("GET", "get"), encoding="utf-8")
    text = f"import time, torch\nfrom package import seeds\nseeds.everything({value})\nx = torch.rand(2)\n"
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    frames = (
        Frame(str(tmp_path / "train.py"), 4, "<module>", "x = torch.rand(2)"),
        Frame(str(folder / "__init__.py"), 3, "<module>", "seeds.everything"),
    )
    found = _of_rng(frames, tmp_path)
    assert [one.cause for one in found] == causes
    assert all((frames[0].file, 3) in {(site.file, site.line) for site in one.sites} for one in found)


def _of_rng(frames: tuple[Frame, ...], folder: Path) -> list[Hypothesis]:
    """Likely causes where PyTorch's generator is in a different state at the first frame."""
    builder = TraceBuilder(folder / "trace", framework="torch")
    builder.add("aten::rand", outputs=["a"], site=(frames[0].file, frames[0].line))
    trace = open_trace(builder.close())
    divergence = replace(
        make_divergence(kind=Kind.RNG, site=frames[0], op="aten::rand", outputs=()), stack=frames, module=None
    )
    return likely_hypotheses(make_different(first_divergence=divergence), [trace])
