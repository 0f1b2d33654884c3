"""Ops that truly vary on a CPU with two threads do not any more."""

import os

import pytest
import varying_ops

RUNS_PATCHED = 12


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores to vary")
@pytest.mark.parametrize("op", filter(varying_ops.is_seen_to_vary, varying_ops.OPS), ids=lambda op: op.__name__)
def test_the_stock_op_gave_different_results(distinct_before, op):
    assert distinct_before[op.__name__][0] > 1


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores to vary")
def test_the_stock_crop_and_resize_gradient_gave_many_different_results(distinct_before):
    assert distinct_before["crop_and_resize_gradient"][0] > varying_ops.RUNS_OF_CROPS // 2


@pytest.mark.parametrize("op", varying_ops.OPS, ids=lambda op: op.__name__)
def test_the_patched_op_gives_one_result(distinct_before, record_property, op):
    after = len(set(varying_ops.results(op, RUNS_PATCHED)))
    told = "{}: {} of {} before, {} of {} after".format(op.__name__, *distinct_before[op.__name__], after, RUNS_PATCHED)
    record_property("distinct", told)
    assert after == 1
