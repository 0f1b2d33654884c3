"""Properties of TensorFlow's op types, by name, since no schema has them; random ops; input pipelines; and values: their digests, the
records that produced them, and the contents of variables.
"""

from __future__ import annotations

import inspect
import os
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import dataset_options_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import config, dtypes
from tensorflow.python.ops import gen_resource_variable_ops, script_ops

from determinism.digest import digest_bytes, digest_many, digest_text
from determinism.frameworks.made_values import Unread, Value
from determinism.sites import innermost_user_frame
from determinism.source_files import Owner, owner_of_file
from determinism.types import Role

PASSING = frozenset(
    {"Identity", "IdentityN", "StopGradient", "PreventGradient", "Snapshot", "EnsureShape", "ReadVariableOp"}
)
"""Pass their input on unchanged, so their readers count as readers of that input."""

UNRECORDED = frozenset(
    {
        "Const", "Placeholder", "PlaceholderWithDefault", "NoOp", "VarHandleOp", "DestroyResourceOp", "VarIsInitializedOp",
        "ControlTrigger", "DeleteIterator", "DeleteMultiDeviceIterator", "DeleteSeedGenerator", "DeleteMemoryCache",
        "DeleteRandomSeedGenerator", "VariableShape", "Assert", "IteratorGetNextAsOptional",
    }
)  # fmt: skip
"""Produce nothing that could differ, or nothing that the program sees before another op extracts it."""

ARRIVALS = frozenset(
    {
        "IteratorGetNext", "IteratorGetNextSync", "MultiDeviceIteratorGetNextFromShard",
        "ReadFile", "RestoreV2", "Restore", "RestoreSlice", "Timestamp", "TFRecordReaderV2", "ReaderReadV2", "QueueDequeueV2",
        "QueueDequeueManyV2", "InfeedDequeue",
    }
)  # fmt: skip
"""Bring values into the program from outside: from a data pipeline, a file, a clock."""

SAVES = frozenset({"SaveV2", "Save", "SaveSlices"})
BY_FILE_NAME = SAVES | {"RestoreV2", "Restore", "RestoreSlice", "ReadFile"}
"""Their first input is a file name, which is ignored: a file with a different name may have the same content."""

