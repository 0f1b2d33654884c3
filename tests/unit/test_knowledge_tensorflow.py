"""Every row of NVIDIA's page on the status of determinism in TensorFlow is answered, for each version it names.

The page: NVIDIA/framework-reproducibility, doc/d9m/tensorflow_status.md (2023-07).
"""

from __future__ import annotations

import pytest

from determinism.knowledge.query import status

DETERMINISTIC, NONDETERMINISTIC, RAISES, DEPENDS = "deterministic", "nondeterministic", "raises", "depends"

CONVOLUTION = {"1.14": DETERMINISTIC, "1.15": DETERMINISTIC, "2.0": DETERMINISTIC, "2.1": DETERMINISTIC, "2.7": DETERMINISTIC, "2.8": DETERMINISTIC, "2.11": DETERMINISTIC}  # fmt: skip
AUTO_TUNING = {**CONVOLUTION, "2.4": DETERMINISTIC, "2.5": DETERMINISTIC, "2.6": DETERMINISTIC}
SEGMENT = {
    "2.0": NONDETERMINISTIC,
    "2.4": NONDETERMINISTIC,
    "2.5": RAISES,
    "2.6": RAISES,
    "2.7": DETERMINISTIC,
    "2.8": DETERMINISTIC,
}
SUSPECTED_SEGMENT = {**SEGMENT, "2.0": "unknown", "2.4": "unknown"}
REFUSED_SINCE_2_7 = {"2.0": NONDETERMINISTIC, "2.6": NONDETERMINISTIC, "2.7": RAISES, "2.8": RAISES, "2.11": RAISES}
REFUSED_SINCE_2_6 = {"2.0": NONDETERMINISTIC, "2.5": NONDETERMINISTIC, "2.6": RAISES, "2.8": RAISES, "2.11": RAISES}
SOFTMAX = {
    "2.0": NONDETERMINISTIC,
    "2.5": NONDETERMINISTIC,
    "2.6": DETERMINISTIC,
    "2.7": DETERMINISTIC,
    "2.8": DETERMINISTIC,
}
SPARSE_SOFTMAX = {**SOFTMAX, "2.6": RAISES}
SCATTER = {"2.0": NONDETERMINISTIC, "2.6": NONDETERMINISTIC, "2.7": DETERMINISTIC, "2.8": DETERMINISTIC}
BILINEAR = {
    "2.0": NONDETERMINISTIC,
    "2.3": NONDETERMINISTIC,
    "2.4": DETERMINISTIC,
    "2.7": DETERMINISTIC,
    "2.8": DETERMINISTIC,
}
DEPTHWISE = {
    "2.0": NONDETERMINISTIC,
    "2.6": NONDETERMINISTIC,
    "2.7": RAISES,
    "2.9": RAISES,
    "2.10": DETERMINISTIC,
    "2.11": DETERMINISTIC,
}

