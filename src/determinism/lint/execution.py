"""The draws and seedings of a program in execution order, as far as one file shows it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from determinism.diagnose.parsed_module import Function, Module, given_to, gives_numbers, last_part
from determinism.diagnose.program_flow import NOT_DRAWS, SEED_ALL, SEEDS, draws_from_numpy, is_given_generator

_DEEPEST = 6
_MOST_EVENTS = 4000

_TORCH_DRAWS = frozenset({
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "multinomial", "poisson",
})  # fmt: skip
_LAYERS = frozenset({
    "Linear", "Bilinear", "LazyLinear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Embedding",
    "EmbeddingBag", "RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "MultiheadAttention", "Transformer", "TransformerEncoderLayer",
    "TransformerDecoderLayer",
})  # fmt: skip
"""PyTorch layers that draw their weights when they are created."""
_SPLITS = frozenset({"torch.utils.data.random_split", "torch.utils.data.RandomSampler"})
_TENSORFLOW_DRAWS = frozenset({"normal", "uniform", "truncated_normal", "shuffle", "gamma", "poisson", "categorical"})
_EARLIER_DRAWS = frozenset({"random_normal", "random_uniform", "truncated_normal", "random_shuffle"})
"""Functions of TensorFlow 1, which `tensorflow.compat.v1` still has."""
_KERAS_LAYERS = frozenset(
    {"Dense", "Conv1D", "Conv2D", "Conv3D", "Embedding", "LSTM", "GRU", "SimpleRNN", "MultiHeadAttention", "Dropout"}
)
_INITIALIZERS = frozenset({
    "uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_", "sparse_",
})  # fmt: skip
"""Functions of `torch.nn.init` that draw."""
_DRAWS_IN_PLACE = frozenset(
    {"normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_"}
)
"""Methods that draw, and that only tensors have."""
_DRAWING_METHODS = _DRAWS_IN_PLACE | {"sample", "shuffle"}
_KERAS_DRAWS = frozenset(
    {
        "normal",
        "uniform",
        "truncated_normal",
        "randint",
        "categorical",
        "dropout",
        "shuffle",
        "gamma",
        "beta",
        "binomial",
    }
)
_RUNS = frozenset({"main", "train", "print", "run", "fit", "step", "backward"})
"""Calls that indicate that a file is run as a program."""
_KEEPS = frozenset({
    "save", "savez", "savez_compressed", "savetxt", "save_pretrained", "save_model", "save_weights", "to_csv", "to_parquet", "dump", "savefig",
    "write_text", "write_bytes", "evaluate", "predict", "serialize",
})  # fmt: skip
"""Calls that indicate that a file stores what it computed."""
_TRAINING = frozenset(
    {"train", "training", "fit", "evaluate", "experiment", "run_experiment", "run_training", "train_model"}
)
CUDA_SEEDS = frozenset({"torch.cuda.manual_seed", "torch.cuda.manual_seed_all"})
"""Functions that seed only the generators of GPUs."""
_TITLES = {"random": "Python", "numpy": "NumPy", "torch": "PyTorch", "tensorflow": "TensorFlow"}


@dataclass(frozen=True)
class Event:
    """A draw from a global generator, or a call that seeds one."""

    library: str
    is_seed: bool
    node: ast.Call

    @property
    def title(self) -> str:
        """The library's name in sentences."""
        return _TITLES[self.library]


def asks_for_main(test: ast.expr) -> bool:
    """Whether a condition asks whether the file is run as a program: `__name__ == "__main__"`."""
    return any(isinstance(one, ast.Constant) and one.value == "__main__" for one in ast.walk(test))


