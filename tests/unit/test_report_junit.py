"""JUnit XML: the results for continuous integration, and valid XML whatever the text."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

import pytest

from determinism.report.document import document
from determinism.report.formats import junit_text
from determinism.types import Kind
from tests.builders import WEIRD, make_comparison, make_different, make_divergence, make_inconclusive, make_varied
from tests.documents import flooded, make_full_document

VARIED = dict(make_varied())

ATTACKS = [
    "<failure/>",
    "]]></failure><testcase name='x'/>",
    '" errors="0',
    "&undefined;",
    "<!DOCTYPE x [<!ENTITY y SYSTEM 'file:///etc/passwd'>]>&y;",
    "<?xml version='1.1'?>",
    "\x00\x01\x08\x0b\x0c\x0e\x1f",
    "\ufffe\uffff",
    "\x7f\x85\x9f",
    "\ud800 \udce9",
    "one\r\ntwo\rthree",
    "-->",
    WEIRD,
]


def read(text: str) -> tuple[Xml.Element, Xml.Element]:
    """The suite and its one case."""
    root = Xml.fromstring(text.encode("utf-8"))
    [suite] = root
    [case] = suite.findall("testcase")
    return suite, case


def test_runs_that_differ_fail() -> None:
    suite, case = read(junit_text(make_full_document()))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "1", "0")
    [failure] = case
    assert failure.tag == "failure"
    assert failure.get("type") == "op"
    assert (
        failure.get("message") == "Different: aten.embedding_dense_backward.default varies on equal inputs (confirmed)"
    )
    for expected in (
        "fix               Compute with one thread (verified by 3 equal runs)\n    OMP_NUM_THREADS=1 python",
        "first difference  step 3, the gradient of",
        "inputs            equal in both runs",
    ):
        assert expected in (failure.text or "")


def test_equal_runs_pass() -> None:
    suite, case = read(junit_text(document(make_comparison())))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    assert [child.tag for child in case] == ["system-out"]
    assert (case.get("classname"), case.get("time")) == ("python train.py", "25.000")


def test_no_verdict_is_an_error() -> None:
    suite, case = read(junit_text(document(make_inconclusive("Both failed.", "One was cut."))))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    [error] = case
    assert (error.tag, error.get("type"), error.text) == ("error", "trouble-0", "Both failed.\nOne was cut.")


def test_the_test_is_at_the_line_of_the_first_divergence() -> None:
    _, case = read(junit_text(document(make_different())))
    assert (case.get("file"), case.get("line")) == ("/home/ada/project/train.py", "17")
    bare = make_different(first_divergence=make_divergence(kind=Kind.RNG, forward_site=None))
    assert read(junit_text(document(bare)))[1].get("file") is None


def test_the_numbers_are_properties() -> None:
    suite, _ = read(junit_text(make_full_document()))
    found = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert found == {
        "verdict": "different", "runs": "2", "records": "1234", "steps": "10", "processes": "1", "blind_spots": "1",
    }  # fmt: skip


@pytest.mark.parametrize("name", VARIED)
def test_every_report_can_be_read(name: str) -> None:
    read(junit_text(document(VARIED[name])))


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_string_becomes_markup(attack: str) -> None:
    plain, attacked = (Xml.fromstring(junit_text(flooded(text)).encode()) for text in ("harmless", attack))
    assert [one.tag for one in attacked.iter()] == [one.tag for one in plain.iter()]
    assert [sorted(one.keys()) for one in attacked.iter()] == [sorted(one.keys()) for one in plain.iter()]


def test_characters_that_xml_forbids_become_visible() -> None:
    _, case = read(junit_text(flooded("a\x00b\x1b[31m")))
    assert "a\\x00b\\x1b[31m" in (case.find("failure").text or "")  # type: ignore[union-attr]
