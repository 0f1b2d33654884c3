"""The stored facts about PyTorch match its documentation, release by release."""

from __future__ import annotations

import json
import re

import pytest

from determinism.knowledge.entries import Basis, Status, key_of
from determinism.knowledge.query import status
from tests.architecture.torch_documented import RESULTS, by_release, ranges, written
from tests.documented_ops import VARIABLE, Documented, entries_of, holds_for

ENTRIES = by_release()
RELEASES = list(ENTRIES)
CASES = [
    pytest.param(
        entry, name, device, [version for version in RELEASES if entry in ENTRIES[version]], id=f"{entry} {name}"
    )
    for entry in sorted({entry for entries in ENTRIES.values() for entry in entries}, key=str)
    for name in entry.names
    for device in entry.devices
]
DOCSTRING = """Sets what ops may do.

    The following normally-nondeterministic operations will act
    deterministically when ``mode=True``:

        * :func:`torch.bmm` when called on sparse-dense CUDA tensors
        * :func:`torch.Tensor.scatter_reduce` when ``reduce='sum'`` or ``reduce='mean'`` and called on CUDA tensor

    The following normally-nondeterministic operations will throw a
    :class:`RuntimeError` when ``mode=True``:

        * :func:`torch.nn.functional.interpolate` when attempting to differentiate a CUDA tensor
          and one of the following modes is used:

          - ``linear``
          - ``bicubic``

        * :class:`torch.nn.MaxUnpool1d`

    In addition, memory is filled.

    A :class:`RuntimeError` will be raised from these operations when called with CUDA tensors:

        * :func:`torch.mv`
    """


def documented_statuses(
    documented: Documented, name: str, device: str | None, release: str, conditions: tuple[str, ...]
) -> list[Status]:
    """The documented statuses that an entry should be stored as."""
    answers = status(name, framework="torch", version=release, device=device, direction=documented.direction)
    found = [one for answer in answers for one in answer.statuses if one.basis is Basis.DOCUMENTED]
    return [one for one in found if holds_for(one, conditions)]


def verdicts_of(one: Status) -> set[str]:
    """The verdicts of the documentation that a status expresses."""
    needs_variable = VARIABLE in (one.solution or "")
    return {VARIABLE if needs_variable else str(one.deterministic)}


def test_every_release_from_1_7_to_2_15_is_there() -> None:
    assert [re.sub(r"\.\d+$", "", release) for release in (RELEASES[0], RELEASES[-1])] == ["1.7", "2.15"]
    assert len(RELEASES) == 23
    assert len(CASES) > 80
    assert all({"deterministic", "raises"} <= {entry.verdict for entry in entries} for entries in ENTRIES.values())


def test_a_docstring_is_parsed_into_codes() -> None:
    assert [str(entry) for entry in entries_of(DOCSTRING)] == [
        "torch.bmm cuda forward sparse deterministic",
        "torch.Tensor.scatter_reduce cuda forward reduce='sum' reduce='mean' deterministic",
        "torch.nn.functional.interpolate cuda backward mode='linear' mode='bicubic' raises",
        "torch.nn.MaxUnpool1d forward raises",
        f"torch.mv cuda forward {VARIABLE}",
    ]


def test_the_file_matches_the_lookup_and_quotes_no_sentence_of_the_documentation() -> None:
    text = RESULTS.read_text(encoding="utf-8")
    stored = json.loads(text)
    words = {text for row in stored["entries"] for key in ("names", "conditions") for text in row[key]}

    assert text == written(ENTRIES)
    assert ranges(["2", "3", "5"], ["1", "2", "3", "4", "5"]) == [["2", "3"], ["5", "5"]]
    assert [text for text in words if re.search("when|called|attempting|tensor that", text)] == []


@pytest.mark.parametrize(("documented", "name", "device", "releases"), CASES)
def test_every_documented_entry_is_answered(
    documented: Documented, name: str, device: str | None, releases: list[str]
) -> None:
    for release in releases:
        for conditions in documented.cases:
            found = documented_statuses(documented, name, device, release, conditions)
            verdicts = {verdict for one in found for verdict in verdicts_of(one)}
            assert documented.verdict in verdicts, (release, conditions, verdicts)


def from_docstring(one: Status) -> bool:
    """Whether a status is based on the lists in docstrings."""
    return one.basis is Basis.DOCUMENTED and any("docstring of torch." in source.reference for source in one.sources)


@pytest.mark.parametrize("release", RELEASES)
def test_no_status_is_wrongly_called_documented(release: str) -> None:
    listed = {(key, documented.verdict) for documented in ENTRIES[release] for key in documented.keys}
    for answer in status(framework="torch", version=release):
        keys = {key_of(name) for name in (answer.op.name, *answer.op.names)}
        for one in filter(from_docstring, answer.statuses):
            if one.deterministic in ("raises", "deterministic"):
                assert any((key, verdict) in listed for key in keys for verdict in verdicts_of(one)), one.identifier


def on_cuda(name: str, release: str, framework: str = "torch") -> set[str | None]:
    """The verdicts for deterministic mode on CUDA, forward."""
    answers = status(name, framework=framework, version=release, device="cuda", direction="forward")
    return {one.deterministic for answer in answers for one in answer.statuses}


@pytest.mark.parametrize("release", ["1.9.1", "1.13.1", "2.8.0", "2.15.0"])
def test_sums_of_torch_scatter_follow_scatter_add(release: str) -> None:
    expected = "raises" if release == "1.9.1" else "deterministic"

    assert on_cuda("torch_scatter.scatter_mean", release) == {expected}
    assert expected in on_cuda("torch.Tensor.scatter_add_", release)
    assert on_cuda("torch_scatter.scatter_mul", release) == {"nondeterministic"}
    assert on_cuda("torch_scatter.scatter_max", release) == {"nondeterministic"}


def test_sums_of_pyg_follow_pytorch_and_extremes_do_not() -> None:
    answers = status("torch_geometric.nn.GCNConv", framework="torch-geometric", device="cuda")
    by_condition = {one.condition: one.deterministic for answer in answers for one in answer.statuses}

    assert by_condition["sum or mean"] == "deterministic"
    assert [verdict for condition, verdict in by_condition.items() if condition and "max" in condition] == [
        "nondeterministic"
    ]
    assert not any("does not follow" in (one.note or "") for answer in answers for one in answer.statuses)
