"""What is to be known of TensorFlow's op types, by name: there is no schema that tells it."""

from __future__ import annotations

import re

from determinism.types import Role

PASSING = frozenset(
    {"Identity", "IdentityN", "StopGradient", "PreventGradient", "Snapshot", "EnsureShape", "ReadVariableOp"}
)
"""Hand over what they were given, so what reads them reads that."""

UNRECORDED = frozenset(
    {
        "Const", "Placeholder", "PlaceholderWithDefault", "NoOp", "VarHandleOp", "DestroyResourceOp", "VarIsInitializedOp",
        "ControlTrigger", "DeleteIterator", "DeleteMultiDeviceIterator", "DeleteSeedGenerator", "DeleteMemoryCache",
        "DeleteRandomSeedGenerator", "VariableShape", "Assert", "IteratorGetNextAsOptional",
    }
)  # fmt: skip
"""Make nothing that could differ, or nothing that the program sees before another op takes it out."""

ARRIVALS = frozenset(
    {
        "IteratorGetNext", "IteratorGetNextSync", "MultiDeviceIteratorGetNextFromShard",
        "ReadFile", "RestoreV2", "Restore", "RestoreSlice", "Timestamp", "TFRecordReaderV2", "ReaderReadV2", "QueueDequeueV2",
        "QueueDequeueManyV2", "InfeedDequeue", "MatchingFiles",
    }
)  # fmt: skip
"""Bring values into the program from outside: from a data pipeline, a file, a clock."""

SAVES = frozenset({"SaveV2", "Save", "SaveSlices"})

SHOWS = frozenset(
    {
        "PrintV2", "Print", "StringFormat", "WriteFile", "LoggingOps", "WriteSummary", "WriteScalarSummary",
        "WriteHistogramSummary", "WriteImageSummary", "WriteRawProtoSummary", "PyFunc", "EagerPyFunc", "PyFuncStateless",
    }
)  # fmt: skip
"""Hand values to what is not TensorFlow."""

BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
LOOPS = frozenset({"While", "StatelessWhile"})
CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})

_WRITES = re.compile(
    r"Assign(Add|Sub)?VariableOp|Resource(Sparse)?(Apply|Scatter|Strided|Conditional|Accumulator).*|RngSkip|RngReadAndSkip|Stateful\w+"
)
_RANDOM = re.compile(
    r"Random(Uniform|StandardNormal|Shuffle|Poisson|Gamma|UniformInt|Crop|PoissonV2)|TruncatedNormal|"
    r"ParameterizedTruncatedNormal|Multinomial|Stateless(Random|Truncated|Multinomial|Parameterized|SampleDistorted|Shuffle).*|"
    r"Stateful(?!PartitionedCall).*|RngReadAndSkip|NonDeterministicInts|SampleDistortedBoundingBox(V2)?|"
    r".*CandidateSampler|RandomIndexShuffle|AnonymousSeedGenerator|AnonymousRandomSeedGenerator"
)
_SEED_INPUTS = re.compile(r"Stateless.*|RandomIndexShuffle")