ROWS: list[tuple[str, str, dict[str, str]]] = [
    ("Auto-tuning of cuDNN convolution algorithms", "both", AUTO_TUNING),
    ("tfa.image.dense_image_warp", "backward", SEGMENT),
    ("tf.compat.v1.nn.fused_batch_norm", "backward", REFUSED_SINCE_2_7),
    ("tf.compat.v1.scatter_nd_update", "forward", SCATTER),
    ("tf.convert_to_tensor", "forward", SEGMENT),
    ("tf.gather", "backward", SEGMENT),
    ("tf.keras.layers.BatchNormalization", "backward", REFUSED_SINCE_2_7),
    *((f"tf.keras.layers.Conv{d}D", "backward", CONVOLUTION) for d in (1, 2, 3)),
    ("tf.keras.layers.DepthwiseConv2D", "backward", DEPTHWISE),
    *((f"tf.keras.layers.MaxPool{d}D", "backward", CONVOLUTION) for d in (1, 2, 3)),
    ("tf.keras.layers.UpSampling2D(interpolation='bilinear')", "backward", BILINEAR),
    ("tf.keras.layers.UpSampling2D(interpolation='nearest')", "backward", REFUSED_SINCE_2_7),
    ("tf.keras.losses.categorical_crossentropy", "forward", SOFTMAX),
    ("tf.keras.losses.CategoricalCrossentropy", "backward", SOFTMAX),
    ("tf.keras.losses.sparse_categorical_crossentropy", "forward", SPARSE_SOFTMAX),
    ("tf.keras.losses.SparseCategoricalCrossentropy", "backward", SPARSE_SOFTMAX),
    ("tf.image.adjust_contrast", "forward", REFUSED_SINCE_2_7),
    ("tf.image.crop_and_resize", "backward", REFUSED_SINCE_2_6),
    ("tf.image.resize(method=bilinear)", "backward", BILINEAR),
    ("tf.image.resize(method=nearest)", "backward", REFUSED_SINCE_2_7),
    ("tf.math.bincount", "forward", REFUSED_SINCE_2_7),
    ("tf.math.segment_prod", "forward", SUSPECTED_SEGMENT),
    ("tf.math.segment_sum", "forward", SEGMENT),
    *((f"tf.math.unsorted_segment_{kind}", "forward", SEGMENT) for kind in ("mean", "prod", "sqrt_n", "sum")),
    ("tf.nn.bias_add", "backward", CONVOLUTION),
    *((f"tf.nn.conv{d}d", "backward", CONVOLUTION) for d in (1, 2, 3)),
    (
        "tf.nn.ctc_loss",
        "backward",
        {"2.3": NONDETERMINISTIC, "2.5": NONDETERMINISTIC, "2.6": DETERMINISTIC, "2.8": DETERMINISTIC},
    ),
    ("tf.nn.depthwise_conv2d", "backward", DEPTHWISE),
    *((f"tf.nn.max_pool{d}d", "backward", CONVOLUTION) for d in (1, 2, 3)),
    ("tf.nn.softmax_cross_entropy_with_logits", "both", SOFTMAX),
    ("tf.nn.sparse_softmax_cross_entropy_with_logits", "both", SPARSE_SOFTMAX),
    ("tf.raw_ops.DebugNumericSummaryV2", "forward", {"2.6": NONDETERMINISTIC, "2.7": RAISES, "2.11": RAISES}),
    ("tf.scatter_nd", "forward", SCATTER),
    ("tf.sparse.sparse_dense_matmul", "forward", REFUSED_SINCE_2_6),
    *((f"tf.tensor_scatter_nd_{kind}", "forward", SCATTER) for kind in ("add", "sub", "update")),
    (
        "XLA reductions on GPU",
        "both",
        {"2.1": NONDETERMINISTIC, "2.2": DETERMINISTIC, "2.7": DETERMINISTIC, "2.8": DETERMINISTIC},
    ),
    ("XLA Scatter on GPU", "forward", {"2.7": NONDETERMINISTIC, "2.8": DETERMINISTIC, "2.11": DETERMINISTIC}),
]
"""Name, direction, and the verdict with determinism turned on in each version that the page distinguishes."""

CONTAINERS: list[tuple[str, str, dict[str, str]]] = [
    (
        "Auto-tuning of cuDNN convolution algorithms",
        "both",
        {"19.06": DETERMINISTIC, "19.12": DETERMINISTIC, "22.01": DETERMINISTIC},
    ),
    ("tf.nn.conv2d", "backward", {"19.06": DETERMINISTIC, "22.05": DETERMINISTIC}),
    ("tf.nn.max_pool2d", "backward", {"19.06": DETERMINISTIC}),
    ("tf.nn.bias_add", "backward", {"19.06": DETERMINISTIC, "21.05": DETERMINISTIC}),
    ("tf.image.resize_bilinear", "backward", {"20.02": NONDETERMINISTIC, "20.03": DETERMINISTIC}),
    ("tf.sparse.sparse_dense_matmul", "forward", {"21.02": NONDETERMINISTIC, "21.04": DEPENDS, "21.05": DEPENDS}),
    ("tf.math.segment_sum", "forward", {"21.02": NONDETERMINISTIC, "21.06": RAISES, "22.01": DETERMINISTIC}),
]


def verdicts(name: str, framework: str, version: str, direction: str) -> set[str | None]:
    """The verdicts with determinism turned on."""
    wanted = None if direction == "both" else direction
    answers = status(name, framework=framework, version=version, device="gpu", direction=wanted)
    if "(" in name:
        # The name without its argument finds both resizing methods.
        answers = [answer for answer in answers if name in (answer.op.name, *answer.op.names)]
    assert answers
    return {one.deterministic for answer in answers for one in answer.statuses if one.device.value == "gpu"}


def test_every_row_is_present() -> None:
    assert len(ROWS) == 50


@pytest.mark.parametrize(("name", "direction", "versions"), ROWS, ids=[row[0] for row in ROWS])
def test_every_row_is_answered(name: str, direction: str, versions: dict[str, str]) -> None:
    for version, verdict in versions.items():
        found = verdicts(name, "tensorflow", version, direction)
        assert verdict in found, (version, found)


