"""The HTML page in a real browser: its appearance, light and dark, wide and narrow; and that no string in it is executed."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from determinism.report.document import document
from determinism.report.html import NODE_WIDTH, page
from tests.browser.chromium import look_at
from tests.builders import make_comparison, make_crowded, make_different, make_inconclusive
from tests.documents import flooded, make_full_document, make_node

pytestmark = pytest.mark.browser

NARROW = 360
EXECUTE = "top.executed.push(window.name)"
ATTACKS = {
    "element": f"<script>{EXECUTE}</script>",
    "style": f"</style></title></textarea></svg></pre><script>{EXECUTE}</script>",
    "handler": f"<img src=x onerror={EXECUTE}>",
    "attribute": f"\" onload=\"{EXECUTE}\" onmouseover=\"{EXECUTE}\" autofocus onfocus=\"{EXECUTE}",
    "quote": f"' onload='{EXECUTE}' x='",
    "drawing": f"</title><svg onload={EXECUTE}>",
    "frame": '<iframe srcdoc="<script>top.executed.push(parent.name)</script>"></iframe>',
    "comment": f"--><script>{EXECUTE}</script><!--",
    "request": "<img src=/stolen><link rel=stylesheet href=/stolen><style>@import '/stolen';</style>",
}  # fmt: skip
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n')


def make_long_document() -> dict[str, Any]:
    """Return a document with lines of code and commands that are wider than most windows."""
    found = make_full_document()
    found["sources"][0]["lines"][4] = (
        f"    x = attend({', '.join(f'value_{number}=self.value' for number in range(30))})"
    )
    found["fixes"][0]["code"] = f"values = [{', '.join(map(str, range(90)))}]"
    found["diagnosis"] = f"No cause was searched for.\ndeterminism check -- python train.py {'--option value ' * 20}"
    return found


def without_policy(text: str) -> str:
    """Return the page as it would be if only escaping protected it."""
    found, count = POLICY.subn("", text)
    assert count == 1
    return found


def planted(text: str, attack: str) -> str:
    """Return the page as it would be if one place were not escaped."""
    found = text.replace("<main>", f"<main>{attack}", 1)
    assert found != text
    return found


@functools.cache
def usual(*, width: int = 1000, is_dark: bool = False) -> dict[str, dict[str, Any]]:
    """Return the findings on the usual pages."""
    pages = {
        "full": page(make_full_document()),
        "same": page(document(make_comparison())),
        "plain": page(document(make_different())),
        "inconclusive": page(document(make_inconclusive("Both runs failed.", "One was cut."))),
        "long": page(make_long_document()),
        "crowded": page(document(make_crowded("a_name_without_any_place_to_break_it" * 10, "/data/" + "folder/" * 40))),
    }
    return look_at(pages, width=width, is_dark=is_dark)


@functools.cache
def attacked() -> dict[str, dict[str, Any]]:
    """Return the findings on pages with attacks: with escaping only; with the policy only; and with neither."""
    plain = page(make_full_document())
    pages = {"harmless": without_policy(page(flooded("harmless")))}
    for name, attack in ATTACKS.items():
        pages[f"escaped-{name}"] = without_policy(page(flooded(attack)))
        pages[f"policy-{name}"] = planted(plain, attack)
        pages[f"control-{name}"] = planted(without_policy(plain), attack)
    return look_at(pages)


def test_the_page_shows_everything() -> None:
    full = usual()["full"]
    assert full["mode"] == "CSS1Compat"
    assert full["heading"] == "aten.embedding_dense_backward.default varies on equal inputs (confirmed)"
    assert full["title"] == "Different: aten.embedding_dense_backward.default varies on equal inputs (confirmed)"
    assert full["sections"] == [
        "story", "causes", "fixes", "spread", "losses", "dataflow", "values", "environment", "runs", "blind-spots",
    ]  # fmt: skip
    assert "x = self.embedding(tokens)" in full["text"]


def test_the_charts_are_drawn() -> None:
    drawings = usual()["full"]["drawings"]
    assert len(drawings) == 3
    assert all(drawing["width"] > 500 and drawing["height"] > 150 for drawing in drawings)


def test_the_boxes_of_a_chain_are_no_larger_than_those_of_a_wide_picture() -> None:
    found = make_full_document()
    nodes = [make_node(number, number, "aten::mul.Tensor", True) for number in range(3)]
    edges = [{"from": number, "to": number + 1, "differs": True} for number in range(2)]
    found["dataflow"] = {"nodes": nodes, "edges": edges, "left_out": 0}
    drawings = look_at({"chain": page(found)}, width=1000, is_dark=False)["chain"]["drawings"]
    assert NODE_WIDTH <= drawings[-1]["width"] < 1.2 * NODE_WIDTH


@pytest.mark.parametrize("name", ["full", "same", "plain", "inconclusive", "long", "crowded"])
@pytest.mark.parametrize("width", [1600, 1000, NARROW])
def test_nothing_overflows_the_page(name: str, width: int) -> None:
    seen = usual(width=width)[name]
    assert seen["width"] == width
    assert seen["outside"] == []
    assert seen["scrolled"] <= width
    assert seen["unwrapped"] == []


def test_on_a_phone_experiment_outcomes_are_visible_and_charts_are_legible() -> None:
    full = usual(width=NARROW)["full"]
    assert full["hidden"] == []
    assert min(full["labels"]) > 9


def test_names_fit_into_their_boxes() -> None:
    assert usual()["full"]["spilled"] == []


@pytest.mark.parametrize("name", ["full", "same", "inconclusive", "crowded"])
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_every_text_has_enough_contrast(name: str, is_dark: bool) -> None:
    faintest = usual(is_dark=is_dark)[name]["faintest"]
    # The WCAG 2 minimum for text of normal size.
    assert faintest["ratio"] >= 4.5, faintest


def test_the_page_is_dark_if_the_browser_requests_it() -> None:
    light, dark = (usual(is_dark=is_dark)["full"]["background"] for is_dark in (False, True))
    brightness = [sum(map(int, re.findall(r"\d+", color)[:3])) for color in (light, dark)]
    assert brightness[0] > 700 > 100 > brightness[1]


def test_nothing_is_loaded() -> None:
    for name, seen in usual().items():
        assert (seen["resources"], seen["requests"], seen["scripts"]) == ([], [], 0), name


@pytest.mark.parametrize("name", ATTACKS)
def test_escaping_alone_keeps_strings_from_being_executed(name: str) -> None:
    seen = attacked()[f"escaped-{name}"]
    assert not seen["executed"]
    assert (seen["scripts"], seen["handlers"], seen["resources"]) == (0, 0, [])
    assert seen["tags"] == attacked()["harmless"]["tags"]


@pytest.mark.parametrize("name", ATTACKS)
def test_the_policy_alone_keeps_strings_from_being_executed(name: str) -> None:
    assert not attacked()[f"policy-{name}"]["executed"]


@pytest.mark.parametrize("name", ["element", "style", "handler", "drawing", "frame", "comment"])
def test_without_either_strings_are_executed(name: str) -> None:
    assert attacked()[f"control-{name}"]["executed"]
