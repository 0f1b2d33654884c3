"""The HTML page: its contents, and that it stays intact whatever the document holds."""

from __future__ import annotations

import base64
import difflib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from determinism.comparison.result import Missing, ResumeFindings
from determinism.diagnose.checkpoints import PARTS
from determinism.report.document import document
from determinism.report.entries import answer
from determinism.report.html import page, patch_command, patch_text
from determinism.report.story import story_document
from tests.builders import WEIRD, make_comparison, make_different, make_frame, make_inconclusive, make_varied
from tests.documents import flooded, make_batch, make_cause, make_fix, make_full_document, make_place
from tests.html_structure import Page

VARIED = dict(make_varied())

SECTIONS = [
    "story", "causes", "fixes", "spread", "losses", "dataflow", "values", "environment", "runs", "blind-spots",
]  # fmt: skip

ATTACKS = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    '" onmouseover="alert(1)',
    "javascript:alert(1)",
    "</svg><svg onload=alert(1)>",
    "<!--",
    "-->",
    "]]><script>alert(1)</script>",
    "{{ 7 * 7 }}{% for x in y %}",
    "&lt;script&gt;",
    "<iframe src=//example.org>",
    "\x00<script\x00>alert(1)",
    "<base href=//example.org>",
    "url(//example.org/x)",
]


def sections(read: Page) -> list[str]:
    return [value for tag, name, value in read.attributes if tag == "section" and name == "id"]


def test_everything_that_a_report_may_show_has_its_section() -> None:
    assert sections(Page(page(make_full_document()))) == SECTIONS


@pytest.mark.parametrize("name", VARIED)
def test_every_report_makes_a_complete_page(name: str) -> None:
    read = Page(page(document(VARIED[name])))
    assert read.tags.count("h1") == 1
    assert read.text.strip()


def test_the_verdict_comes_first() -> None:
    for found, verdict in (
        (make_comparison(), "same 2 runs, 10 steps, 1,234 records, every tensor bit-identical"),
        (
            make_different(),
            "different An operation gave different results from equal inputs at step 3, /home/ada/project/train.py:17",
        ),
        (make_inconclusive("Both runs failed."), "inconclusive Both runs failed."),
    ):
        read = Page(page(document(found)))
        assert verdict in read.text
        assert read.text.index(verdict) < read.text.index("Environment")


def test_the_source_line_is_shown_with_its_neighbours() -> None:
    text = page(make_full_document())
    hit = re.findall(r'<span class="line hit">(.*?)</span><span class="line">', text)
    assert hit[0] == '<span class="line-number">17</span>        x = self.embedding(tokens)'
    assert "# embed them" in text


def test_a_missing_part_of_a_checkpoint_is_in_the_answer_and_stated_once() -> None:
    frame = make_frame(9, code="torch.save(model.state_dict(), path)")
    found = make_different(resume=ResumeFindings([Missing("scheduler", frame, "Save scheduler.state_dict() too.")]))
    read = Page(page(document(found)))
    assert read.text.count("Save scheduler.state_dict() too.") == 1
    answer, _, after = read.text.partition("What happened")
    assert f"not saved {PARTS['scheduler'].title} Save scheduler.state_dict() too." in answer
    assert "torch.save(model.state_dict(), path)" in answer
    assert "What the checkpoint lacks scheduler" in after
    assert {"spread", "losses"}.isdisjoint(sections(read))


def test_without_its_file_a_place_shows_its_own_line() -> None:
    text = page(document(make_different()))
    assert '<span class="line-number">17</span>x = self.embedding(tokens)' in text
    assert "# embed them" not in text


def test_causes_and_fixes_come_with_their_evidence() -> None:
    read = Page(page(make_full_document()))
    for expected in (
        "confirmed An op whose threads add in any order",
        "100 repeats on equal inputs gave 37 distinct results.",
        "threads fixed 3 4.5 s yes the difference went away",
        "verified Compute with one thread OMP_NUM_THREADS=1",
        "The program ran with it 3 times and was bit-identical.",
        "not verified Sort it. for name in sorted(names): x",
        "No run has shown that it helps.",
    ):
        assert expected in read.text