def is_program(module: Module) -> bool:
    """Whether a file is run as a program: it has a `__main__` part, or computes something when loaded and stores or prints the result."""
    functions = {node.name for node in module.tree.body if isinstance(node, Function)}
    for statement in module.tree.body:
        if isinstance(statement, ast.If) and asks_for_main(statement.test):
            return True
        if isinstance(statement, Function | ast.ClassDef):
            continue
        # Many libraries have a loop that only fills a table.
        is_block = isinstance(statement, ast.For | ast.While | ast.With)
        value = statement.value if isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign) else None
        calls = [one for one in (ast.walk(statement) if is_block else [value]) if isinstance(one, ast.Call)]
        if any(last_part(one.func) in _RUNS | _KEEPS for one in calls):
            return True
        # A library's top-level assignment from a function is a table as well; a program passes its function something computed before.
        if any(last_part(one.func) in functions & _TRAINING and given_to(one) for one in calls):
            return True
    return False


def seeded_libraries(module: Module, call: ast.Call) -> tuple[str, ...]:
    """Return the libraries whose global generators a call seeds."""
    name, last = module.dotted(call.func), last_part(call.func)
    if name in CUDA_SEEDS:
        # They do not affect the CPU generator, from which layers draw their weights.
        return ()
    direct = tuple(library for library, calls in SEEDS.items() if name in calls)
    if direct:
        return direct
    if name == "random.seed":
        return ("random",)
    if name in ("determinism.seed", "determinism.enable") or last in SEED_ALL:
        return tuple(SEEDS)
    return (
        tuple(SEEDS)
        if "seed" in last.lower() and last.lower().startswith(("set", "seed_", "fix", "init", "setup"))
        else ()
    )


def drawn_library(module: Module, call: ast.Call) -> str | None:
    """Return the global generator that a call draws from; None if there is none."""
    name = module.dotted(call.func)
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if not name and not method:
        return None
    owner, _, last = name.rpartition(".")
    if is_given_generator(call):
        return None
    if owner == "random" and last not in NOT_DRAWS and last[:1].islower() and "random" in module.imports.values():
        return "random"
    if (
        owner == "random"
        and f"random.{last}" in module.imports.values()
        and last not in NOT_DRAWS
        and last[:1].islower()
    ):
        return "random"
    if owner == "numpy.random" and last not in NOT_DRAWS and last[:1].islower() and last != "default_rng":
        return "numpy"
    if owner == "torch" and last in _TORCH_DRAWS:
        return "torch"
    if (owner == "torch.nn" and last in _LAYERS) or name in _SPLITS:
        return (
            "torch"
            if not any(one.arg == "device" and "meta" in ast.unparse(one.value) for one in call.keywords)
            else None
        )
    if name == "torch.utils.data.DataLoader" and any(
        one.arg == "shuffle" and isinstance(one.value, ast.Constant) and one.value.value is True
        for one in call.keywords
    ):
        return "torch"
    if owner in ("tensorflow.random", "tensorflow.compat.v1.random") and last in _TENSORFLOW_DRAWS:
        return "tensorflow"
    if owner in ("tensorflow", "tensorflow.compat.v1") and last in _EARLIER_DRAWS:
        return "tensorflow"
    if owner == "tensorflow.image" and last.startswith(("random_", "sample_distorted")):
        return "tensorflow"
    if owner == "torch.nn.init" and last in _INITIALIZERS:
        return "torch"
    if owner in ("keras.random", "tensorflow.keras.random") and last in _KERAS_DRAWS:
        return "tensorflow"
    if draws_from_numpy(module, call):
        return "numpy"
    if method in _DRAWING_METHODS and name.partition(".")[0] not in module.packages:
        return _drawn_by_method(module, call, method)
    if owner in ("tensorflow.keras.layers", "keras.layers") and last in _KERAS_LAYERS:
        return None if _starts_from_constants(call) else "tensorflow"
    return None


_CONSTANTS = frozenset({"zeros", "ones", "identity", "constant"})


def _starts_from_constants(call: ast.Call) -> bool:
    """Whether a Keras layer is told to start with weights that are not drawn."""
    given = [one.value for one in call.keywords if one.arg in ("kernel_initializer", "embeddings_initializer")]
    names = (
        str(one.value) if isinstance(one, ast.Constant) else last_part(one.func if isinstance(one, ast.Call) else one)
        for one in given
    )
    return bool(given) and all(name.lower() in _CONSTANTS for name in names)


