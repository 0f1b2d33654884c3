"""Measurements are stored in files and compared with the declared facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from determinism.errors import UsageError
from determinism.knowledge.entries import Audit, Measurement, index, known_audits, read_audit
from determinism.knowledge.query import disagreements, status
from determinism.report.status import audit_text, measured_rows

EQUAL = Measurement("torch.Tensor.put_", "a case", "forward", "float32", 2, False, 20, 1)
VARIED = replace(EQUAL, distinct=3)
RAISED = replace(EQUAL, runs=0, distinct=0, raised="put_ does not have a deterministic implementation")


def audit(*measurements: Measurement) -> Audit:
    hardware = {"processor": "Some CPU @ 2 GHz", "cores": "2"}
    return Audit("torch", "2.13.0+cpu", "cpu", hardware, {"numpy": "2"}, "2026-11-21", 0, measurements)


def news(*measurements: Measurement) -> list[str]:
    return [found.why for found in disagreements(audit(*measurements))]


def test_an_audit_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = audit(EQUAL, VARIED, RAISED)
    file = tmp_path / written.file_name
    file.write_text(written.text(), encoding="utf-8")

    assert file.name == "torch-2.13.0-cpu-some-cpu-2-ghz.json"
    assert read_audit(file) == written


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "determinism.audit/1"}', audit(EQUAL).text()[:-9]])
def test_a_file_that_is_not_an_audit_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="is not a result of `determinism audit`"):
        read_audit(tmp_path / "file.json")


def test_a_newer_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(audit(EQUAL).text().replace("audit/1", "audit/2"), encoding="utf-8")
    with pytest.raises(UsageError, match="audit/2"):
        read_audit(tmp_path / "file.json")


def test_a_result_that_matches_the_declaration_is_not_news() -> None:
    on = {"deterministic_mode": True}
    assert news(VARIED, EQUAL, replace(RAISED, **on)) == []
    # The condition for an op that is declared to vary may not have been met.
    assert news(replace(EQUAL, op="torch.Tensor.index_put_")) == []


def test_results_of_patched_ops_are_shown_separately_and_are_not_news() -> None:
    patched = replace(EQUAL, op="torch.Tensor.scatter_add_", deterministic_mode=True, patched=True)
    assert news(replace(patched, distinct=3)) == []
    heads, row = (
        [cell.text for cell in cells]
        for cells in measured_rows([EQUAL, replace(RAISED, deterministic_mode=True), patched], 20)
    )
    assert (heads[3:], row[3:]) == (
        ["default", "deterministic mode", "patched"],
        ["equal in 20 runs", "raises", "equal in 20 runs"],
    )


def test_an_op_that_varies_against_its_declaration_is_news() -> None:
    assert news(replace(VARIED, op="torch.Tensor.scatter_add_")) == [
        "it gave 3 results in 20 runs, declared deterministic"
    ]
    assert news(replace(VARIED, op="torch.take", direction="backward", deterministic_mode=True))[0].endswith(
        "declared deterministic"
    )


def test_an_op_that_raises_against_its_declaration_is_news() -> None:
    raised = replace(RAISED, op="torch.Tensor.scatter_add_", deterministic_mode=True)
    assert news(raised) == ["it raises, declared deterministic"]
    # If it also raises without deterministic mode, it does not support the dtype or the device.
    assert news(raised, replace(raised, deterministic_mode=False)) == []


def test_the_bundled_results_contradict_nothing() -> None:
    audits = list(known_audits())
    names = {entry.name for entry in index().entries}

    assert {found.framework for found in audits} >= {"torch", "tensorflow", "jax"}
    for found in audits:
        assert {one.op for one in found.measurements} <= names
        # No op of JAX is known to vary on the CPU.
        assert any(one.varies for one in found.measurements) or (found.framework, found.device) == ("jax", "cpu")
        assert list(disagreements(found)) == []


def test_measured_rows_say_what_varied_and_where() -> None:
    one_thread = replace(VARIED, threads=1, distinct=1)
    on = replace(EQUAL, deterministic_mode=True)
    (_, row) = measured_rows([VARIED, one_thread, on, replace(on, dtype="float64", runs=5)], 5)

    assert [cell.text for cell in row] == [
        "a case",
        "forward",
        "float32, float64",
        "3 results in 20 runs on 2 threads",
        "equal in 5 runs",
    ]
    assert [cell.text for cell in measured_rows([replace(RAISED, deterministic_mode=True)], 20)[1][3:]] == [
        "not measured",
        "raises",
    ]


def test_measurements_are_shown_for_their_release_only() -> None:
    (here,) = status("torch.take", version="2.13.1", framework="torch")
    (elsewhere,) = status("torch.take", version="2.12.0", framework="torch")

    assert [audit.version for audit, _ in here.measured] == ["2.13.0+cpu"]
    assert elsewhere.measured == ()


def test_fewer_runs_than_requested_are_not_called_equal() -> None:
    few = replace(EQUAL, runs=3, op="torch.take")
    found = replace(audit(EQUAL, few, VARIED), runs_asked=20)
    text = audit_text(found)
    assert "1 of 3 measurements gave equal results in 20 runs." in text
    assert "1 were left after 3 of 20 runs, without a difference" in text
    assert [cell.text for cell in measured_rows([few], 20)[1]][3] == "no difference in 3 of 20 runs"
    whole = audit_text(replace(found, measurements=(EQUAL,)))
    assert "1 of 1 measurements gave equal results in 20 runs." in whole
    assert "were left" not in whole


def test_measurements_made_before_a_stop_are_kept_with_the_reason(tmp_path: Path) -> None:
    stopped = replace(audit(EQUAL), stopped="It was interrupted by Ctrl-C.", runs_asked=20)
    (tmp_path / "out.json").write_text(stopped.text(), encoding="utf-8")
    assert read_audit(tmp_path / "out.json") == stopped
    assert "Not everything was measured: It was interrupted by Ctrl-C." in audit_text(stopped)
