"""All tests of one version of TensorFlow run in one process: how often results vary is counted, then it is patched."""

import os
import warnings

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ.pop("NVIDIA_TENSORFLOW_VERSION", None)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorflow as tf

import pytest
import tfdeterminism
from running import VERSION

# Files whose patches this version does not need.
collect_ignore = []
if VERSION > (2, 0):
    collect_ignore.append("test_bias_add.py")  # deterministic with TF_DETERMINISTIC_OPS=1
if VERSION > (2, 6):
    collect_ignore.append("test_segment_reductions.py")  # likewise

if not tf.executing_eagerly():
    tf.compat.v1.enable_eager_execution()


@pytest.fixture(scope="session", autouse=True)
def distinct_before():
    """How many different results each op gave before anything was patched; see varying_ops.py."""
    import varying_ops

    counts = varying_ops.count_all()
    tfdeterminism.enable_determinism()
    return counts


def pytest_report_header(config):
    return "TensorFlow {}, tfdeterminism {}; not needed: {}".format(
        tf.__version__, tfdeterminism.__version__, ", ".join(collect_ignore) or "no file"
    )


def pytest_terminal_summary(terminalreporter):
    """How often results varied, before and after."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "distinct" and report.when == "call":
                terminalreporter.write_line("TensorFlow {}: {}".format(tf.__version__, value))