def draws_by_keras(module: Module, call: ast.Call) -> bool:
    """Whether Keras draws for a call that names no generator: it then takes a seed from Python's generator."""
    owner = module.dotted(call.func).rpartition(".")[0]
    is_of_keras = owner.removeprefix("tensorflow.") in ("keras.random", "keras.layers")
    is_initialized = any(one.arg == "kernel_initializer" for one in call.keywords)
    return is_of_keras and not is_initialized and drawn_library(module, call) is not None


def _drawn_by_method(module: Module, call: ast.Call, method: str) -> str | None:
    """Return the global generator that an object's method draws from, where its name reveals what the object is."""
    imported = module.packages
    if method in _DRAWS_IN_PLACE and "torch" in imported:
        return "torch"
    if method == "shuffle" and imported & {"tensorflow", "tensorflow_datasets"}:
        sizes = [*call.args[:1], *(one.value for one in call.keywords if one.arg == "buffer_size")]
        return "tensorflow" if len(call.args) < 2 and any(_is_buffer_size(one) for one in sizes) else None
    return None


def _is_buffer_size(node: ast.expr) -> bool:
    """Whether an argument is a buffer size, which only TensorFlow pipelines take, rather than a list to be shuffled."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    if isinstance(node, ast.Call):
        return last_part(node.func) in ("len", "cardinality")
    return any(word in last_part(node).lower() for word in ("size", "buffer"))


def becomes_seed(module: Module, node: ast.AST) -> bool:
    """Whether a value goes straight into a call, or is assigned to a name, that is called a seed."""
    called = [last_part(one.func) for one in module.within_statement(node) if isinstance(one, ast.Call)]
    statement = module.statement_of(node)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any("seed" in name.lower() or name == "Rngs" for name in called) or any(
        "seed" in last_part(target).lower() for target in targets
    )


def is_set_to(call: ast.Call, name: str, value: object) -> bool:
    """Whether a call has an argument with this name and this literal value."""
    return any(
        one.arg == name and isinstance(one.value, ast.Constant) and one.value.value is value for one in call.keywords
    )


SEEDED_IN_WORKERS = ("random", "numpy", "torch")
"""The libraries whose generators PyTorch seeds in each worker of a loader, with a number that it draws from its own generator."""


def is_loader(module: Module, call: ast.Call) -> bool:
    """Whether a call makes one of PyTorch's data loaders."""
    return module.dotted(call.func) == "torch.utils.data.DataLoader"


def has_workers(call: ast.Call) -> bool:
    """Whether a loader is told to have a number of workers, as a literal."""
    given = [one.value for one in call.keywords if one.arg == "num_workers"]
    return any(isinstance(one, ast.Constant) and isinstance(one.value, int) and one.value > 0 for one in given)


