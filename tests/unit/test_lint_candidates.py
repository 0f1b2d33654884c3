"""Which experiments `check` makes first because lint reports their lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from determinism.diagnose.experiments import Hypothesis, Intervention
from determinism.diagnose.sources import LIBRARY_SEED, LedBy, Source, SourceSite
from determinism.lint import run
from determinism.lint.run import LintedCandidates, predicted_findings
from determinism.trace.opening import open_trace
from determinism.trace.process import Trace
from determinism.trace.schema import Frame
from tests.builders import make_different, make_divergence
from tests.traces import TraceBuilder

TEXT = """\
import os

tags = {"a", "b"}
print(", ".join(tags))
words = {word: number for number, word in enumerate(tags)}
seen = len(os.listdir("."))
names = [open(name) for name in os.listdir(".")]
first = names[0]
"""


def used(file: Path, line: int, cause: str, *, is_in_library: bool = False) -> Hypothesis:
    """A candidate for a source that was used at a line."""
    site = SourceSite(str(file), line, 0, line, 9, "main", "code()")
    source = Source("set-order", site, "main", "0", "MainThread", (1, 1), True, 0, (5, 5), ("1", "2"))
    return Hypothesis(
        cause, Intervention(), (site.frame,), source=replace(source, is_in_library=is_in_library, records_at_first=5)
    )


def linted(file: Path, recorded: tuple[int, str] = (3, 'tags = {"a", "b"}')) -> LintedCandidates:
    """The candidates that lint finds in a program with one recorded line."""
    site = Frame(str(file), recorded[0], "<module>", recorded[1])
    first = replace(make_divergence(site=site), stack=(site,))
    return LintedCandidates(make_different(first_divergence=first), [trace(file.parent)])


def trace(folder: Path) -> Trace:
    builder = TraceBuilder(folder / f"trace-{len(list(folder.iterdir()))}")
    builder.add("aten::add.Tensor", outputs=["a"])
    return open_trace(builder.close())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The program."""
    file = tmp_path / "train.py"
    file.write_text(TEXT, encoding="utf-8")
    return file


def test_a_line_counts_if_a_rule_for_the_same_cause_fires_there(file: Path) -> None:
    says = linted(file)
    named = {
        (line, cause)
        for line in range(1, 9)
        for cause in ("hash-order", "listing-order", "clock")
        if says(used(file, line, cause))
    }
    assert named == {(5, "hash-order"), (7, "listing-order")}
    assert says(used(file, 5, "address-order")), "only an experiment tells the two apart"


def test_a_rule_fires_in_a_file_on_the_stack_at_whichever_line(file: Path) -> None:
    assert linted(file).fires("hash-order")
    assert not linted(file).fires("seed-missing-numpy")
    assert not linted(file, recorded=(3, "something else")).fires("hash-order"), "the file has changed since it ran"


def test_library_lines_and_factors_without_a_line_are_not_considered(file: Path) -> None:
    says = linted(file)
    assert not says(used(file, 5, "hash-order", is_in_library=True))
    assert not says(Hypothesis("hash-order", Intervention.fix("hash-seed"), (Frame(str(file), 5, "f", ""),)))


def test_what_a_library_does_is_considered_at_the_line_that_led_there(file: Path) -> None:
    file.write_text(
        TEXT + "import gymnasium\nenvironment = gymnasium.make('CartPole-v1')\nenvironment.reset()\n", encoding="utf-8"
    )
    library = used(file.parent / "site-packages" / "gymnasium.py", 1, LIBRARY_SEED, is_in_library=True)
    assert library.source is not None
    for line, is_named in ((10, False), (11, True)):
        led = LedBy(SourceSite(str(file), line, 0, line, 9, "main", "code()"), "seed")
        assert linted(file)(replace(library, source=replace(library.source, led_by=(led,)))) == is_named


def test_a_missing_seed_found_by_lint_is_likely_at_any_line(file: Path) -> None:
    file.write_text(TEXT + "import numpy\nrows = numpy.random.permutation(8)\nprint(rows)\n", encoding="utf-8")
    at_another_line = (Frame(str(file), 3, "<module>", 'tags = {"a", "b"}'),)
    says = linted(file)
    assert says(Hypothesis("seed-missing-numpy", Intervention.fix("numpy-seed"), at_another_line))
    assert not says(Hypothesis("seed-missing-python", Intervention.fix("python-seed"), at_another_line))


def test_a_suppressed_finding_is_not_tried_first(file: Path) -> None:
    file.write_text(TEXT.replace("enumerate(tags)}", "enumerate(tags)}  # determinism: ignore[hash-order]"))
    assert not linted(file)(used(file, 5, "hash-order"))


def test_a_file_changed_after_the_run_is_not_considered(file: Path) -> None:
    assert not linted(file, (3, "tags = sorted(names)"))(used(file, 5, "hash-order"))


def test_unreadable_and_long_files_are_not_considered(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not linted(file)(used(tmp_path / "none.py", 5, "hash-order"))
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n", encoding="utf-8")
    assert not linted(file)(used(broken, 1, "hash-order"))
    monkeypatch.setattr(run, "_MOST_LINES", 5)
    assert not linted(file)(used(file, 5, "hash-order"))


def test_a_faulty_rule_does_not_end_a_check(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: object) -> None:
        raise KeyError("a rule is wrong")

    monkeypatch.setattr("determinism.lint.order.findings", fail)
    assert not linted(file)(used(file, 5, "hash-order"))


def test_each_file_is_read_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr(run, "findings_of", lambda module: read.append(module) or [])
    says = linted(file)
    assert not any(says(used(file, line, "hash-order")) for line in range(1, 9))
    assert len(read) == 1


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("import torch\nx = torch.rand(2)\nprint(x)\n", ["seed-missing-torch"]),
        ("import torch\ntorch.manual_seed(0)\nx = torch.rand(2)\nprint(x)\n", []),
        ("import os\nfirst = open(os.listdir('.')[0])\n", []),
        ("import torch\nx = torch.rand(2)  # determinism: ignore\nprint(x)\n", []),
        ("def f(:\n", []),
    ],
    ids=["unseeded", "seeded", "may-differ-only", "suppressed", "not-python"],
)
def test_certain_differences_are_predicted_before_any_run(text: str, rules: list[str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert [finding.rule for finding in predicted_findings(script, has_fixed_hashes=False, is_seeded=False)] == rules


def test_findings_settled_from_outside_are_not_predicted(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import random, torch\nx = torch.rand(2)\ny = list({'a', 'b'})[0]\nr = random.Random()\ntorch.save(r.random(), 'z')\nprint(x, y)\n"
    )

    def found(**settled: bool) -> list[str]:
        return [
            one.rule for one in predicted_findings(script, **{"has_fixed_hashes": False, "is_seeded": False, **settled})
        ]

    assert found() == ["seed-missing-torch", "hash-order", "generator-unseeded"]
    assert found(has_fixed_hashes=True) == ["seed-missing-torch", "generator-unseeded"]
    assert found(is_seeded=True) == ["hash-order", "generator-unseeded"]