LAYOUT_ONLY = frozenset({f"tf::{op}" for op in ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")})
"""Use only the shapes and types of their inputs, never their content."""

READS_FILES = re.compile(r"ReadFile|(TFRecord|TextLine|FixedLengthRecord|CSV)Dataset(V\d)?")
"""Read the files that their first input names, at once or when their elements are requested."""

SHOWS = frozenset(
    {
        "PrintV2", "Print", "StringFormat", "WriteFile", "LoggingOps", "WriteSummary", "WriteScalarSummary",
        "WriteHistogramSummary", "WriteImageSummary", "WriteRawProtoSummary", "PyFunc", "EagerPyFunc", "PyFuncStateless",
    }
)  # fmt: skip
"""Pass values out of TensorFlow."""

_HANDLE_NAMES = re.compile(
    r".*ToStringHandle(V2)?|GetSessionHandle(V2)?|MultiDeviceIteratorInit|RegisterDataset(V2)?|Add(Many)?SparseToTensorsMap|"
    r"TensorArray(Grad)?V2"
)
"""Produce the name or number that identifies a resource; TensorFlow makes it anew in each run, for instance from memory addresses."""

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
"""Op types that TensorFlow's graph optimizer may fuse with their only reader, reorder, or compute differently."""


def arrives(op_type: str, *, has_inputs: bool) -> bool:
    """Whether an op brings values in from outside.

    Args:
        op_type: Its type.
        has_inputs: Whether it reads values that records produced; an optional that no record produced came from an iterator.
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
    """The role of an op's record.

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
    """Whether the input tensors of a random op determine all that it draws."""
    return _SEED_INPUTS.fullmatch(op_type) is not None


def makes_resource_handle(op_type: str) -> bool:
    """Whether an op's output only identifies a resource, so that its content is not a result."""
    return _HANDLE_NAMES.fullmatch(op_type) is not None


def writes_variables(op_type: str) -> bool:
    """Whether an op changes the variables whose handles it gets."""
    return op_type != "StatefulPartitionedCall" and _WRITES.fullmatch(op_type) is not None


def may_be_rewritten(op_type: str) -> bool:
    """Whether the graph optimizer may fuse an op with its neighbours, reorder it, or compute it differently."""
    return op_type in _REWRITTEN


def may_be_fused(op_type: str, readers: list[str], *, only_forward: bool) -> bool:
    """Whether watching an op's result could keep the graph optimizer from fusing the op with its readers.

    The optimizer fuses ops only if nothing else reads the intermediate result. A fused kernel may give different bits, so such a result
    is not watched: the op shares one record with its reader. A matrix product absorbs only ops that change the layout of its inputs.

    Args:
        op_type: The type of the op.
        readers: The types of the ops that read its result.
        only_forward: Whether the graph has no gradients. Then several elementwise ops may read one value and still be one kernel,
            as in GELU or layer normalisation; gradients would read the intermediate results.
    """
    if op_type not in _REWRITTEN or not readers or not all(reader in _REWRITTEN for reader in readers):
        return False
    if any(reader in _PRODUCTS for reader in readers) and op_type not in _LAYOUTS:
        return False
    return len(readers) == 1 or only_forward


def is_dataset(op_type: str) -> bool:
    """Whether an op is a stage of a data pipeline."""
    return "Dataset" in op_type and not op_type.startswith(("DatasetTo", "ReduceDataset", "DatasetCardinality"))


# What represents the state of the generator that a random op drew from.


def drawn_from(kind: str, read: Sequence[Value], made: Sequence[tuple[int, bytes]]) -> Sequence[bytes]:
    """The digest of the generator state; empty for an op that draws nothing.

    For an op that takes its seed as input, the seed is the state. The kernels of other ops hide their state; what they draw
    depends on it alone, so it represents the state.

    Args:
        kind: The type of the op.
        read: The values that it read.
        made: Layout and digest of each output.
    """
    if not is_random(kind):
        return ()
    if takes_its_seed(kind):
        return [digest_many(value.digest for value in read)] if read else ()
    return [digest_many(digest for _, digest in made)] if made else ()


# The stages of `tf.data` pipelines, and which of them the elements of an iterator passed through.

_MOST_STAGES = 30
_MOST_PIPELINES = 10_000
_UNTOLD = (
    "Options",
    "Model",
    "Prefetch",
    "Tensor",
    "TensorSlice",
    "Map",
    "Optimize",
    "MaxIntraOpParallelism",
    "PrivateThreadPool",
)
_VERSION = re.compile(r"Dataset(V\d+)?$")


class Pipelines:
    """Tracks the stages that each data set and iterator of the process was made from."""

    def __init__(self, note_racy: Callable[[str], None]) -> None:
        """Take a callback for pipelines whose elements or their order may vary."""
        self._note_racy = note_racy
        self._stages: dict[int, tuple[str, ...]] = {}

    def stage_made(self, kind: str, inputs: Sequence[Any], attributes: Any, outputs: Sequence[Any]) -> None:
        """Note that an op made a data set.

        Args:
            kind: The type of the op.
            inputs: Its inputs, including the data sets before it.
            attributes: Names and values, alternating.
            outputs: The data set.
        """
        stages = [stage for tensor in inputs for stage in self._stages.get(tensor._id, ())]
        name = _VERSION.sub("", kind)
        given = dict(zip(attributes[::2], attributes[1::2], strict=False))
        if name not in _UNTOLD or _what_varies(given.get("f")):
            stages.append(self._told(name, given))
        elif name == "Options" and _lets_order_vary(given.get("serialized_options")):
            self._note_racy("unordered data pipeline")
        for tensor in outputs:
            self._know(tensor, tuple(stages[-_MOST_STAGES:]))

    def _told(self, name: str, attributes: dict[str, Any]) -> str:
        order = attributes.get("deterministic")
        order = order.decode() if isinstance(order, bytes) else order
        if order == "false":
            self._note_racy("unordered data pipeline")
        elif name.startswith("Parallel") and not config.is_op_determinism_enabled() and _draws(attributes.get("f")):
            self._note_racy("random ops in a parallel data pipeline")
        varies = _what_varies(attributes.get("f"))
        if name.startswith("Parallel") and any(word.startswith(_RUNS_PYTHON) for word in varies):
            self._note_racy("Python in a parallel data pipeline")
        frame = innermost_user_frame()
        place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""
        parts = [f"deterministic={order}"] * (order is not None) + [place] * bool(place) + varies
        return f"{name}({', '.join(parts)})"

    def iterator_made(self, inputs: Sequence[Any]) -> None:
        """Note that an iterator over a data set was made."""
        handles = [tensor for tensor in inputs if tensor.dtype is dtypes.resource]
        data_sets = [tensor for tensor in inputs if tensor.dtype is dtypes.variant]
        stages = [stage for tensor in data_sets for stage in self._stages.get(tensor._id, ())]
        for handle in handles:
            self._know(handle, tuple(stages))

    def _know(self, tensor: Any, stages: tuple[str, ...]) -> None:
        if len(self._stages) >= _MOST_PIPELINES:
            self._stages.clear()
        self._stages[tensor._id] = stages

    def stages_of(self, key: int) -> str:
        """The stages before an iterator, in order, by the number of its handle; empty if unknown."""
        return " > ".join(self._stages.get(key, ()))


def _lets_order_vary(options: Any) -> bool:
    """Whether the options of a data set allow parallel stages to produce elements in any order."""
    if not isinstance(options, bytes):
        return False
    try:
        given = dataset_options_pb2.Options.FromString(options)
    except DecodeError:
        return False
    return given.WhichOneof("optional_deterministic") is not None and not given.deterministic


def _draws(function: Any) -> bool:
    """Whether the function of a stage draws from a generator that its calls share, such as the seeds that layers of Keras keep."""
    nodes = list(_nodes_of(function))
    drawn = [takes_its_seed(node.op) for node in nodes if is_random(node.op)]
    return not all(drawn) or (bool(drawn) and any(writes_variables(node.op) for node in nodes))


_RUNS_PYTHON = "runs Python"
_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_MOST_FUNCTIONS = 100


def _what_varies(function: Any) -> list[str]:
    """Phrases for what may vary between runs in the function of a stage; empty if it only computes."""
    words = ["draws random numbers"] * _draws(function)
    for node in _nodes_of(function):
        if node.op in _PYTHON:
            words.append(f"{_RUNS_PYTHON}{_python_of(node.attr['token'].s)}")
    return list(dict.fromkeys(words))


def _python_of(token: bytes) -> str:
    """The program's function that an op calls, with its line; empty if it is not the program's."""
    called = script_ops._py_funcs._funcs.get(token.decode())
    code = getattr(inspect.unwrap(getattr(called, "_func", called)), "__code__", None)
    if code is None or owner_of_file(code.co_filename) is not Owner.USER:
        return ""
    return f": {code.co_name} at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _nodes_of(function: Any) -> Iterator[Any]:
    """The ops of a function, and of those that it calls."""
    waiting, seen = [getattr(function, "name", None)], set[str]()
    while waiting and len(seen) < _MOST_FUNCTIONS:
        name = waiting.pop()
        name = name.decode() if isinstance(name, bytes) else name
        if not name or name in seen:
            continue
        seen.add(name)
        for node in context.context().get_function_def(name).node_def:
            yield node
            for attribute in node.attr.values():
                waiting += [one.name for one in (attribute.func, *attribute.list.func) if one.name]


# Digests of tensor contents, without a copy where their memory can be read in place.

_UNVALUED = (tf.resource, tf.variant)


def has_value(dtype: Any) -> bool:
    """Whether tensors of a dtype hold values, rather than handles of objects elsewhere."""
    return dtype not in _UNVALUED and not dtype._is_ref_dtype


def digest_tensor(tensor: Any) -> bytes:
    """Digest of an eager tensor that holds values.

    Args:
        tensor: On any device; waits until it is computed.
    """
    if tensor.dtype is tf.string:
        return digest_array(np.asarray(tensor._numpy_internal()))
    digest: bytes = digest_bytes(tensor)
    return digest


def digest_array(array: Any) -> bytes:
    """Digest of an array that a function of the graph passes to Python; equal to that of a tensor with equal bytes.

    Args:
        array: Of any shape and dtype; its elements are bytes where TensorFlow has strings.
    """
    if array.dtype.hasobject or array.dtype.kind == "S":
        return digest_many(_text_digest(one) for one in array.ravel())
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    try:
        digest: bytes = digest_bytes(array)
    except (ValueError, TypeError, BufferError):
        # Dtypes that NumPy does not have, such as bfloat16, do not support the buffer protocol.
        digest = digest_bytes(array.tobytes())
    return digest


def _text_digest(one: Any) -> bytes:
    return digest_bytes(one) if isinstance(one, bytes) else digest_text(str(one))


def memory_address(tensor: Any) -> int:
    """Address of an eager tensor of numbers in host memory."""
    array = tensor._numpy_internal()
    return int(array.__array_interface__["data"][0]) if isinstance(array, np.ndarray) else id(tensor)


def device_name(device: str) -> str:
    """A device's name in reports: the end of TensorFlow's long name."""
    return device.rpartition("/device:")[2] or "CPU:0"


_MOST_TENSORS = 200_000


class Resource(NamedTuple):
    """A handle of an object outside of tensors, such as a variable."""

    key: int
    handle: Any


class Values:
    """The records that produced eager tensors, by TensorFlow's tensor numbers."""

    def __init__(self) -> None:
        self._made: dict[int, Value] = {}
        self.unread = Unread()

    def get(self, tensor: Any) -> Value | None:
        """The record and output that produced an eager tensor; None if unknown."""
        return self._made.get(tensor._id)

    def made(self, tensor: Any, value: Value) -> None:
        """Note that a record produced an eager tensor."""
        if len(self._made) >= _MOST_TENSORS:
            # The oldest tensors come first, since the numbers only rise; a forgotten value is digested when it is read.
            for key in list(islice(self._made, _MOST_TENSORS // 2)):
                del self._made[key]
        self._made[tensor._id] = value
        # Strings cannot be read directly from memory, only through methods.
        if tensor.dtype != dtypes.string:
            self.unread.made(value)


class Variables:
    """The contents of variables that records wrote."""

    def __init__(self) -> None:
        self._held: dict[int, Value] = {}
        self._by_digest: dict[bytes, weakref.ref[Any]] = {}

    def get(self, key: int) -> Value | None:
        """What a variable holds; None if unknown."""
        return self._held.get(key)

    def holding(self, digest: bytes) -> Any:
        """The handle of a variable whose content has this digest; None if none is known."""
        reference = self._by_digest.get(digest)
        return None if reference is None else reference()

    def wrote(self, resource: Resource, value: Value) -> None:
        """Note that a record wrote a variable."""
        earlier = self._held.get(resource.key)
        if earlier is not None:
            self._by_digest.pop(earlier.digest, None)
        self._held[resource.key] = value
        # Weakly: a handle keeps its variable alive.
        self._by_digest[value.digest] = weakref.ref(resource.handle)


# Contents of variables, by handle.

_MOST_KNOWN = 100_000
_UNKNOWN = object()
_DTYPES: dict[int, Any] = {}
"""By the number of a handle."""


def _dtype_of(handle: Any) -> Any:
    data = handle._handle_data
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    dtype = dtypes.as_dtype(data.shape_and_type[0].dtype)
    return dtype if has_value(dtype) else None


def content_of(handle: Any) -> Any:
    """What a variable holds now, as an eager tensor that shares its memory until the variable is written.

    Args:
        handle: An eager tensor that is a handle of an object outside of tensors.

    Returns:
        None if that is not a variable with values, or is not initialised yet.
    """
    dtype = _DTYPES.get(handle._id, _UNKNOWN)
    if dtype is _UNKNOWN:
        if len(_DTYPES) >= _MOST_KNOWN:
            _DTYPES.clear()
        dtype = _DTYPES[handle._id] = _dtype_of(handle)
    if dtype is None:
        return None
    try:
        return gen_resource_variable_ops.read_variable_op(handle, dtype)
    except Exception:
        # Checking whether it is initialised would take as long as reading it.
        return None


def is_read_from(tensor: Any, handle: Any) -> bool:
    """Whether a tensor with the same content as a variable was read from it.

    If so, they share memory. A variable that scatter ops write returns copies instead (`copy_on_read_mode` in
    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/core/framework/resource_var.h): each read has its own address.

    Args:
        tensor: An eager tensor.
        handle: Handle of the variable.
    """
    content = content_of(handle)
    if content is None or content.dtype is not tensor.dtype or content.dtype is dtypes.string:
        return False
    address = memory_address(content)
    if address == memory_address(tensor):
        return True
    again = content_of(handle)
    return again is not None and memory_address(again) != address