def test_experiments_and_the_limits_of_the_causes_are_listed() -> None:
    read = Page(page(make_full_document()))
    for expected in (
        "They differ with these factors perturbed on purpose: memory, schedule.",
        "The budget was used up.",
        "Experiments Factor",
        "listing order fixed 2 3.0 s not known the difference stayed",
    ):
        assert expected in read.text


def test_the_environment_of_the_first_run_is_shown() -> None:
    read = Page(page(make_full_document()))
    assert "Environment of run 1: Python 3.12.1, torch 2.13.0, A processor gpus none" in read.text


def test_values_come_with_their_places() -> None:
    read = Page(page(make_full_document()))
    for expected in (
        "float32 [1024, 512] on cuda:0 524,288 37 (0.00706 %) 1.19e-07 3 37 in 100 runs of the op",
        "The values are those of repeats of the op on equal inputs, within one run.",
        "1 with one thread; 2 at varied alignments.",
        "They lie within [3, 0 to 511] .",
        "One repeat Another [3, 17] 0.1 0.10000001",
        "python /home/ada/project/.determinism/evidence/reproduce.py",
        "Output 1 was not kept.",
    ):
        assert expected in read.text


def test_values_of_two_further_runs_are_labelled_as_such() -> None:
    found = make_full_document()
    found["evidence"]["source"] = "runs"
    read = Page(page(found))
    assert "The values are those of two further runs." in read.text
    assert "One run Another [3, 17]" in read.text


def test_rows_in_batches_have_their_section() -> None:
    read = Page(page({**make_full_document(), "batch": make_batch()}))
    for expected in (
        "60 rows went into the model in batches of two sizes or more, and were compared at 12 places of the program.",
        "Of the 60 that went into the first op that differs, 7 came out different in batches of 1 and 8.",
        "The results of the whole model differed for equal rows.",
        "norm BatchNorm1d",
        "rows still differed Pad each batch",
    ):
        assert expected in read.text


def test_the_page_begins_with_the_terminal_report() -> None:
    found = make_full_document()
    top = Page(page(found)).text.partition("What happened")[0]
    for entry in found["story"]:
        assert entry["is_detail"] or " ".join(entry["text"].split()) in top
    assert "fix.patch" not in top


def test_a_fix_is_one_block_to_select_and_a_file_to_save() -> None:
    diff = "--- train.py\n+++ train.py\n@@ -1 +1,2 @@\n import torch\n+torch.manual_seed(0)"
    found = make_full_document()
    found["fixes"][0]["patch"] = diff
    found["story"] = story_document(answer(found))
    text = page(found)
    (block,) = re.findall(r'<pre class="code copy diff">(.*?)</pre>', text, re.DOTALL)
    assert re.sub(r"<[^>]*>", "", block).split() == diff.split()
    (address,) = re.findall(r'<a download="fix.patch" href="data:text/x-diff;charset=utf-8;base64,([^"]*)">', text)
    assert base64.b64decode(address).decode() == f"{diff}\n"
    assert "<code>patch -p0 &lt; fix.patch</code>" in text
    found["fixes"][0]["verified"] = False
    assert "download" not in page(found)


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
def test_the_command_for_a_patch_of_a_file_elsewhere_applies_it(tmp_path: Path) -> None:
    program = tmp_path / "elsewhere" / "train.py"
    program.parent.mkdir()
    program.write_text("import torch\n", encoding="utf-8")
    found = make_full_document()
    found["fixes"][0]["patch"] = f"--- {program}\n+++ {program}\n@@ -1 +1,2 @@\n import torch\n+torch.manual_seed(0)"
    here = tmp_path / "here"
    here.mkdir()
    (here / "fix.patch").write_text(patch_text(found), encoding="utf-8")
    subprocess.run(patch_command(found), shell=True, cwd=here, check=True)
    assert program.read_text(encoding="utf-8") == "import torch\ntorch.manual_seed(0)\n"


PROGRAM = [
    *(f"import {name}" for name in ("os", "random", "numpy", "torch")),
    "",
    *(f"x{at} = {at}" for at in range(9)),
]


