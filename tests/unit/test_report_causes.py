"""Causes and fixes in the report: the answer first, and its evidence only with `-v`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from determinism.comparison.divergence import Cause, Experiment, Fix, Status
from determinism.comparison.result import Comparison
from determinism.trace.schema import Frame
from tests.builders import make_different
from tests.rendered import lines_of, text_of

PATCH = """--- read.py
+++ read.py
@@ -1,3 +1,4 @@
+import zlib
 def main(name):
-    value = hash(name)
+    value = zlib.crc32(repr(name).encode())
     return value"""
FIX = Fix("hash-value", "Use another hash", "value = zlib.crc32(repr(name).encode())", None, True, 3, 1.0, PATCH)
EXPERIMENT = Experiment("line read.py:2", "fixed", 3, True, "All 3 runs were bit-identical.")
SITE = Frame("/p/read.py", 2, "main", "value = hash(name)")


def cause(
    identifier: str = "hash-value",
    title: str = "The result depends on a hash",
    status: Status = Status.CONFIRMED,
    line: int = 2,
) -> Cause:
    return Cause(identifier, title, status, ("Why.",), (EXPERIMENT,), (SITE._replace(line=line),))


def explained(*causes: Cause, fixes: tuple[Fix, ...] = ()) -> Comparison:
    return make_different(causes=list(causes), fixes=list(fixes), experiments=[EXPERIMENT])


def test_cause_place_and_fix_come_first_and_in_few_lines() -> None:
    lines = lines_of(explained(cause(), fixes=(FIX,)), 80)
    assert lines[0] == "Different: the result depends on a hash (confirmed)"
    assert lines[2] == "  /p/read.py:2      value = hash(name)"
    assert lines[4] == "  fix               Use another hash (verified by 3 equal runs)"
    patch = PATCH.splitlines()
    assert [line.removeprefix("      ") for line in lines[5:11]] == ["@@ read.py:1 @@", *patch[3:]]
    assert lines[12].startswith("  first difference  step 3, the gradient of /home/ada/project/train.py:17")
    assert len(lines) <= 17
    assert [
        line.removeprefix("      ") for line in lines_of(explained(cause(), fixes=(FIX,)), 80, verbose=True)[5:13]
    ] == patch


def test_each_hunk_of_a_short_diff_names_its_file_and_line() -> None:
    first = "--- read.py\n+++ read.py\n@@ -1,2 +1,3 @@\n+import zlib\n import os\n"
    second = "@@ -40 +41 @@\n-a\n+b\n--- /dev/null\n+++ new.py\n@@ -0,0 +1 @@\n+c\n \n \n"
    lines = lines_of(explained(cause(), fixes=(Fix("hash-value", "Change it", "c", patch=first + second),)))
    text = " ".join(" ".join(lines).split())
    assert (
        "@@ read.py:1 @@ +import zlib import os @@ read.py:40 @@ -a +b --- /dev/null +++ new.py @@ -0,0 +1 @@ +c first"
        in text
    )


def test_a_title_keeps_the_capital_of_a_name() -> None:
    named = cause("seed-missing-numpy", "NumPy's random numbers are drawn without a seed")
    assert lines_of(explained(named))[0] == "Different: NumPy's random numbers are drawn without a seed (confirmed)"


def test_an_op_that_varies_is_named() -> None:
    varies = cause("nondeterministic-op", "The op itself varies")
    assert lines_of(explained(varies))[0].startswith(
        "Different: aten.embedding_dense_backward.default varies on equal inputs"
    )


def test_two_causes_are_two_blocks_each_with_its_fix() -> None:
    other = Fix("clock", "Decide by a count", "value = 0", None, True, 3)
    lines = lines_of(explained(cause(), cause("clock", "The result depends on the clock", line=9), fixes=(FIX, other)))
    assert (
        lines[0]
        == "Different: the result depends on a hash (confirmed) and the result depends on the clock (confirmed)"
    )
    order = [line.split()[0] for line in lines if line[2:7] in ("cause", "fix  ", "/p/re")]
    assert order == ["cause", "/p/read.py:2", "fix", "cause", "/p/read.py:9", "fix"]


def test_causes_of_one_kind_share_the_fixes_in_order() -> None:
    fixes = tuple(Fix("hash-value", f"Fix {number}", f"value = {number}", None, True, 3) for number in range(3))
    text = text_of(explained(cause(line=2), cause(line=9), fixes=fixes)).partition("first difference")[0]
    assert (
        text.index("read.py:2")
        < text.index("Fix 0")
        < text.index("read.py:9")
        < text.index("Fix 1")
        < text.index("Fix 2")
    )


@pytest.mark.parametrize(
    ("title", "verified", "label"),
    [
        ("Seed Python's generator", True, "and"),
        ("Seed Python's generator", False, "or"),
        ("Or, start it with", True, None),
    ],
    ids=["both are needed", "not known", "one suffices"],
)
def test_a_second_fix_for_one_cause_says_whether_both_are_needed(title: str, verified: bool, label: str | None) -> None:
    another = Fix("hash-value", title, "x", None, verified, 3)
    lines = lines_of(explained(cause(), fixes=(FIX, another)), 80)
    [found] = [line for line in lines if title.removeprefix("Or, ").lower() in line.lower()] or [None]
    assert (None if found is None else found.split()[0]) == label


def test_a_possible_cause_is_not_the_answer() -> None:
    lines = lines_of(explained(cause(status=Status.POSSIBLE)))
    assert lines[0].startswith("Different: an operation gave different results")
    assert "  possible causes   The result depends on a hash, /p/read.py:2" in lines


def test_of_many_possible_causes_the_first_three_are_named() -> None:
    lines = lines_of(explained(*(cause(line=line, status=Status.POSSIBLE) for line in range(1, 9))))
    first = next(number for number, line in enumerate(lines) if line.startswith("  possible causes"))
    assert [line.split()[-1] for line in lines[first : first + 3]] == ["/p/read.py:1", "/p/read.py:2", "/p/read.py:3"]
    assert lines[first + 3].split() == ["and", "5", "more"]


def test_the_evidence_for_a_cause_is_a_detail() -> None:
    comparison = explained(cause(), fixes=(FIX,))
    for detail in ("Why.", "line read.py:2 fixed: All 3 runs were bit-identical. (3 runs)", "hash-value, confirmed"):
        assert detail in text_of(comparison)
        assert detail not in " ".join(lines_of(comparison))


def test_a_fix_without_any_run_says_so() -> None:
    text = text_of(explained(cause(), fixes=(Fix("hash-value", "Use another hash"),)))
    assert "fix Use another hash (not verified: the cause is confirmed, but no run was made with this change)" in text


@pytest.mark.parametrize(
    ("equal", "outcome", "said"),
    [
        (False, "The runs still differed.", "not verified: the runs still differed"),
        (
            None,
            "No conclusion: a run did not end within 55 s and was stopped.",
            "not verified: a run did not end within 55 s and was stopped",
        ),
    ],
)
def test_a_changed_line_that_did_not_help_is_labelled_as_such(equal: bool | None, outcome: str, said: str) -> None:
    made = Experiment("line read.py:2", "fixed", 2, equal, outcome)
    fix = Fix("hash-value", "Use another hash", "key = 0", patch="--- read.py\n+++ read.py")
    text = text_of(explained(replace(cause(), experiments=(made,)), fixes=(fix,)))
    assert f"fix Use another hash ({said})" in text


def test_variables_are_set_in_the_command_itself() -> None:
    fix = Fix(
        "hash-value", "Or, without changing the program, start it with", None, (("PYTHONHASHSEED", "0"),), True, 3
    )
    comparison = explained(cause(), fixes=(FIX, fix))
    said = "or Without changing the program, start it with (verified by 3 equal runs): PYTHONHASHSEED=0 python train.py"
    assert said in text_of(comparison)
    assert "PYTHONHASHSEED" not in " ".join(lines_of(comparison)), "one fix that can be applied is enough"
    assert "PYTHONHASHSEED=0 python train.py" in " ".join(lines_of(explained(cause(), fixes=(fix,))))