class Execution:
    """A walk through a program, from its first line, into the functions and classes of its own that it calls."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._functions = {node.name: node for node in module.nodes if isinstance(node, Function)}
        self._classes = {node.name: node for node in module.nodes if isinstance(node, ast.ClassDef)}
        self._active: set[ast.AST] = set()
        self._walked: set[ast.AST] = set()
        self.in_workers: set[ast.AST] = set()
        """Functions that were walked as those that the worker processes of a loader run."""
        self._count = 0

    def events(self) -> list[Event]:
        """Return draws and seedings in execution order."""
        return list(self._block(self._module.tree.body))

    def _block(self, statements: list[ast.stmt]) -> Iterator[Event]:
        for statement in statements:
            if self._count > _MOST_EVENTS:
                return
            if isinstance(statement, Function | ast.ClassDef):
                if isinstance(statement, ast.ClassDef):
                    yield from self._block([one for one in statement.body if not isinstance(one, Function)])
                continue
            yield from self._node(statement)

    def _node(self, node: ast.AST) -> Iterator[Event]:
        if isinstance(node, Function | ast.ClassDef | ast.Lambda):
            return
        if isinstance(node, ast.Call):
            yield from self._call(node)
            return
        if isinstance(node, ast.With) and any("fork_rng" in ast.unparse(one.context_expr) for one in node.items):
            within = list(self._block(node.body))
            # A seed applies only until the end of the block.
            if not any(event.is_seed for event in within):
                yield from within
            return
        for child in ast.iter_child_nodes(node):
            yield from self._node(child)

    def _call(self, call: ast.Call) -> Iterator[Event]:
        if isinstance(call.func, ast.Attribute):
            yield from self._node(call.func.value)
        for argument in given_to(call):
            yield from self._node(argument)
            # A function handed over is called there.
            if isinstance(argument, ast.Name) and argument.id in self._functions:
                yield from self._into(self._functions[argument.id])
        self._count += 1
        last = last_part(call.func)
        if (
            last in self._functions
            and not last.startswith("__")
            and (isinstance(call.func, ast.Name) or self._is_own_method(call.func))
        ):
            yield from self._into(self._functions[last])
            # A `seed_everything` that the program defines seeds by the calls in it; what they omit is not seeded.
            return
        seeded = seeded_libraries(self._module, call)
        if seeded:
            yield from (Event(library, True, call) for library in seeded)
            return
        library = drawn_library(self._module, call)
        if library is not None:
            yield Event(library, False, call)
            if is_loader(self._module, call) and has_workers(call):
                yield from self._called_object(call)
        elif last in self._classes and isinstance(call.func, ast.Name):
            for part in self._classes[last].body:
                if isinstance(part, Function) and part.name in ("__init__", "__post_init__"):
                    yield from self._into(part)
        elif isinstance(call.func, ast.Name) and call.func.id == "cls":
            owner = self._class_around(call)
            for part in owner.body if owner else ():
                if isinstance(part, Function) and part.name == "__init__":
                    yield from self._into(part)
        else:
            yield from self._called_object(call)

    def _called_object(self, call: ast.Call) -> Iterator[Event]:
        """Yield what the items of a dataset draw when a loader is made from it."""
        if not is_loader(self._module, call):
            return
        if not has_workers(call):
            yield from self._items()
            return
        walked = set(self._walked)
        drawn = [event for event in self._items() if not event.is_seed]
        self.in_workers |= self._walked - walked
        # Another loader may draw the same items without workers.
        self._walked = walked
        if any(event.library in SEEDED_IN_WORKERS for event in drawn) and not is_given_generator(call):
            yield Event("torch", False, call)

    def _items(self) -> Iterator[Event]:
        for kind in self._classes.values():
            for part in kind.body:
                if isinstance(part, Function) and part.name in ("__getitem__", "__iter__"):
                    yield from self._into(part)

    def _is_own_method(self, node: ast.expr) -> bool:
        """Whether the file may define the called method, because no imported library is called."""
        return isinstance(node, ast.Attribute) and self._module.dotted(node).partition(".")[0] not in (
            value.partition(".")[0] for value in self._module.imports.values()
        )

    def _class_around(self, node: ast.AST) -> ast.ClassDef | None:
        return next((one for one in self._module.outwards(node) if isinstance(one, ast.ClassDef)), None)

    def _into(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Event]:
        if function in self._active or function in self._walked or len(self._active) >= _DEEPEST:
            return
        self._active.add(function)
        self._walked.add(function)
        yield from self._block(function.body)
        self._active.discard(function)


def is_number(module: Module, node: ast.expr) -> bool:
    """Whether what is hashed is numbers, judging by its form or annotation: their hashes are the same in each run."""
    if gives_numbers(node) or (isinstance(node, ast.Call) and last_part(node.func) == "tolist"):
        return True
    if isinstance(node, ast.Call) and last_part(node.func) in ("tuple", "list") and node.args:
        return is_number(module, node.args[0])
    if isinstance(node, ast.Tuple):
        return all(is_number(module, one) for one in node.elts)
    if isinstance(node, ast.BinOp):
        return is_number(module, node.left) or is_number(module, node.right)
    scope = module.scope_of(node)
    if isinstance(node, ast.Name) and isinstance(scope, Function):
        annotations = [one.annotation for one in scope.args.args if one.arg == node.id and one.annotation]
        return any(last_part(one) in ("int", "float", "bool") for one in annotations)
    return False