def diff_to(*after: str) -> str:
    lines = difflib.unified_diff(PROGRAM, list(after), "train.py", "train.py", n=3, lineterm="")
    return "\n".join(lines)


def applied(diffs: list[str], folder: Path) -> list[str]:
    """Apply the file of diffs with git, which tolerates no displaced line, and return the program."""
    found = make_full_document()
    found["fixes"] = [{**found["fixes"][0], "patch": diff, "verified": True} for diff in diffs]
    (folder / "train.py").write_text("".join(f"{line}\n" for line in PROGRAM), encoding="utf-8")
    (folder / "fix.patch").write_text(patch_text(found), encoding="utf-8")
    command = ["git", "apply", "-p0", "fix.patch"]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)})
    return (folder / "train.py").read_text(encoding="utf-8").splitlines()


def test_diffs_of_one_file_are_merged_into_one_that_makes_all_changes(tmp_path: Path) -> None:
    begin, rest = PROGRAM[:4], PROGRAM[4:]
    seeds = [diff_to(*begin, "", f"{library}.seed(0)", *rest) for library in ("random", "numpy.random")]
    line = diff_to(*PROGRAM[:7], "x2 = sorted(set(x1))", "x2 += 1", *PROGRAM[8:])
    far = diff_to("import math", *PROGRAM[:-1])
    assert applied([*seeds, line, far], tmp_path) == [
        "import math", *begin, "", "random.seed(0)", "", "numpy.random.seed(0)", "", "x0 = 0", "x1 = 1",
        "x2 = sorted(set(x1))", "x2 += 1", *PROGRAM[8:-1],
    ]  # fmt: skip


def test_the_same_lines_of_two_fixes_are_inserted_once(tmp_path: Path) -> None:
    begin, rest = PROGRAM[:4], PROGRAM[4:]
    one = diff_to(*begin, "import determinism", *rest[:3], "determinism.patch()", *rest[3:])
    other = diff_to(*begin, "import determinism", *rest[:5], "determinism.enable()", *rest[5:])
    wanted = [
        *begin,
        "import determinism",
        *rest[:3],
        "determinism.patch()",
        *rest[3:5],
        "determinism.enable()",
        *rest[5:],
    ]
    assert applied([one, other], tmp_path) == wanted


def test_diffs_that_change_one_line_in_two_ways_stay_apart() -> None:
    found = make_full_document()
    diffs = [diff_to(*PROGRAM[:-1], f"x8 = {value}") for value in (80, 88)]
    found["fixes"] = [{**found["fixes"][0], "patch": diff, "verified": True} for diff in diffs]
    assert patch_text(found) == f"{diffs[0]}\n{diffs[1]}\n"


def test_commands_are_quoted_for_a_shell() -> None:
    found = make_full_document()
    found["runs"][0]["command"] = ["python", "train.py", "--model", "mean of texts"]
    assert page(found).count("python train.py --model &#39;mean of texts&#39;</code>") == 2


def test_the_next_command_to_run_can_be_copied_as_one_block() -> None:
    found = {
        **make_full_document(),
        "diagnosis": "No cause was searched for.\ndeterminism check --explain -- python train.py",
    }
    assert '<pre class="code copy">determinism check --explain -- python train.py</pre>' in page(found)


@pytest.mark.parametrize(
    ("headline", "heading"),
    [
        ("Different: random numbers differ at step 2", "Random numbers differ at step 2"),
        ("Different: the runs diverge", "The runs diverge"),
        ("Different: index_put varies on equal inputs", "index_put varies on equal inputs"),
        ("Inconclusive: run-2/manifest.json holds no JSON", "run-2/manifest.json holds no JSON"),
        ("Same: 2 runs, 3 steps", "2 runs, 3 steps"),
    ],
)
def test_the_heading_begins_with_a_capital_unless_it_begins_with_a_name(headline: str, heading: str) -> None:
    assert f"<h1>{heading}</h1>" in page({**make_full_document(), "headline": headline})


