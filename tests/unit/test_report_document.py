"""The JSON document: its contents, and how it is written."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy
import pytest

from determinism.errors import UsageError
from determinism.report.document import document
from determinism.report.terminal import write_json
from tests.builders import (
    WEIRD,
    make_comparison,
    make_crowded,
    make_different,
    make_divergence,
    make_evidence,
    make_frame,
    make_inconclusive,
    make_looked_at,
    make_output,
    make_run,
)

SHORT_KEYS = ["kind", "process", "thread", "step", "phase", "op", "module", "site", "received_from"]


def test_the_document_of_two_equal_runs() -> None:
    assert document(make_comparison()) == {
        "schema": "determinism.report/1",
        "verdict": "same",
        "headline": "Same: 2 runs, 10 steps, 1,234 records, every tensor bit-identical",
        "story": [
            {
                "section": "details",
                "label": "traces",
                "text": "run-1 and run-2 in /home/ada/project/.determinism/2026-01-05T10-20-30",
                "is_code": False,
                "is_detail": True,
            }
        ],
        "trouble": [],
        "runs": [
            {
                "command": ["python", "train.py"],
                "exit_status": 0,
                "stopped_by": None,
                "seconds": 12.5,
                "trace": f"/home/ada/project/.determinism/2026-01-05T10-20-30/run-{number}",
            }
            for number in (1, 2)
        ],
        "recorded": {
            "records": 1234,
            "steps": 10,
            "steps_by": "optimizer",
            "processes": 1,
            "recorders": [],
            "blind_spots": [],
        },
        "first_divergence": None,
        "divergences": [],
        "first_visible": None,
        "reached": [],
        "absorbed": False,
        "dead_differences": {"count": 0, "first": []},
        "leftovers": [],
        "printed": None,
        "extra_runs": {"count": 0, "racy": []},
        "open_settings": [],
        "evidence": None,
        "reproducer": None,
        "causes": [],
        "experiments": [],
        "diagnosis": None,
        "varied": [],
        "fixes": [],
        "missing": None,
        "narrowing": None,
        "batch": None,
        "values": None,
        "environment": [],
        "ran_on": {},
        "sources": [],
        "compared_runs": None,
        "divergence_by_step": None,
        "losses": None,
        "dataflow": None,
    }


def test_the_document_contains_the_first_divergence() -> None:
    first = document(make_different())["first_divergence"]
    stack = [
        {"file": "/home/ada/project/train.py", "line": 41, "function": "train_step", "code": "loss.backward()"},
        {"file": "/home/ada/project/train.py", "line": 63, "function": "main", "code": "train_step(batch)"},
    ]
    assert first == {
        "kind": "op",
        "process": "main",
        "thread": None,
        "step": 3,
        "phase": "backward",
        "op": "aten.embedding_dense_backward.default",
        "module": "encoder.embedding",
        "site": None,
        "received_from": None,
        "detail": "Output 0 has digest 5a8a768a in run 1 and 472eedad in run 2.",
        "hint": "",
        "forward_site": {
            "file": "/home/ada/project/train.py",
            "line": 17,
            "function": "forward",
            "code": "x = self.embedding(tokens)",
        },
        "stack": stack,
        "inputs_equal": True,
        "inputs": [],
        "inside": None,
        "outputs": [
            {
                "dtype": "float32",
                "shape": [1024, 512],
                "device": "cuda:0",
                "elements": 524_288,
                "elements_different": 37,
                "max_ulp": 3,
                "max_abs": 1.1920929e-07,
                "max_relative": None,
                "elements_sampled": None,
                "repeats": 100,
                "distinct": 37,
                "distinct_one_thread": None,
                "distinct_filled_memory": None,
                "distinct_alignments": None,
                "examples": None,
                "extent": None,
            }
        ],
    }


def test_the_document_contains_the_evidence() -> None:
    first = make_divergence(outputs=(make_looked_at(),))
    found = document(make_different(first_divergence=first, evidence=make_evidence()))
    (output,) = found["first_divergence"]["outputs"]
    assert (output["distinct_one_thread"], output["distinct_filled_memory"], output["distinct_alignments"]) == (
        1,
        None,
        1,
    )
    assert output["examples"] == [{"index": [3, 0], "first": "0.5", "second": "0.25"}]
    assert output["extent"] == [[3, 7], [0, 511]]
    assert found["evidence"] == {"source": "repeats", "folder": "/home/ada/project/traces/evidence", "note": ""}
    assert found["reproducer"] == "/home/ada/project/traces/reproducer/reproduce.py"


def test_the_document_contains_everything_besides_the_first_divergence() -> None:
    found = document(make_crowded("text", "/data/train.py"))
    assert [list(divergence) for divergence in found["divergences"]] == [SHORT_KEYS] * 6
    assert found["divergences"][0]["site"]["line"] == 3
    assert found["first_visible"] == {"step": 4, "what": "text", "site": None}
    assert found["absorbed"] is True
    assert found["dead_differences"]["count"] == 12_345
    assert [list(dead) for dead in found["dead_differences"]["first"]] == [["step", "phase", "op", "site"]] * 5
    assert found["recorded"]["blind_spots"][8] == {
        "id": "text",
        "what": "text",
        "reason": "text",
        "count": 8000,
        "share": None,
    }
    assert found["trouble"] == [{"id": "text", "message": "text"}] * 3
    assert found["environment"] == [{"name": "text", "part": "other", "first": "text", "second": "text"}] * 9


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), numpy.float32("nan")])
def test_numbers_that_json_lacks_become_null(number: float) -> None:
    first = make_divergence(outputs=(make_output(max_abs=number),))
    found = document(make_different(first_divergence=first, runs=[make_run(seconds=number)]))
    assert found["first_divergence"]["outputs"][0]["max_abs"] is None
    assert found["runs"][0]["seconds"] is None


def test_numbers_from_numpy_become_plain() -> None:
    output = make_output(shape=(numpy.int64(2),), max_ulp=numpy.uint64(2**64 - 1), max_abs=numpy.float32(0.5))
    found = document(make_different(first_divergence=make_divergence(outputs=(output,))))
    [plain] = found["first_divergence"]["outputs"]
    assert json.loads(json.dumps(plain)) == plain
    assert (plain["shape"], plain["max_ulp"], plain["max_abs"]) == ([2], 2**64 - 1, 0.5)


def test_strings_keep_everything_but_surrogates() -> None:
    first = make_divergence(site=make_frame(file="/data/caf\udce9.py", code=WEIRD))
    site = document(make_different(first_divergence=first))["first_divergence"]["site"]
    assert site["file"] == "/data/caf\\udce9.py"
    assert site["code"] == WEIRD.replace("\udce9", "\\udce9")


@pytest.mark.parametrize("name", ["missing/report.json", "file/report.json", ".", "null\0byte.json"])
def test_a_report_that_cannot_be_written_is_an_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))) as caught:
        write_json(make_comparison(), tmp_path / name)
    assert caught.value.identifier == "report-unwritable"
    assert "to_json" in caught.value.message
    assert (tmp_path / "file").read_text() == "kept"


def test_a_report_replaces_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old " * 10_000)
    write_json(make_inconclusive("It was interrupted."), path)
    assert json.loads(path.read_text())["trouble"] == [{"id": "trouble-0", "message": "It was interrupted."}]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    write_json(make_comparison(), link)
    assert link.is_symlink()
    assert json.loads(target.read_text())["verdict"] == "same"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_json(make_comparison(), path)
        assert json.loads(os.read(reader, 1 << 16))["verdict"] == "same"
    finally:
        os.close(reader)
    assert path.is_fifo()