@pytest.mark.parametrize(("name", "direction", "versions"), ROWS, ids=[row[0] for row in ROWS])
def test_every_row_has_a_verdict_for_the_newest_version(name: str, direction: str, versions: dict[str, str]) -> None:
    assert verdicts(name, "tensorflow", "2.21", direction) - {None}


@pytest.mark.parametrize(("name", "direction", "versions"), CONTAINERS, ids=[row[0] for row in CONTAINERS])
def test_containers_are_answered(name: str, direction: str, versions: dict[str, str]) -> None:
    for version, verdict in versions.items():
        found = verdicts(name, "ngc-tensorflow", version, direction)
        assert verdict in found, (version, found)


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("tf.nn.conv2d", "2.0", "TF_CUDNN_DETERMINISTIC"),
        ("tf.nn.bias_add", "1.15", "enable_determinism()"),
        ("tf.nn.bias_add", "2.7", "TF_DETERMINISTIC_OPS"),
        ("tf.nn.bias_add", "2.8", "enable_op_determinism()"),
        ("cuDNN convolution auto-tuning", "2.5", "TF_CUDNN_USE_FRONTEND"),
        ("cuDNN convolution auto-tuning", "2.7", "TF_CUDNN_USE_FRONTEND"),
        ("tf.nn.softmax_cross_entropy_with_logits", "2.5", "unfused"),
        ("tf.gather", "2.3", "one_hot"),
        ("tf.image.resize(method=nearest)", "2.9", "Conv2DTranspose"),
    ],
)
def test_solutions_are_those_of_the_version(name: str, version: str, words: str) -> None:
    answers = status(name, framework="tensorflow", version=version, device="gpu")
    assert any(words in (one.solution or "") for answer in answers for one in answer.statuses)


@pytest.mark.parametrize(
    "message",
    [
        "Determinism is not yet supported for Dilation2DBackpropFilter.",
        "Determinism is not yet supported for MaxPoolGradWithArgmax.",
        "Determinism is not yet supported in GPU implementation of FakeQuantWithMinMaxVarsPerChannelGradient.",
        "Determinism is not yet supported in GPU implementation of Scatter ops with ref inputs. Consider using resource variables",
        "Determinism is not yet supported for DebugNumericSummaryV2 when tensor_debug_mode is FULL_HEALTH.",
        "Deterministic GPU implementation of CropAndResizeBackpropBoxes not available.",
        "Deterministic GPU implementation of unsorted segment reduction op not available.",
        "A deterministic GPU implementation of ResizeNearestNeighborGrad is not currently available.",
        "A deterministic GPU implementation of SparseTensorDenseMatmulOp is not currently available.",
        "A deterministic GPU implementation of fused batch-norm backprop, when training is disabled, is not currently available.",
        "The GPU implementation of SparseSoftmaxCrossEntropyWithLogits that would have been executed is not deterministic.",
        "GPU MaxPool gradient ops do not yet have a deterministic XLA implementation.",
        "HLO instruction %x does not have a deterministic implementation, but run-to-run determinism is required.",
    ],
)
def test_the_refusals_of_2_21_are_understood(message: str) -> None:
    answers = status(message, framework="tensorflow", version="2.21")
    assert any(one.deterministic == "raises" for answer in answers for one in answer.statuses)


def test_ctc_loss_has_no_verdict_before_cudnn_had_it() -> None:
    verdicts = {
        version: {
            one.deterministic
            for answer in status("tf.nn.ctc_loss", framework="tensorflow", version=version, device="gpu")
            for one in answer.statuses
        }
        for version in ("2.1.4", "2.2.3", "2.3.4", "2.6.5")
    }

    assert verdicts == {
        "2.1.4": set(),
        "2.2.3": {"nondeterministic"},
        "2.3.4": {"nondeterministic"},
        "2.6.5": {"deterministic"},
    }


def test_forward_bilinear_resizing_has_the_verdicts_of_the_2019_page_and_of_the_code() -> None:
    answers = status(
        "tf.image.resize_bilinear", framework="tensorflow", version="2.1", device="gpu", direction="forward"
    )
    found = {(one.basis.value, one.deterministic) for answer in answers for one in answer.statuses}

    assert found == {("documented", "nondeterministic"), ("observed", "deterministic")}
    later = status(
        "tf.image.resize_bilinear", framework="tensorflow", version="2.21", device="gpu", direction="forward"
    )
    assert {one.deterministic for answer in later for one in answer.statuses} == {"deterministic"}