def test_a_missing_part_of_a_checkpoint_is_the_cause_and_its_fix_claims_no_uncounted_runs() -> None:
    missing = [Missing("rng-torch", None, "Save it.")]
    found = document(make_different(first_divergence=None, resume=ResumeFindings(missing=missing)))
    found["fixes"] = [make_fix(runs=0, verified=True)]
    read = Page(page(found))
    assert "not saved" in read.text.partition("What happened")[0]
    assert {"missing", "causes"}.isdisjoint(sections(read))
    assert "Further runs with it were bit-identical." in read.text
    assert "0 times" not in read.text


def test_dark_colours_are_for_screens_only() -> None:
    styles = page(make_full_document())
    assert re.findall(r"@media ([^{]*dark[^{]*) \{", styles) == ["screen and (prefers-color-scheme: dark)"]


def test_a_cause_elsewhere_shows_its_own_line() -> None:
    found = make_full_document()
    found["causes"] = [make_cause(status="likely", sites=[make_place(99, "for x in {1, 2}:")], experiments=[])]
    found["fixes"] = [make_fix(step_time_ratio=None)]
    read = Page(page(found))
    assert "for x in {1, 2}:" in read.text
    assert "Experiments Factor Was" not in read.text.partition("Causes")[2].partition("Experiments")[0]
    assert "times as long" not in read.text


def test_unknown_facts_are_stated_as_such() -> None:
    read = Page(page(document(make_different())))
    for expected in (
        "How many records differ in each step was not counted.",
        "The values of the losses are not known",
        "values are followed at level op, and only where records have an order",
        "No cause was searched for: no further runs of the program were made.",
    ):
        assert expected in read.text


def test_equal_runs_have_no_sections_of_differences() -> None:
    assert sections(Page(page(document(make_comparison())))) == ["environment", "runs", "blind-spots"]


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_string_becomes_markup(attack: str) -> None:
    plain, attacked = Page(page(flooded("harmless"))), Page(page(flooded(attack)))
    assert attacked.tags == plain.tags
    assert [(tag, name) for tag, name, _ in attacked.attributes] == [(tag, name) for tag, name, _ in plain.attributes]
    assert "script" not in attacked.tags
    assert not [name for _, name, _ in attacked.attributes if name.startswith("on")]


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_string_reaches_an_active_attribute(attack: str) -> None:
    for tag, name, value in Page(page(flooded(attack))).attributes:
        if name in ("href", "src", "style", "class", "id", "http-equiv", "d", "points", "marker-end"):
            assert "alert" not in value and "example" not in value, (tag, name, value)


def test_strings_are_shown_as_they_are() -> None:
    read = Page(page(flooded("<b>&amp; 'x' \"y\"")))
    assert "<b>&amp; 'x' \"y\"" in read.text


def test_control_characters_become_visible() -> None:
    text = page(flooded(WEIRD))
    assert not set(text) & {"\x1b", "\u202e", "\x07", "\r", "\udce9", "\x9b"}
    assert "\\u202e" in text


def test_very_long_strings_are_cut() -> None:
    text = page(flooded("x" * 100_000))
    assert "… (95,000 more characters)" in text
    assert "x" * 5001 not in text


def test_uncounted_steps_are_mentioned() -> None:
    found = make_full_document()
    assert "were not counted" not in page(found)
    found["recorded"]["steps"] = 500
    assert "Steps after 9 were not counted." in Page(page(found)).text


@pytest.mark.parametrize("name", ["full", "attacked"])
def test_nothing_is_loaded(name: str) -> None:
    read = Page(page(make_full_document() if name == "full" else flooded("https://example.org/x.js")))
    links = {(tag, name, value) for tag, name, value in read.attributes if name in ("href", "src", "srcset", "action")}
    within = {("a", "href", f"#{section}") for section in ("blind-spots",)}
    assert links == {("link", "href", "data:,"), *within}
    assert not {"script", "img", "iframe", "object", "embed", "form", "base"} & set(read.tags)
    styles = page(make_full_document()).partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in styles and "@import" not in styles


def test_the_page_forbids_what_it_does_not_need() -> None:
    read = Page(page(make_full_document()))
    [policy] = [value for tag, name, value in read.attributes if name == "content" and "default-src" in value]
    assert policy.startswith("default-src 'none';")
    assert "script-src" not in policy


def test_the_same_document_gives_the_same_page() -> None:
    assert page(make_full_document()) == page(make_full_document())
