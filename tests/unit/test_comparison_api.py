"""What a program can do with a comparison: test it, raise an error, and write the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import determinism
from determinism.errors import DeterminismError, DifferenceError, UsageError
from determinism.report.document import document
from determinism.report.html import page
from determinism.run_spec import RUN_VARIABLE
from determinism.session.enable import Patches
from tests.builders import WEIRD, make_comparison, make_crowded, make_different, make_inconclusive
from tests.html_structure import Page


def test_a_comparison_is_true_if_the_runs_are_the_same() -> None:
    assert make_comparison()
    assert not make_different()
    with pytest.raises(DeterminismError, match=r"There is no verdict. Inconclusive: Both runs failed\."):
        bool(make_inconclusive("Both runs failed."))


def test_a_difference_raises_with_the_report_as_the_message() -> None:
    make_comparison().raise_if_different()
    with pytest.raises(AssertionError) as caught:
        make_different().raise_if_different()
    assert isinstance(caught.value, DifferenceError)
    assert str(caught.value) == make_different().report().rstrip("\n")
    with pytest.raises(DeterminismError) as without:
        make_inconclusive("Both runs failed.").raise_if_different()
    assert not isinstance(without.value, AssertionError)


def test_the_report_is_text_and_has_every_detail_if_verbose() -> None:
    report, verbose = make_different().report(), make_different().report(verbose=True)
    assert report.startswith("Different: an operation gave different results")
    assert "\x1b" not in report and "-v" not in report
    assert verbose.startswith(report.rstrip("\n"))
    assert "  kind  " in verbose and "  kind  " not in report


def test_a_comparison_writes_the_page_and_the_document(tmp_path: Path) -> None:
    comparison = make_different()
    comparison.to_html(tmp_path / "r.html")
    comparison.to_json(str(tmp_path / "r.json"))
    assert (tmp_path / "r.html").read_text() == page(document(comparison))
    assert json.loads((tmp_path / "r.json").read_text()) == document(comparison)
    with pytest.raises(UsageError):
        comparison.to_html(tmp_path / "nowhere" / "r.html")


@pytest.mark.parametrize("text", ["something", "<script>alert(1)</script>", WEIRD])
def test_a_notebook_shows_the_summary_of_the_page(text: str) -> None:
    read = Page(make_crowded(text)._repr_html_())
    assert "an operation gave different results" in read.text
    assert "script" not in read.tags


@pytest.mark.parametrize(
    "comparison", [make_comparison(), make_different(), make_crowded("a\nb"), make_inconclusive("a\nb")]
)
def test_the_repr_of_a_comparison_is_one_line(comparison: determinism.Comparison) -> None:
    assert repr(comparison).startswith("<Comparison ")
    assert "\n" not in repr(comparison)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("set_seed", "seed"), ("seed_everything", "seed"), ("compar", "compare"), ("make_deterministic", "enable")],
)
def test_a_likely_guess_gets_a_suggestion(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'. Did you mean determinism\.{meant}\?"):
        getattr(determinism, name)


def test_a_likely_guess_in_the_state_module_gets_a_suggestion() -> None:
    with pytest.raises(AttributeError, match=r"Did you mean determinism\.state\.capture\(\.\.\.\)\.save\(path\)\?"):
        determinism.state.save  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"Did you mean determinism\.state\.capture\?"):
        determinism.state.captur  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'weather'$"):
        determinism.state.weather  # type: ignore[attr-defined]  # noqa: B018


def test_an_unrelated_name_gets_no_suggestion() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'quux_zyx'$"):
        determinism.quux_zyx  # type: ignore[attr-defined]  # noqa: B018


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(UsageError, match="master=-1 cannot name a stream of random numbers, so nothing was seeded"):
        determinism.seed(-1)
    with pytest.raises(UsageError, match="master=-1"):
        determinism.enable(seed=-1)


def test_a_step_outside_of_a_recording_warns_once(tmp_path: Path) -> None:
    # Libraries do this all the time; Python then forgets which warnings it has shown.
    quiet = "    with warnings.catch_warnings():\n        warnings.simplefilter('ignore')\n"
    program = f"import determinism, warnings\nfor _ in range(3):\n{quiet}    determinism.step()\ndeterminism.step()\n"
    environment = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
    plain, recorded = (
        subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
        for variables in (environment, {**environment, RUN_VARIABLE: "{}"})
    )
    assert plain.stderr.count("determinism.step() was called outside of a recording") == 1
    assert plain.stderr.startswith("<string>:5: UserWarning")
    assert recorded.stderr == ""


def test_patches_say_what_they_are() -> None:
    patches = Patches()
    assert "no framework" in repr(patches)
    patches.replaced, patches.waiting = {"torch": ["aten::index_add_"]}, ["tensorflow"]
    assert repr(patches) == "<Patches\ntorch: aten::index_add_\ntensorflow: waits for the import>"


def test_the_text_of_a_report_has_no_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in make_different().report(verbose=True)
