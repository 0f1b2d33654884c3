"""What is known about ops, as text in columns and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from textwrap import dedent

import pytest

from determinism.errors import UsageError
from determinism.knowledge.query import status
from determinism.report.status import Cell, in_columns, list_text, op_status_text, paragraph, status_document, styled


def cells(*texts: str) -> list[Cell]:
    """A row without styles."""
    return [Cell(text) for text in texts]


def test_columns_are_aligned_and_one_is_wrapped() -> None:
    rows = [cells("a", "when it is needed, and else not at all", "yes"), cells("longer", "always", "no")]
    assert in_columns(rows, 42, 1, colors=False) == [
        "a       when it is needed, and else    yes",
        "        not at all",
        "longer  always                         no",
    ]


def test_words_stay_whole() -> None:
    rows = [cells("a" * 60, "SDPBackend.EFFICIENT_ATTENTION", "yes")]
    assert in_columns(rows, 70, 1, colors=False) == [f"{'a' * 60}  SDPBackend.EFFICIENT_ATTENTION  yes"]


def test_no_rows_give_no_lines() -> None:
    assert in_columns([], 80, 0, colors=False) == []


def test_styles_are_used_only_if_colors_are_supported() -> None:
    assert styled(Cell("raises", "yellow"), colors=True) == "\x1b[33mraises\x1b[0m"
    assert styled(Cell("raises", "yellow"), colors=False) == "raises"
    assert styled(Cell("  ", "yellow"), colors=True) == "  "
    plain, colored = (in_columns([[Cell("a", "red"), Cell("b")]], 20, 1, colors=colors) for colors in (False, True))
    assert colored == ["\x1b[31ma\x1b[0m  b"] and plain == ["a  b"]


def test_paragraphs_have_a_margin() -> None:
    assert paragraph("one two three four five six seven", 26, margin=2) == ["  one two three four five", "  six seven"]


@pytest.mark.parametrize("width", [60, 140])
def test_an_answer_is_complete(width: int) -> None:
    answers = status("torch.nn.functional.interpolate", framework="torch", version="2.13", device="cuda")
    text = op_status_text(answers, [], width, colors=False)
    words = " ".join(text.split())

    assert text.startswith("torch.nn.functional.interpolate  PyTorch 2.13\n")
    for one in answers[0].statuses:
        assert all(" ".join(part.split()) in words for part in (one.solution, one.note) if part) or width == 60
        assert str(one.versions) in words
    assert "Deterministic mode in PyTorch 2.13: torch.use_deterministic_algorithms(True)." in words
    assert "not looked at" not in text


def test_missing_knowledge_is_reported() -> None:
    answers = status("torch.median", framework="torch", version="1.7", device="cuda")
    text = " ".join(op_status_text(answers, [], 100, colors=False).split())
    assert "Nothing is known about it for this query, which does not mean that it is deterministic." in text
    assert "Something is known for the versions >=1.8" in text

    answers = status("torch.cumsum", framework="torch", version="2.13", device="mps")
    text = " ".join(op_status_text(answers, [], 100, colors=False).split())
    assert "Leave out --device, --direction and --verdict to see what is known for cuda, cpu." in text
    assert "for the versions" not in text


def test_a_version_that_was_not_examined_is_reported() -> None:
    text = op_status_text(status("torch.histc", version="2.99"), [], 100, colors=False)
    assert "Only 1.7 to 2.15 were examined;" in text


def test_ops_that_are_not_installed_are_named() -> None:
    text = " ".join(
        op_status_text(status("torch.histc", version="2.13"), ["tf.one (tensorflow)"], 100, colors=False).split()
    )
    assert "Not installed, so not shown: tf.one (tensorflow)." in text


def test_a_list_has_a_line_for_each_status_and_counts_them() -> None:
    answers = status(framework="tensorflow", version="2.21", verdict="raises")
    lines = list_text(answers, 300, colors=False).splitlines()
    count = sum(len(answer.statuses) for answer in answers)
    assert f"{count} statuses of {len(answers)} ops." in lines
    assert sum("raises" in line for line in lines) == count
    assert list_text([], 80, colors=False) == "No known fact matches."


def test_the_document_contains_the_answer() -> None:
    answers = status("torch.kthvalue", version="2.13")
    (answer,) = json.loads(status_document(answers))["answers"]
    assert [one["id"] for one in answer["statuses"]] == [one.identifier for one in answers[0].statuses]
    assert answer["statuses"][0]["sources"][0] == {
        "kind": "pull request",
        "reference": "pytorch/pytorch#165762",
        "date": "2025-10",
    }
    assert (answer["statuses"][0]["default"], answer["statuses"][0]["solution"]) == ("deterministic", None)


def test_the_document_says_why_there_is_no_answer() -> None:
    document = json.loads(status_document([], UsageError("op-unknown", "A text.")))
    assert document == {
        "schema": "determinism.status/1",
        "trouble": [{"id": "op-unknown", "message": "A text."}],
        "answers": [],
    }


def test_looking_up_an_op_loads_nothing_heavy() -> None:
    code = """
        import sys
        from determinism.__main__ import main
        sys.argv = ["determinism", "status", "torch.Tensor.scatter_add_"]
        try:
            main()
        except SystemExit:
            pass
        heavy = {"numpy", "pyarrow", "rich", "torch", "tensorflow", "jax", "determinism.comparison", "determinism.trace"}
        print(sorted(heavy & set(sys.modules)), "determinism.knowledge.query" in sys.modules)
    """
    finished = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True)

    assert finished.stdout.splitlines()[-1] == "[] True"
    assert "scatter_add" in finished.stdout