_REWRITTEN = frozenset(
    {
        "MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "BiasAdd",
        "BiasAddGrad", "Add", "AddV2", "AddN", "AccumulateNV2", "Sub", "Mul", "Div", "RealDiv", "DivNoNan", "Reciprocal", "Inv", "Neg",
        "Square", "SquaredDifference", "Sqrt", "Rsqrt", "Pow", "Exp", "Expm1", "Log", "Log1p", "Erf", "Erfc", "Tanh", "TanhGrad",
        "Sigmoid", "SigmoidGrad", "Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Gelu", "Softplus", "Softmax", "LogSoftmax", "Maximum",
        "Minimum", "Abs", "Sign", "Cast", "Bitcast", "Transpose", "ConjugateTranspose", "Conj", "Reshape", "ExpandDims", "Squeeze", "Pad",
        "PadV2", "Mean", "Sum", "Max", "Min", "Prod", "All", "Any", "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "Select",
        "SelectV2", "Rank", "Shape", "Size", "Fill", "Tile", "BroadcastTo", "Split", "SplitV", "Concat", "ConcatV2", "Pack", "Unpack",
        "Slice", "StridedSlice", "Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual", "LogicalAnd", "LogicalOr",
        "LogicalNot", "ZerosLike", "OnesLike", "Range", "FloorDiv", "FloorMod", "Floor", "Ceil", "Round", "Rint", "Sin", "Cos", "Atan",
        "MaxPool", "AvgPool", "Swish", "ClipByValue", "BroadcastGradientArgs", "QuantizeV2", "Dequantize", "ReluGrad",
    }
)  # fmt: skip
"""Op types that TensorFlow's graph optimizer may fuse with their only reader, reorder, or compute otherwise."""


def arrives(op_type: str, *, has_inputs: bool) -> bool:
    """Whether an op brings values in from outside.

    Args:
        op_type: Its type.
        has_inputs: Whether it reads what records made; an optional value that none made came from an iterator.
    """
    return op_type in ARRIVALS or (op_type == "OptionalGetValue" and not has_inputs)


_PRODUCTS = frozenset(
    {
        "MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D", "Conv3D", "DepthwiseConv2dNative",
    }
)  # fmt: skip
_LAYOUTS = frozenset(
    {
        "Transpose", "ConjugateTranspose", "Conj", "Reshape", "ExpandDims", "Squeeze", "Pad", "PadV2", "Cast", "Bitcast", "QuantizeV2",
        "Dequantize",
    }
)  # fmt: skip


def role_of(op_type: str, *, has_inputs: bool) -> Role:
    """What a record of an op stands for.

    Args:
        op_type: Its type.
        has_inputs: See `arrives`.
    """
    if arrives(op_type, has_inputs=has_inputs):
        return Role.BATCH
    if op_type in SHOWS:
        return Role.ESCAPE
    return Role.CHECKPOINT if op_type in SAVES else Role.OP


def is_random(op_type: str) -> bool:
    """Whether an op draws random numbers."""
    return _RANDOM.fullmatch(op_type) is not None


def takes_its_seed(op_type: str) -> bool:
    """Whether all that a random op draws follows from tensors that it is given."""
    return _SEED_INPUTS.fullmatch(op_type) is not None


def writes_variables(op_type: str) -> bool:
    """Whether an op changes the variables whose handles it gets."""
    return op_type != "StatefulPartitionedCall" and _WRITES.fullmatch(op_type) is not None


def may_be_rewritten(op_type: str) -> bool:
    """Whether the graph optimizer may fuse an op with its neighbours, reorder it, or compute it otherwise."""
    return op_type in _REWRITTEN


def may_be_fused(op_type: str, readers: list[str], *, only_forward: bool) -> bool:
    """Whether looking at an op's result could keep the graph optimizer from computing it together with its readers.

    The optimizer does that only where nobody else reads what lies between. A fused kernel may give other bits, so what it would
    swallow is not looked at: it becomes one record with its reader. A matrix product takes nothing in but another layout of what it reads.

    Args:
        op_type: Of the op.
        readers: Of the ops that read its result.
        only_forward: Whether the graph has no gradients in it. There several elementwise ops may read one value and still be one kernel,
            as in GELU or layer normalisation; where there are gradients, these read what lies between.
    """
    if op_type not in _REWRITTEN or not readers or not all(reader in _REWRITTEN for reader in readers):
        return False
    if any(reader in _PRODUCTS for reader in readers) and op_type not in _LAYOUTS:
        return False
    return len(readers) == 1 or only_forward


def is_dataset(op_type: str) -> bool:
    """Whether an op is a stage of a data pipeline."""
    return "Dataset" in op_type and not op_type.startswith(("DatasetTo", "ReduceDataset", "DatasetCardinality"))
