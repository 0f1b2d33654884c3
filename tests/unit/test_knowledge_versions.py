"""Releases and ranges of releases."""

from __future__ import annotations

import pytest
from packaging.version import Version

from determinism.errors import UsageError
from determinism.knowledge.entries import VersionRange, release


@pytest.mark.parametrize(
    "text",
    [
        "2.13",
        "2.13.0",
        "2.13.0+cpu",
        "2.14.0.dev20260713+xpu",
        "v1.10.2",
        "2.1.0a0+git1234",
        "2.0.0rc1",
        "1.13.1.post200",
        "23.01",
    ],
)
def test_releases_are_read_as_packaging_reads_them(text: str) -> None:
    expected = list(Version(text).release)
    while len(expected) > 1 and expected[-1] == 0:
        expected.pop()
    assert release(text) == tuple(expected)


@pytest.mark.parametrize("text", ["", "newest", "+cpu", "two"])
def test_an_invalid_version_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        release(text)
    assert refused.value.identifier == "version-unreadable"
    assert repr(text) in refused.value.message


@pytest.mark.parametrize(
    ("since", "until", "inside", "outside"),
    [
        ("1.9", "1.10", ["1.9", "1.9.1", "1.9.0+cu111"], ["1.8.1", "1.10", "1.10.0", "1.90"]),
        ("2.10", None, ["2.10.0", "2.15.0", "3.0"], ["2.1", "2.9.1"]),
        (None, "2.0", ["1.14.0", "0.1"], ["2.0.0", "2.0.0rc1"]),
        (None, None, ["1.0", "99"], []),
    ],
)
def test_a_range_contains_its_versions(
    since: str | None, until: str | None, inside: list[str], outside: list[str]
) -> None:
    versions = VersionRange(since, until)
    assert [version for version in inside if version not in versions] == []
    assert [version for version in outside if version in versions] == []


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        (("1.7", "1.9"), ("1.9", None), False),
        (("1.7", "1.10"), ("1.9", None), True),
        ((None, "1.9"), ("1.8.1", "1.8.2"), True),
        ((None, None), ("1.8", "1.9"), True),
        (("2.9", "2.10"), ("2.10", "2.11"), False),
        (("2.0", "2.0"), ("2.0", "2.0"), False),
    ],
)
def test_overlapping_ranges_are_recognized(
    first: tuple[str | None, str | None], second: tuple[str | None, str | None], overlap: bool
) -> None:
    assert VersionRange(*first).overlaps(VersionRange(*second)) is overlap
    assert VersionRange(*second).overlaps(VersionRange(*first)) is overlap


@pytest.mark.parametrize(
    ("since", "until", "text"),
    [("1.7", None, ">=1.7"), ("1.7", "1.9", ">=1.7, <1.9"), (None, "1.9", "<1.9"), (None, None, "all")],
)
def test_ranges_are_written_as_in_pip(since: str | None, until: str | None, text: str) -> None:
    assert str(VersionRange(since, until)) == text
