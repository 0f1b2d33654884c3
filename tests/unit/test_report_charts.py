"""The charts of the page: where their elements are, and that no number breaks them."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from determinism.report.html import (
    CURVES_BOTTOM,
    CURVES_TOP,
    DIFFERENCE_BOTTOM,
    LOSS_WIDTH,
    NODE_HEIGHT,
    NODE_WIDTH,
    Scale,
    flow_picture,
    linear_ticks,
    loss_chart,
    page,
    power_ticks,
    spread_chart,
    step_ticks,
    value_scale,
)
from tests.documents import make_dataflow, make_full_document, make_node

EXTREMES = [0.0, -0.0, 5e-324, 1e-300, 1.0, -1.0, 1e300, 1.7976931348623157e308, -1.7976931348623157e308]


def with_losses(*pairs: tuple[float | None, float | None]) -> dict[str, Any]:
    losses = [{"step": step, "first": first, "second": second} for step, (first, second) in enumerate(pairs)]
    return {**make_full_document(), "losses": losses}


def with_spans(*spans: tuple[int, int, int, int]) -> dict[str, Any]:
    keys = ("step", "last_step", "records", "different")
    return {**make_full_document(), "divergence_by_step": [dict(zip(keys, span, strict=True)) for span in spans]}


def points(curve: list[str]) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for part in curve for x, y in re.findall(r"(\S+),(\S+)", part)]


def test_a_scale_maps_values_to_positions() -> None:
    scale = Scale(0, 10, 100, 0)
    assert [scale.at(value) for value in (0, 5, 10)] == [100, 50, 0]
    assert Scale(1, 100, 0, 20, is_logarithmic=True).at(10) == 10


def test_ticks_are_round_numbers() -> None:
    assert [tick.text for tick in linear_ticks(Scale(0, 1, 0, 100), 4)] == ["0", "0.5", "1"]
    assert [tick.text for tick in linear_ticks(Scale(0.13, 2.4, 0, 100), 4)] == ["1", "2"]
    assert [tick.text for tick in power_ticks(Scale(1e-7, 1e-2, 0, 100, is_logarithmic=True), 3)] == [
        "1e-7",
        "1e-5",
        "1e-3",
    ]
    assert [tick.text for tick in step_ticks(Scale(3, 6, 0, 100))] == ["3", "4", "5", "6"]
    assert [tick.text for tick in step_ticks(Scale(0, 1_234_567, 0, 100))][:2] == ["0", "200,000"]


def test_losses_over_orders_of_magnitude_get_a_logarithmic_axis() -> None:
    assert value_scale([1.0, 2000.0], 0, 100).is_logarithmic
    assert not value_scale([-1.0, 2000.0], 0, 100).is_logarithmic
    assert not value_scale([1.0, 2.0], 0, 100).is_logarithmic


def test_a_falling_loss_falls_in_the_chart() -> None:
    chart = loss_chart(with_losses((3.0, 3.0), (2.0, 2.0), (1.0, 1.5)))
    assert chart is not None
    first, second = (points(curve) for curve in chart.curves)
    assert [y for _, y in first] == sorted(y for _, y in first)
    assert first[:2] == second[:2] and first[2][1] > second[2][1]


def test_the_difference_is_on_the_baseline_until_the_losses_diverge() -> None:
    chart = loss_chart(with_losses((3.0, 3.0), (2.0, 2.0), (1.0, 1.0 + 1e-7), (0.5, 0.5 + 1e-3)))
    assert chart is not None
    heights = [y for _, y in points(chart.difference)]
    assert heights[:2] == [DIFFERENCE_BOTTOM] * 2
    assert DIFFERENCE_BOTTOM > heights[2] > heights[3]
    assert (chart.first_at, chart.largest_at) == (2, 3)
    assert chart.largest == pytest.approx(1e-3)


def test_an_unknown_loss_interrupts_the_curve() -> None:
    chart = loss_chart(with_losses((3.0, 3.0), (None, 2.0), (1.0, None), (0.5, 0.5)))
    assert chart is not None
    assert [len(points([part])) for part in chart.curves[0]] == [2, 2]
    assert [len(points([part])) for part in chart.curves[1]] == [2, 2]


def test_equal_losses_are_reported_as_equal() -> None:
    chart = loss_chart(with_losses((3.0, 3.0), (2.0, 2.0)))
    assert chart is not None and chart.first_at is None
    assert "The losses are equal at all 2 steps" in page(with_losses((3.0, 3.0), (2.0, 2.0)))


def test_without_losses_there_is_no_chart() -> None:
    assert loss_chart(with_losses()) is None
    assert loss_chart(with_losses((None, None))) is None


@pytest.mark.parametrize("one", EXTREMES)
@pytest.mark.parametrize("other", EXTREMES)
def test_every_float_fits(one: float, other: float) -> None:
    found = with_losses((one, other), (other, one), (1.0, 1.0))
    chart = loss_chart(found)
    assert chart is not None
    for x, y in points(chart.curves[0]) + points(chart.curves[1]):
        assert 0 <= x <= LOSS_WIDTH and CURVES_TOP <= y <= CURVES_BOTTOM
    text = page(found)
    assert "nan" not in text.partition("<svg")[2] and not re.search(r'"-?inf', text)


def test_bars_show_the_share_of_records() -> None:
    chart = spread_chart(with_spans((0, 0, 100, 0), (1, 1, 100, 50), (2, 2, 100, 100)))
    assert chart is not None
    assert [bar.height for bar in chart.bars] == [pytest.approx((chart.baseline - 14) / 2), chart.baseline - 14]
    assert chart.bars[0].text == "step 1: 50 of 100 records differ (50.0%)"
    assert not chart.is_thinned


def test_one_record_in_a_million_is_visible() -> None:
    chart = spread_chart(with_spans((0, 9, 1_000_000, 1)))
    assert chart is not None and chart.is_thinned
    assert chart.bars[0].height > 1
    assert chart.bars[0].text.startswith("steps 0 to 9: 1 of 1,000,000 records differ")


def test_step_numbers_of_any_size_fit() -> None:
    chart = spread_chart(with_spans((10**30, 10**30, 5, 5), (10**30 + 10**20, 10**31, 5, 4)))
    assert chart is not None
    assert all(math.isfinite(number) and 0 <= number <= 720 for bar in chart.bars for number in bar[:4])


def test_without_spans_there_is_no_chart() -> None:
    assert spread_chart({**make_full_document(), "divergence_by_step": None}) is None
    assert spread_chart(with_spans((0, 0, 0, 0))) is None


def test_values_flow_downwards() -> None:
    picture = flow_picture(make_dataflow())
    assert picture is not None
    heights = {box.node["id"]: box.y for box in picture.boxes}
    for edge in make_dataflow()["edges"]:
        assert heights[edge["from"]] < heights[edge["to"]]


def test_boxes_do_not_overlap() -> None:
    picture = flow_picture(make_dataflow())
    assert picture is not None
    for one in picture.boxes:
        assert 0 <= one.x <= picture.width - NODE_WIDTH and 0 <= one.y <= picture.height - NODE_HEIGHT
        for other in picture.boxes:
            apart = abs(one.x - other.x) >= NODE_WIDTH or abs(one.y - other.y) >= NODE_HEIGHT
            assert one is other or apart


def test_the_look_of_a_box_reflects_its_record() -> None:
    picture = flow_picture(make_dataflow())
    assert picture is not None
    looks = {box.node["id"]: box.look for box in picture.boxes}
    assert (looks[4], looks[5], looks[2], looks[3]) == ("origin", "differs", "equal", "unknown")


def test_boxes_are_close_to_the_boxes_they_are_connected_to() -> None:
    nodes = [make_node(number, 0 if number < 3 else 1, "op", True) for number in range(6)]
    edges = [{"from": number, "to": 5 - number, "differs": True} for number in range(3)]
    picture = flow_picture({"nodes": nodes, "edges": edges, "left_out": 0})
    assert picture is not None
    across = {box.node["id"]: box.x for box in picture.boxes}
    assert [across[number] for number in range(3)] == [across[5 - number] for number in range(3)]


def test_long_names_are_cut_to_fit_and_kept_in_full() -> None:
    dataflow = make_dataflow()
    dataflow["nodes"][4] = make_node(4, 0, "aten::" + "x" * 200, True, module="a." * 100 + "end")
    picture = flow_picture(dataflow)
    assert picture is not None
    box = next(box for box in picture.boxes if box.node["id"] == 4)
    assert len(box.op) < 30 and box.op.endswith("…")
    assert len(box.place) < 30 and box.place.endswith("end")
    assert "x" * 200 in page({**make_full_document(), "dataflow": dataflow})


def test_edges_without_a_node_are_not_drawn() -> None:
    picture = flow_picture(
        {"nodes": [make_node(1, 0, "op", True)], "edges": [{"from": 7, "to": 1, "differs": None}], "left_out": 0}
    )
    assert picture is not None and picture.arrows == []


def test_without_nodes_there_is_no_picture() -> None:
    assert flow_picture(None) is None
    assert flow_picture({"nodes": [], "edges": [], "left_out": 0}) is None
