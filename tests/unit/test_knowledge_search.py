"""An op is found by any of its names."""

from __future__ import annotations

import pytest

from determinism.knowledge.entries import index, op_at
from determinism.knowledge.query import entries_for, near_names


def found(text: str, framework: str | None = None) -> list[str]:
    """The names of the ops that a text means."""
    return [entry.name for entry in entries_for(text, framework)]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torch.Tensor.scatter_add_", "torch.Tensor.scatter_add_"),
        ("torch.scatter_add", "torch.Tensor.scatter_add_"),
        ("Tensor.scatter_add_", "torch.Tensor.scatter_add_"),
        ("aten::scatter_add", "torch.Tensor.scatter_add_"),
        ("aten::scatter_add_.default", "torch.Tensor.scatter_add_"),
        ("torch.ops.aten.scatter_add.out", "torch.Tensor.scatter_add_"),
        ("scatter_add_cuda_kernel", "torch.Tensor.scatter_add_"),
        ("torch.nn.CTCLoss", "torch.nn.CTCLoss"),
        ("torch.nn.functional.ctc_loss", "torch.nn.CTCLoss"),
        ("F.grid_sample", "torch.nn.functional.grid_sample"),
        ("nn.Conv2d", "torch.nn.Conv2d"),
        ("torch.nn.Conv2d(3, 8, kernel_size=3)", "torch.nn.Conv2d"),
        ("`torch.cumsum()`", "torch.cumsum"),
        ("TORCH.CUMSUM", "torch.cumsum"),
        ("tf.nn.bias_add", "tf.nn.bias_add"),
        ("tensorflow.nn.bias_add", "tf.nn.bias_add"),
        ("tf.compat.v1.nn.bias_add", "tf.nn.bias_add"),
        ("tf.math.segment_sum", "tf.math.segment_sum"),
        ("keras.layers.BatchNormalization", "tf.compat.v1.nn.fused_batch_norm"),
        ("BatchNormalization", "tf.compat.v1.nn.fused_batch_norm"),
        ("tf.keras.layers.MaxPool2D", "tf.nn.max_pool2d"),
        ("tf.raw_ops.ParallelDynamicStitch", "tf.dynamic_stitch"),
        ("crop_and_resize", "tf.image.crop_and_resize"),
        ("NCCL_ALGO", "ncclAllReduce"),
        ("CUDNN_POOLING_MAX", "cudnnPoolingBackward"),
        ("PYTHONHASHSEED", "set"),
        ("XLA Scatter on GPU", "XLA Scatter on GPU"),
    ],
)
def test_by_name(text: str, name: str) -> None:
    assert name in found(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "RuntimeError: upsample_bilinear2d_backward_out_cuda does not have a deterministic implementation, but you set "
            "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation, or you can use the "
            "'warn_only=True' option, if that's acceptable for your application.",
            ["torch.nn.functional.interpolate"],
        ),
        (
            "_histc_cuda with floating point input does not have a deterministic implementation, but you set",
            ["torch.histc"],
        ),
        ("median CUDA with indices output does not have a deterministic implementation", ["torch.median"]),
        ("put_ does not have a deterministic implementation, but you set", ["torch.Tensor.put_"]),
        (
            "tensorflow.python.framework.errors_impl.UnimplementedError: A deterministic GPU implementation of AdjustContrastv2 is\n"
            " not currently available. [Op:AdjustContrastv2]",
            ["tf.image.adjust_contrast"],
        ),
        ("Determinism is not yet supported for SVD of matrices with 1 column.", ["tf.linalg.svd"]),
        ("Timestamp cannot be called when determinism is enabled [Op:Timestamp]", ["tf.timestamp"]),
        ("NotFoundError: No algorithm worked!", ["cuDNN convolution auto-tuning"]),
    ],
)
def test_by_the_text_of_an_error(text: str, names: list[str]) -> None:
    assert found(text) == names


def test_a_name_with_dots_is_not_guessed_at() -> None:
    assert found("torch.sparse.sum") == []
    assert found("sum") != []


def test_only_one_framework() -> None:
    assert found("conv2d", "torch") == ["torch.nn.Conv2d"]
    assert found("conv2d", "tensorflow") == ["tf.nn.conv2d"]
    assert found("torch.nn.Conv2d", "tensorflow") == []
    assert found("tf.nn.conv2d", "ngc-tensorflow") == ["tf.nn.conv2d"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("scater_add", "torch.Tensor.scatter_add_"),
        ("torch.nn.Convv2d", "torch.nn.Conv2d"),
        ("tf.nn.bias_ad", "tf.nn.bias_add"),
    ],
)
def test_near_names(text: str, name: str) -> None:
    assert name in near_names(text)


@pytest.mark.parametrize("text", ["", "   ", "()", "qqqqzzzz", "x" * 100_000, "(" * 100_000 + ")"])
def test_meaningless_text_finds_nothing(text: str) -> None:
    assert found(text) == []
    assert near_names(text) == []


def test_every_op_is_found_by_each_of_its_names() -> None:
    for entry in index().entries:
        op = op_at(entry)
        assert op.name == entry.name
        for name in (op.name, *op.names, *op.kernels, *op.alerts):
            assert entry in entries_for(name), name
