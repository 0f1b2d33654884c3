"""What is kept about PyTorch is what its documentation said, release by release."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from determinism.knowledge.names import key_of
from determinism.knowledge.query import status
from determinism.knowledge.status import Basis, Status
from tests.documented_ops import Documented, parsed

ENTRIES = [
    (parsed(row["entry"], row["verdict"]), row["releases"])
    for row in json.loads((Path(__file__).parent / "torch_documented_entries.json").read_text())
]
RELEASES = sorted(
    {release for _, releases in ENTRIES for release in releases}, key=lambda text: [*map(int, text.split("."))]
)
CASES = [
    pytest.param(documented, name, device, releases, id=f"{name}-{documented.verdict}-{device}-{releases[0]}-{number}")
    for number, (documented, releases) in enumerate(ENTRIES)
    for name in documented.names
    for device in documented.devices
]


def documented_statuses(documented: Documented, name: str, device: str | None, release: str) -> list[Status]:
    """The documented statuses that an entry should be kept as."""
    answers = status(name, framework="torch", version=release, device=device, direction=documented.direction)
    found = [one for answer in answers for one in answer.statuses if one.basis is Basis.DOCUMENTED]
    return [one for one in found if all(part in (one.condition or "") for part in documented.conditions)]


def test_every_release_from_1_7_to_2_15_is_there() -> None:
    assert [re.sub(r"\.\d+$", "", release) for release in (RELEASES[0], RELEASES[-1])] == ["1.7", "2.15"]
    assert len(RELEASES) == 23
    assert len(CASES) > 90


@pytest.mark.parametrize(("documented", "name", "device", "releases"), CASES)
def test_every_documented_entry_is_answered(
    documented: Documented, name: str, device: str | None, releases: list[str]
) -> None:
    for release in releases:
        verdicts = {one.deterministic for one in documented_statuses(documented, name, device, release)}
        assert documented.verdict in verdicts, (release, verdicts)


def from_docstring(one: Status) -> bool:
    """Whether a status rests on the lists."""
    return one.basis is Basis.DOCUMENTED and any("docstring of torch." in source.reference for source in one.sources)


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_is_said_to_be_documented_that_is_not(release: str) -> None:
    listed = {
        (key, documented.verdict) for documented, releases in ENTRIES if release in releases for key in documented.keys
    }
    for answer in status(framework="torch", version=release):
        keys = {key_of(name) for name in (answer.op.name, *answer.op.names)}
        for one in filter(from_docstring, answer.statuses):
            if one.deterministic in ("raises", "deterministic") and "CUBLAS" not in (one.solution or ""):
                assert any((key, one.deterministic) in listed for key in keys), one.identifier
