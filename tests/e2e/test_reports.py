"""The reports of real programs: the contents of the page after a check, and names that contain markup."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from determinism.types import Verdict
from tests.conftest import MadeOnce
from tests.e2e.commands import Finished, check, run
from tests.html_structure import Page

TRAINING = """
import random, torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential()
model.add_module({name!r}, nn.Linear(4, 4))
model.add_module("head", nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    inputs = torch.ones(2, 4)
    if step == 3:
        inputs = inputs + random.SystemRandom().uniform(1, 2)  # another in every run
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LINE = "inputs = inputs + random.SystemRandom().uniform(1, 2)  # another in every run"
ATTACK = "<script>alert(1)<\\script><img src=x onerror=alert(1)>]]>\"'&"
FILES = ["--html", "report.html", "--junit", "report.xml", "--annotate"]


@pytest.fixture(scope="module", autouse=True)
def _github() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GITHUB_ACTIONS", "true")
        patch.delenv("GITHUB_STEP_SUMMARY", raising=False)
        yield


def checked(folder: Path, name: str, file: str) -> Finished:
    (folder / file).write_text(TRAINING.format(name=name), encoding="utf-8")
    return check(folder, "--no-explain", *FILES, "--", sys.executable, folder / file)


@pytest.fixture
def plain(made_once: MadeOnce) -> tuple[Path, Finished]:
    def fill(folder: Path) -> None:
        finished = checked(folder, "body", "train.py")
        (folder / "output").write_bytes(finished.stdout)

    folder = made_once("reports", fill)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return folder, Finished(Verdict(report["verdict"]).exit_status, (folder / "output").read_bytes(), "", report)


def report_of(finished: Finished) -> dict[str, Any]:
    assert finished.report is not None
    return finished.report


def test_the_document_holds_the_data_for_charts(plain: tuple[Path, Finished]) -> None:
    report = report_of(plain[1])
    assert report["compared_runs"] == [1, 2]
    spans = report["divergence_by_step"]
    assert [span["different"] > 0 for span in spans if span["step"] < 6] == [False] * 3 + [True] * 3
    assert [loss["first"] == loss["second"] for loss in report["losses"]] == [True] * 3 + [False] * 3
    origin = [node for node in report["dataflow"]["nodes"] if node["distance"] == 0]
    assert [node["op"] for node in origin] == [report["first_divergence"]["op"]]
    assert any(node["distance"] == 1 and node["differs"] for node in report["dataflow"]["nodes"])


def test_the_page_shows_the_line_with_its_neighbours(plain: tuple[Path, Finished]) -> None:
    text = (plain[0] / "report.html").read_text(encoding="utf-8")
    hit = text.partition('<span class="line hit">')[2].partition("</span></span>")[0]
    assert LINE.split("#")[0].strip() in Page(f"<p>{hit.partition('</span>')[2].partition('</span>')[0]}</p>").text
    assert "for step in range(6):" in Page(text).text
    for absent in ("was not counted", "are not known", "only recording at level op"):
        assert absent not in text


def test_other_reports_have_the_same_verdict(plain: tuple[Path, Finished]) -> None:
    folder, finished = plain
    assert Xml.parse(folder / "report.xml").getroot().get("failures") == "1"
    annotations = [line for line in finished.stdout.decode().splitlines() if line.startswith("::error")]
    assert annotations[0].startswith("::error file=train.py,line=13,title=determinism%3A different::Different: ")


def test_a_stored_report_gives_the_same_page_again(plain: tuple[Path, Finished]) -> None:
    folder, _ = plain
    assert run(folder, "report", "report.json", "--html", "again.html").status == 0
    assert (folder / "again.html").read_bytes() == (folder / "report.html").read_bytes()


def test_names_of_modules_and_files_are_escaped(plain: tuple[Path, Finished], tmp_path: Path) -> None:
    finished = checked(tmp_path, ATTACK, "<img src=x onerror=alert(1)>&quot;.py")
    report = report_of(finished)
    assert any(ATTACK in (node["module"] or "") for node in report["dataflow"]["nodes"])
    attacked, usual = (Page((folder / "report.html").read_text(encoding="utf-8")) for folder in (tmp_path, plain[0]))
    assert ATTACK in attacked.text
    assert not {"script", "img"} & set(attacked.tags)
    assert set(attacked.tags) == set(usual.tags)
    assert not [name for _, name, _ in attacked.attributes if name.startswith("on")]
    assert Xml.parse(tmp_path / "report.xml").getroot().get("failures") == "1"
    assert b"\n::error file=<img src=x onerror=alert(1)>&quot;.py,line=13," in finished.stdout


def test_a_check_at_a_coarser_level_states_what_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING.format(name="body"), encoding="utf-8")
    finished = check(tmp_path, "--level", "step", *FILES, "--", sys.executable, "train.py")
    report = report_of(finished)
    assert report["dataflow"] is None
    assert [loss["step"] for loss in report["losses"]] == list(range(6))
    assert "values are followed at level op" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_equal_runs_have_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        TRAINING.format(name="body").replace("random.SystemRandom()", "random.Random(7)"), encoding="utf-8"
    )
    assert check(tmp_path, *FILES, "--", sys.executable, "train.py").status == 0
    read = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "same" in read.text and "The losses are equal at all 6 steps at which they are known." in read.text
