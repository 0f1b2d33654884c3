"""A program's text: what names refer to, and which value that differs from run to run an expression goes back to.

Nothing of the program is run. `likely` reads the files in which two runs differ; `lint` reads any file before anything runs.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from determinism.diagnose.parsed_module import (
    FILLING,
    Function,
    Module,
    Scope,
    asks_at_random,
    assigned,
    bindings_of,
    given_back,
    given_to,
    gives_numbers,
    is_named_label,
    is_none,
    iterates_range,
    last_part,
    own_expressions,
    parameters,
    within,
)
from determinism.probes.rewrite import IGNORES_ORDER, KEEPS_CONTENT
from determinism.trace.schema import Frame

_MOST_LOOKED_AT = 3000
"""The most expressions visited on the way back."""

_BY_SOURCE = {
    "clock": (
        "time.time", "time.monotonic", "time.perf_counter", "time.process_time", "time.thread_time", "time.time_ns", "time.monotonic_ns",
        "time.perf_counter_ns", "time.process_time_ns", "time.thread_time_ns", "time.localtime", "time.gmtime", "time.ctime", "time.strftime",
        "time.asctime", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today",
    ),
    "completion-order": ("concurrent.futures.as_completed", "asyncio.as_completed"),
    "entropy": (
        "os.urandom", "os.getrandom", "uuid.uuid1", "uuid.uuid4", "secrets.token_bytes", "secrets.token_hex", "secrets.token_urlsafe",
        "secrets.randbelow", "secrets.randbits", "secrets.choice", "random.SystemRandom", "tempfile.mkdtemp", "tempfile.mkstemp",
        "tempfile.mktemp", "tempfile.NamedTemporaryFile", "tempfile.TemporaryDirectory",
    ),
    "hash": ("hash",),
    "id": ("id",),
    "listing": ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "glob.glob", "glob.iglob"),
    "uninitialized-array": ("numpy.empty", "numpy.empty_like"),
    "machine-state": (
        "os.getloadavg", "os.times", "resource.getrusage", "psutil.cpu_percent", "psutil.cpu_times", "psutil.cpu_times_percent", "psutil.cpu_freq",
        "psutil.cpu_stats", "psutil.getloadavg", "psutil.virtual_memory", "psutil.swap_memory", "psutil.disk_io_counters",
        "psutil.net_io_counters", "psutil.boot_time",
    ),
    "process-id": ("os.getpid", "os.getppid", "threading.get_ident", "threading.get_native_id"),
}  # fmt: skip
CALLS = {name: source for source, names in _BY_SOURCE.items() for name in names}
"""Calls that give a different result in each run, with their source: those noted while a program runs, if the text names them by their
module. A test checks that the two agree; the notes are defined in a module that imports far more than reading needs."""
MADE_SEEDS = ("clock", "process-id", "entropy", "machine-state", "file-time")
"""Sources of which programs make seeds that are meant to differ in each run; a line is changed for them only where it makes a seed."""
METHODS = {"iterdir": "listing", "rglob": "listing", "imap_unordered": "completion-order", "getpid": "process-id"}
GENERATORS = (
    "numpy.random.default_rng", "numpy.random.RandomState", "numpy.random.Generator", "numpy.random.SeedSequence", "numpy.random.PCG64",
    "random.Random",
)  # fmt: skip
"""Calls that make a generator, which starts from the operating system unless a seed is given."""
NOT_DRAWS = frozenset({
    "seed", "get_state", "set_state", "getstate", "setstate", "Generator", "SeedSequence", "PCG64", "Philox", "MT19937", "SystemRandom",
})  # fmt: skip
_SCIKIT_LEARN = frozenset({
    "train_test_split", "shuffle", "resample", "RandomForestClassifier", "RandomForestRegressor", "ExtraTreesClassifier", "ExtraTreesRegressor",
    "MLPClassifier", "MLPRegressor", "KMeans", "MiniBatchKMeans", "ShuffleSplit", "StratifiedShuffleSplit", "make_classification",
    "make_regression", "make_blobs", "make_moons", "make_circles", "SGDClassifier", "SGDRegressor", "RandomizedSearchCV", "RepeatedKFold",
    "RepeatedStratifiedKFold", "GroupShuffleSplit", "GaussianMixture", "BayesianGaussianMixture", "TSNE", "IsolationForest",
    "BaggingClassifier", "BaggingRegressor", "Perceptron", "SpectralClustering", "LatentDirichletAllocation", "GaussianRandomProjection",
    "SparseRandomProjection", "permutation_importance",
})  # fmt: skip
_SHUFFLES_IF_ASKED = frozenset({"KFold", "StratifiedKFold", "StratifiedGroupKFold"})
_SCIPY = frozenset({"differential_evolution", "dual_annealing", "basinhopping", "rvs", "kmeans2"})
"""Functions that draw from NumPy's global generator unless given `random_state`, or the library's name for it."""
_SEED_EACH = (
    "ignite.utils.manual_seed", "monai.utils.set_determinism", "monai.utils.misc.set_determinism", "timm.utils.random_seed",
    "timm.utils.random.random_seed", "transformers.enable_full_determinism", "transformers.trainer_utils.enable_full_determinism",
)  # fmt: skip
"""Functions that seed Python, NumPy and PyTorch, and whose names do not show it; those whose names do are told by them."""
SEEDS = {
    "numpy": ("numpy.random.seed", *_SEED_EACH),
    "random": ("random.seed", *_SEED_EACH),
    "torch": (
        "torch.manual_seed", "torch.random.manual_seed", "torch.cuda.manual_seed_all", "torch.random.set_rng_state", "torch.set_rng_state",
        *_SEED_EACH,
    ),
    "tensorflow": (
        "tensorflow.random.set_seed", "tensorflow.set_random_seed", "tensorflow.random.set_random_seed", "tensorflow.compat.v1.set_random_seed",
        "tensorflow.compat.v1.random.set_random_seed",
    ),
}  # fmt: skip
SEED_ALL = frozenset({"seed_everything", "set_seed", "set_random_seed", "seed_all", "fix_seed", "set_all_seeds"})
"""Functions of libraries that seed every generator, and names that programs often give their own."""
UNORDERED = IGNORES_ORDER | {"bool", "isinstance"}
SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
ITERATING = frozenset(
    ["list", "tuple", "enumerate", "zip", "map", "iter", "next", "dict", "numpy.array", "numpy.fromiter", "join"]
)
OBJECTS = frozenset({"parameters", "modules", "children", "buffers"})
"""Methods of modules that return objects."""
_USING_NAMES = frozenset({
    "hash", "int", "ord", "sum", "sorted", "min", "max", "encode", "from_bytes", "crc32", "adler32", "md5", "sha1", "sha256", "sha512", "blake2b",
    "Random", "default_rng", "RandomState", "SeedSequence",
})  # fmt: skip
"""Calls that compute with the characters of a string. Anything else that takes the name of a temporary file only uses it to find the file."""
_RUN_BY_OTHERS = ("__getitem__", "__iter__", "__next__", "__call__", "__getitems__", "forward")
"""Methods that run when an object is used."""

_TELLING = (
    *("unseeded-generator", "numpy-random", "python-random", "set-order", "hash", "seed-value", "entropy"),
    *("completion-order", "time-limit", "queue-order", "process-queue", "program-output", "query-result"),
)
"""Sources that vary in nearly every run; other sources are named only if there is none of these."""


_IN_LIBRARIES = ("unseeded-generator", "numpy-random", "python-random")
RunningIn = Callable[[str], Collection[str] | None]


@dataclass(frozen=True)
class Found:
    """A source that an expression goes back to, and its line."""

    source: str
    file: str
    line: int
    function: str
    code: str
    has_objects: bool = False
    """Whether it is a set of what the text shows to be instances of classes, which are hashed by their address."""
    beside: tuple[tuple[str, ast.Call], ...] = field(default=(), compare=False, repr=False)
    """All calls in its statement that are sources, with the source of each; includes the one that was found."""

    @property
    def frame(self) -> Frame:
        """Its line, as reports have it."""
        return Frame(self.file, self.line, self.function, self.code)


def is_given_generator(call: ast.Call) -> bool:
    """Whether a call is given a generator or a seed by a keyword that names one."""
    names = ("generator", "seed", "rng", "random_state")
    return any(one.arg in names and not is_none(one.value) for one in call.keywords)


def draws_from_numpy(module: Module, call: ast.Call) -> bool:
    """Whether a call of another library draws from NumPy's global generator, as it is given no generator or seed."""
    if is_given_generator(call):
        return False
    name, last = module.dotted(call.func), last_part(call.func)
    if name.startswith("sklearn.") and last in _SCIKIT_LEARN:
        # Without shuffling nothing is drawn.
        return not any(one.arg == "shuffle" and getattr(one.value, "value", True) is False for one in call.keywords)
    if name.startswith("sklearn.") and last in _SHUFFLES_IF_ASKED:
        return any(one.arg == "shuffle" and getattr(one.value, "value", True) is True for one in call.keywords)
    if name.startswith("scipy.") and last in _SCIPY:
        return True
    is_of_table = last == "sample" and isinstance(call.func, ast.Attribute) and "pandas" in module.packages
    return is_of_table and any(one.arg in ("frac", "n") for one in call.keywords)


# The program's files together, and what an expression in one of them goes back to.


_Node = tuple[Module, ast.AST]


class Program:
    """All files of the program."""

    def __init__(
        self, modules: Sequence[Module], *, has_fixed_hashes: bool, running_in: RunningIn = lambda _: None
    ) -> None:
        """Read no file: take those that were read.

        Args:
            modules: The files.
            has_fixed_hashes: Whether strings have the same hashes in each run.
            running_in: Returns the functions of a library's file that were seen running; None for a file of the program.
        """
        self._modules = modules
        self._running_in = running_in
        self._has_fixed_hashes = has_fixed_hashes
        self._is_in_seed = False
        """Whether a seed is being traced back, so that the search does not run in circles."""
        self._drawn_seed: ast.Call | None = None
        """A draw of which is asked whether a seed goes back to it."""
        self._time_limits: set[ast.AST] = set()
        """Calls whose time limit may have expired where runs took different paths."""
        self._threads_add_to: dict[str, dict[str, ast.expr | ast.stmt]] = {}
        """By file, then by name."""
        self.functions: dict[str, list[tuple[Module, Function]]] = {}
        self.classes: dict[str, list[tuple[Module, ast.ClassDef]]] = {}
        self.attributes: dict[str, list[tuple[Module, ast.expr]]] = {}
        self.callers: dict[str, list[tuple[Module, ast.Call]]] = {}
        self._put: dict[str, list[tuple[Module, ast.expr]]] = {}
        """By the name of an attribute, the values put into it."""
        for module in modules:
            for node in module.nodes:
                if isinstance(node, Function):
                    self.functions.setdefault(node.name, []).append((module, node))
                elif isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, []).append((module, node))
                elif isinstance(node, ast.Call):
                    self.callers.setdefault(last_part(node.func), []).append((module, node))
                    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
                    if isinstance(owner, ast.Attribute) and last_part(node.func) in FILLING:
                        self._put.setdefault(owner.attr, []).extend((module, value) for value in node.args)
                for target, value in assigned(node):
                    if isinstance(target, ast.Attribute):
                        self.attributes.setdefault(target.attr, []).append((module, value))

    def seedings(self, library: str) -> list[tuple[Module, ast.Call]]:
        """Return the calls that seed a library's global generator, but for those in functions that nothing calls."""
        seeding = [
            (module, call)
            for calls in self.callers.values()
            for module, call in calls
            if module.dotted(call.func) in SEEDS[library]
            # A `set_seed` that the program defines itself seeds by the calls in it.
            or (last_part(call.func) in SEED_ALL.difference(self.functions) and module.dotted(call.func) not in SEEDS["tensorflow"])
            or module.dotted(call.func) == "determinism.seed" or module.dotted(call.func) == "determinism.enable"
        ]  # fmt: skip
        return [(module, call) for module, call in seeding if not self._is_never_called(module, module.scope_of(call))]

    def names_keras(self) -> bool:
        """Whether any file names Keras, by itself or as a part of TensorFlow."""
        return any("keras" in line for module in self._modules for line in module.lines)

    def names_seeding(self, library: str) -> bool:
        """Whether a function that seeds a library's global generator is named but not called, such as in a list of functions to call."""
        return any(
            isinstance(node, ast.Attribute)
            and module.dotted(node) in SEEDS[library]
            and getattr(module.parents.get(node), "func", None) is not node
            for module in self._modules
            for node in module.nodes
        )

    def statement_at(self, file: str, line: int, *, conditions: bool) -> Iterator[_Node]:
        """Yield the expressions of the smallest statements at a line, and of the conditions that guard them if these matter."""
        for module in self._modules:
            if module.file != file:
                continue
            spans = [
                (node.end_lineno - node.lineno, node)
                for node in ast.walk(module.tree)
                if isinstance(node, ast.stmt) and node.end_lineno is not None and node.lineno <= line <= node.end_lineno
            ]
            least = min((extent for extent, _ in spans), default=0)
            for at in (node for extent, node in spans if extent == least):
                yield from ((module, part) for part in own_expressions(at))
                if conditions:
                    yield from self._conditions(module, at)

    def _conditions(self, module: Module, at: ast.AST) -> Iterator[_Node]:
        while (parent := module.parents.get(at)) is not None and not isinstance(parent, ast.Module):
            if isinstance(parent, ast.If | ast.While):
                yield module, parent.test
            elif isinstance(parent, ast.ExceptHandler) and parent.type and last_part(parent.type) in _TOO_LATE:
                tried = (call for one in module.parents[parent].body for call in ast.walk(one))  # type: ignore[attr-defined]
                for call in tried:
                    if isinstance(call, ast.Call) and any(one.arg == "timeout" for one in call.keywords):
                        self._time_limits.add(call)
                        yield module, call
            at = parent

    def back_from(self, begin: Sequence[_Node]) -> Found | None:
        """Return the nearest source of some expressions; one that nearly always varies comes first."""
        waiting = deque((module, node, _uses_letters(module.parents.get(node)), False) for module, node in begin)
        seen: set[int] = set()
        other: Found | None = None
        while waiting and len(seen) < _MOST_LOOKED_AT:
            module, node, is_of_letters, is_label = waiting.popleft()
            if id(node) in seen:
                continue
            seen.add(id(node))
            for look in (self._seeded_by, self._changed_by_threads, self._drawn_by_threads):
                if (known := look(module, node)) is not None and self._running_in(known.file) is None:
                    return known
            source = self._source(module, node)
            if source in ("python-random", "numpy-random") and isinstance(node, ast.Call):
                node = self._first_draw(module, node, source)
            is_file = isinstance(node, ast.Call) and module.dotted(node.func).startswith("tempfile.")
            is_name = (is_file or (is_label and source in MADE_SEEDS)) and not is_of_letters
            if source is not None and isinstance(node, ast.expr) and not is_name and self._counts(module, node, source):
                frame = module.frame(node)
                has_objects = source == "set-order" and self.has_objects(module, node)
                beside = self._calls_beside(module, node)
                found = Found(source, frame.file, frame.line, frame.function, frame.code, has_objects, beside)
                if source in _TELLING:
                    return found
                other = other or found
            # What makes a label, such as `int(time.time())`, does not use it.
            is_of_letters = is_of_letters or (_uses_letters(node) and not is_label)
            is_label = is_label or is_named_label(node)
            waiting.extend((*behind, is_of_letters, is_label) for behind in self._behind(module, node))
        return other

    def _counts(self, module: Module, node: ast.AST, source: str) -> bool:
        """Whether a source may be named: in a library, only a generator without a seed, in a function that was seen running."""
        is_own = self._running_in(module.file) is None
        return is_own or (source in _IN_LIBRARIES and self._is_own_or_ran(module, node))

    def _is_own_or_ran(self, module: Module, node: ast.AST) -> bool:
        """Whether a place is in a file of the program, or in a library's function that was seen running."""
        functions = self._running_in(module.file)
        return functions is None or getattr(module.scope_of(node), "name", "<module>") in functions

    def _first_draw(self, module: Module, draw: ast.Call, source: str) -> ast.Call:
        """Return the first draw in the same function that decides what a draw chooses from; if there is none, the draw."""
        function, reached = module.scope_of(draw), list[ast.AST]([draw])
        for at in reached:
            if isinstance(at, ast.Call) and at.lineno < draw.lineno and self._source(module, at) == source:
                draw = at
            reached += [
                node
                for owner, node in self._behind(module, at)
                if owner is module and module.scope_of(node) is function and node not in reached
            ]
        return draw

    def comes_from(self, begin: Sequence[_Node], file: str, line: int, column: int) -> bool:
        """Whether some expressions go back to the call that begins there or, if its result is unused, to the object it is called on,
        such as a cursor.
        """
        alone = {
            ast.unparse(node.value.func.value)
            for module in self._modules
            for node in (ast.walk(module.tree) if module.file == file else ())
            if isinstance(node, ast.Expr) and (node.lineno, node.col_offset) == (line, column)
            if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute)
        }
        waiting, seen = deque(begin), set[int]()
        while waiting and len(seen) < _MOST_LOOKED_AT:
            module, node = waiting.popleft()
            if id(node) in seen:
                continue
            seen.add(id(node))
            is_there = isinstance(node, ast.Call) and (node.lineno, node.col_offset) == (line, column)
            is_of_it = bool(alone) and isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in alone
            if module.file == file and (is_there or is_of_it):
                return True
            waiting.extend(self._behind(module, node))
        return False

    def varying_seed(self, module: Module, value: ast.expr) -> ast.expr | None:
        """Return the expression that makes a seed's value and varies between runs; None if none is found in the file.

        Names of seeds and parameters are followed back to their assignments; alternatives that do not vary, such as a seed that
        the user passes, are left out.
        """
        waiting = deque([value])
        seen: set[ast.expr] = set()
        while waiting:
            node = waiting.popleft()
            if node in seen:
                continue
            seen.add(node)
            inner = node
            while (
                isinstance(inner, ast.Call) and last_part(inner.func) in ("int", "str", "abs") and len(inner.args) == 1
            ):
                inner = inner.args[0]
            if isinstance(inner, ast.IfExp | ast.BoolOp):
                waiting.extend((inner.body, inner.orelse) if isinstance(inner, ast.IfExp) else inner.values)
            elif isinstance(inner, ast.Name) and (_names_seed(inner.id) or _is_parameter(module, inner)):
                waiting.extend(one for _, one in self.values_of(module, inner) if isinstance(one, ast.expr))
            elif isinstance(inner, ast.Attribute) and _names_seed(inner.attr):
                waiting.extend(one for _, one in self.attributes.get(inner.attr, ()))
            elif isinstance(inner, ast.Name) and (mixed := self._mixed(module, inner)) is not None:
                waiting.append(mixed)
            elif isinstance(inner, ast.BinOp) and (part := self._varying_part(module, inner)) is not None:
                waiting.append(part)
            elif self._makes_seed(module, node):
                return node
        return None

    def _makes_seed(self, module: Module, node: ast.expr) -> bool:
        found = self.back_from([(module, node)])
        return found is not None and found.source in MADE_SEEDS

    def _mixed(self, module: Module, name: ast.Name) -> ast.BinOp | None:
        """Return a name's value, if it has only one in its function and that is computed from several."""
        made = module.given(module.scope_of(name), name.id)
        return made[0] if len(made) == 1 and isinstance(made[0], ast.BinOp) else None

    def _varying_part(self, module: Module, mixed: ast.BinOp) -> ast.expr | None:
        """Return the only part of a sum or the like that varies, next to one that the program chooses; None if there is none."""
        for part, other in ((mixed.left, mixed.right), (mixed.right, mixed.left)):
            if isinstance(other, ast.Constant) and isinstance(part, ast.BinOp):
                return self._varying_part(module, part)
            has_name = any(isinstance(one, ast.Name) for one in ast.walk(other))
            if has_name and not self._makes_seed(module, other) and self._makes_seed(module, part):
                return part
        return None

    def _calls_beside(self, module: Module, node: ast.expr) -> tuple[tuple[str, ast.Call], ...]:
        calls = [
            one
            for part in own_expressions(module.statement_of(node))
            for one in ast.walk(part)
            if isinstance(one, ast.Call)
        ]
        sources = [(self._source(module, call), call) for call in calls]
        return tuple((source, call) for source, call in sources if source is not None)

    def _seeded_by(self, module: Module, node: ast.AST) -> Found | None:
        """Return the call that seeds an expression's generator with a varying value; None if there is none."""
        if not isinstance(node, ast.Call):
            return None
        library, _, draw = module.dotted(node.func).rpartition(".")
        if draws_from_numpy(module, node):
            library = "numpy.random"
        # A call that creates its own generator does not draw from the global one, however that is seeded.
        is_draw = library in ("numpy.random", "random") and draw not in NOT_DRAWS
        if not is_draw or f"{library}.{draw}" in GENERATORS or self._is_in_seed:
            return None
        self._is_in_seed = True
        try:
            for owner, call in self.seedings("numpy" if library == "numpy.random" else "random"):
                found = self.back_from([(owner, value) for value in given_to(call)])
                # What becomes the seed was drawn before.
                if (
                    found is not None
                    and isinstance(node, ast.Call)
                    and (found.file, found.line) != (module.file, node.lineno)
                ):
                    frame = owner.frame(call)
                    return Found("seed-value", frame.file, frame.line, frame.function, frame.code)
        finally:
            self._is_in_seed = False
        return None

    def _is_never_called(self, module: Module, scope: Scope) -> bool:
        """Whether a scope is a function of the module that nothing names, and that no decorator or class hands to others."""
        if not isinstance(scope, Function) or scope.decorator_list or module.parents.get(scope) is not module.tree:
            return False
        return scope.name not in self._named

    @cached_property
    def _named(self) -> frozenset[str]:
        """All names that the program uses, attributes among them."""
        nodes = (node for module in self._modules for node in module.nodes)
        return frozenset(last_part(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute))

    def _changed_by_threads(self, module: Module, node: ast.AST) -> Found | None:
        """Return the line where several threads change what an expression names, in no fixed order; None if there is none."""
        if not isinstance(node, ast.Name | ast.Attribute):
            return None
        change = self.changes_by_threads(module).get(last_part(node))
        if change is None or module.scope_of(change) is module.scope_of(node):
            return None
        frame = module.frame(change)
        return Found("thread-update", frame.file, frame.line, frame.function, frame.code)

    def _drawn_by_threads(self, module: Module, node: ast.AST) -> Found | None:
        """Return a draw that several threads make from a generator that they share; None if it is not one."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _DRAWS):
            return None
        function, owner = module.scope_of(node), node.func.value
        if all(function is not one for _, one in self._run_by_several_threads(module)):
            return None
        made = module.bound(module.tree, owner.id) if isinstance(owner, ast.Name) else []
        is_made = any(isinstance(one, ast.Call) and module.dotted(one.func) in GENERATORS for one in made)
        if module.dotted(owner) not in ("numpy.random", "random") and (
            not is_made or module.bound(function, last_part(owner))
        ):
            return None
        frame = module.frame(node)
        return Found("thread-draw", frame.file, frame.line, frame.function, frame.code)

    def _run_by_several_threads(self, module: Module) -> Iterator[tuple[ast.Call, Function]]:
        """Yield functions that several threads run at the same time, each with the call that hands it over."""
        for starts in self._starts_of_threads(module).values():
            if len(starts) > 1 or _is_repeated(module, starts[0][0]):
                yield from starts

    def changes_by_threads(self, module: Module) -> dict[str, ast.expr | ast.stmt]:
        """Return, by name, the first place where a function that several threads run adds to what others know by that name."""
        if module.file not in self._threads_add_to:
            found = self._threads_add_to[module.file] = {}
            for call, function in self._run_by_several_threads(module):
                for node in within(function):
                    for name in _added_to(node, function, call):
                        found.setdefault(name, node)  # type: ignore[arg-type]
        return self._threads_add_to[module.file]

    def _starts_of_threads(self, module: Module) -> dict[str, list[tuple[ast.Call, Function]]]:
        """Return, by the name of a function, the calls that run it in a thread."""
        pools = any(owner is module for name in _THREAD_POOLS for owner, _ in self.callers.get(name, ()))
        found: dict[str, list[tuple[ast.Call, Function]]] = {}
        for name in ("Thread", *(_HANDING_OVER if pools else ())):
            for owner, call in self.callers.get(name, ()):
                given = (
                    [one.value for one in call.keywords if one.arg == "target"] if name == "Thread" else call.args[:1]
                )
                for one in given if owner is module else ():
                    for home, function in self.functions.get(last_part(one), ()):
                        if home is module:
                            found.setdefault(function.name, []).append((call, function))
        return found

    def _source(self, module: Module, node: ast.AST) -> str | None:
        """Return the source that an expression is; None if it is not one."""
        if isinstance(node, ast.Call):
            return self._called(module, node)
        return "set-order" if self.is_iterated(module, node) and self.is_set(module, node) else None

    def _called(self, module: Module, call: ast.Call) -> str | None:
        name, last = module.dotted(call.func), last_part(call.func)
        if isinstance(call.func, ast.Name) and (last in self.functions or last in self.classes):
            return None
        given = given_to(call)
        if call in self._time_limits:
            return "time-limit"
        if name in GENERATORS:
            return None if given and not is_none(given[0]) else "unseeded-generator"
        if (asked := asks_at_random(module, call)) is not None:
            return asked
        if name == "open" and given and getattr(given[0], "value", None) in ("/dev/urandom", "/dev/random"):
            return "entropy"
        if (
            last == "get"
            and isinstance(call.func, ast.Attribute)
            and (filled := self._filled_queue(module, call.func.value))
        ):
            return filled
        if name in CALLS:
            if name == "hash" and self._has_fixed_hashes:
                return None
            return None if CALLS[name] == "listing" and self._is_sorted(module, call) else CALLS[name]
        if last in METHODS and isinstance(call.func, ast.Attribute):
            return None if METHODS[last] == "listing" and self._is_sorted(module, call) else METHODS[last]
        library, _, draw = name.rpartition(".")
        is_of_numpy = library == "numpy.random" or draws_from_numpy(module, call)
        if (is_of_numpy or library == "random") and draw not in NOT_DRAWS:
            seeded = self.seedings("numpy" if is_of_numpy else "random")
            if not seeded or self._becomes_its_own_seed(module, call, seeded):
                return "numpy-random" if is_of_numpy else "python-random"
        if (
            last == "pop"
            and isinstance(call.func, ast.Attribute)
            and not given
            and self.is_set(module, call.func.value)
        ):
            return "set-order"
        is_iterated = self.is_iterated(module, call) and self.is_set(module, call)
        return "set-order" if is_iterated else None

    def _becomes_its_own_seed(self, module: Module, call: ast.Call, seeded: Sequence[tuple[Module, ast.Call]]) -> bool:
        """Whether a generator is seeded by nothing but a number drawn from it before: `seed = random.randint(1, 10000)`, `random.seed(seed)`."""
        if self._drawn_seed is not None:
            return self._drawn_seed is call
        self._drawn_seed = call
        try:
            found = [self.back_from([(owner, value) for value in given_to(one)]) for owner, one in seeded]
        finally:
            self._drawn_seed = None
        return all(one is not None and (one.file, one.line) == (module.file, call.lineno) for one in found)

    def _filled_queue(self, module: Module, node: ast.AST) -> str | None:
        """Return the source that items of a queue are; None if the expression is not a queue that several threads or processes may fill."""
        if not isinstance(node, ast.Name | ast.Attribute):
            return None
        if all(owner is not module for name in _QUEUES for owner, _ in self.callers.get(name, ())):
            return None
        starts = [(owner, one) for name in _STARTED for owner, one in self.callers.get(name, ()) if owner is module]
        if len(starts) < 2 and not any(_is_repeated(owner, one) for owner, one in starts):
            return None
        given = self.values_of(module, node) if isinstance(node, ast.Name) else self.attributes.get(node.attr, ())
        for owner, value in given:
            if isinstance(value, ast.Call) and last_part(value.func) in _QUEUES:
                is_of_threads = owner.dotted(value.func).startswith("queue.")
                return "queue-order" if is_of_threads else "process-queue"
        return None

    def _is_sorted(self, module: Module, node: ast.AST) -> bool:
        if module.is_sorted_in_place(node):
            return True
        parent = module.parents.get(module.with_its_elements(node, KEEPS_CONTENT))
        return isinstance(parent, ast.Call) and last_part(parent.func) in UNORDERED

    def is_iterated(self, module: Module, node: ast.AST) -> bool:
        """Whether the elements of an expression are taken one by one, in an order that matters."""
        parent = module.parents.get(node)
        if isinstance(parent, ast.For | ast.AsyncFor):
            return parent.iter is node
        if isinstance(parent, ast.comprehension) and parent.iter is node:
            return not isinstance(around := module.parents.get(parent), ast.SetComp) and not (
                around is not None and self._is_sorted(module, around)
            )
        if isinstance(parent, ast.Starred):
            return not isinstance(module.parents.get(parent), ast.Set)
        if isinstance(parent, ast.Call) and node in parent.args:
            name = module.dotted(parent.func)
            return (name in ITERATING or last_part(parent.func) == "join") and not self._is_sorted(module, parent)
        return False

    def is_set(self, module: Module, node: ast.AST, depth: int = 0) -> bool:
        """Whether an expression is a set that may contain strings: sets of numbers always have the same order."""
        if self._has_fixed_hashes or depth > 4:
            return False
        if isinstance(node, ast.Set):
            return any(not (isinstance(one, ast.Constant) and isinstance(one.value, int | float)) for one in node.elts)
        if isinstance(node, ast.SetComp):
            return not (gives_numbers(node.elt) or iterates_range(node))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr | ast.Sub | ast.BitXor):
            sides = (node.left, node.right)
            # Subtracting from numbers, or intersecting with them, leaves numbers.
            decisive = sides if isinstance(node.op, ast.BitAnd) else sides[:1] if isinstance(node.op, ast.Sub) else ()
            if any(isinstance(side, ast.Set) and not self.is_set(module, side, depth + 1) for side in decisive):
                return False
            return any(self.is_set(module, side, depth + 1) or _is_call_of(side, "keys") for side in sides)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset"):
                return not (node.args and (gives_numbers(node.args[0]) or iterates_range(node.args[0])))
            if isinstance(node.func, ast.Attribute) and node.func.attr in SET_METHODS:
                return self.is_set(module, node.func.value, depth + 1)
        if isinstance(node, ast.Name):
            return any(
                self.is_set(owner, value, depth + 1) for owner, value in self.values_of(module, node, as_whole=True)
            )
        if isinstance(node, ast.Attribute):
            # An attribute of another object may belong to another class that uses the same name.
            is_own = not isinstance(node.value, ast.Name) or node.value.id in ("self", "cls") or depth == 0
            return is_own and any(
                self.is_set(owner, value, depth + 1) for owner, value in self.attributes.get(node.attr, ())
            )
        return False

    def has_objects(self, module: Module, node: ast.AST, depth: int = 0) -> bool:
        """Whether the text shows that the elements of a set are instances of classes."""
        if depth > 4:
            return False
        if isinstance(node, ast.SetComp | ast.GeneratorExp | ast.ListComp):
            return self._is_object(module, node.elt)
        if isinstance(node, ast.Set | ast.List | ast.Tuple):
            return any(self._is_object(module, one) for one in node.elts)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("pop", *SET_METHODS):
                return self.has_objects(module, node.func.value, depth + 1)
            if last_part(node.func) in OBJECTS:
                return True
            return last_part(node.func) in ("set", "frozenset", "map") and any(
                self.has_objects(module, one, depth + 1) or self._is_object(module, one) for one in node.args
            )
        if isinstance(node, ast.BinOp):
            return any(self.has_objects(module, side, depth + 1) for side in (node.left, node.right))
        if isinstance(node, ast.Name):
            values = list(self.values_of(module, node))
        elif isinstance(node, ast.Attribute):
            values = [*self.attributes.get(node.attr, ()), *self._put.get(node.attr, ())]
        else:
            return False
        return any(
            self.has_objects(owner, value, depth + 1) or self._is_object(owner, value) for owner, value in values
        )

    def _is_object(self, module: Module, node: ast.AST) -> bool:
        """Whether the text shows that an expression is an instance of a class, or the class itself."""
        if isinstance(node, ast.Name):
            return node.id in self.classes or node.id == "self"
        name = last_part(node.func) if isinstance(node, ast.Call) else ""
        return name in self.classes or (isinstance(node, ast.Call) and module.dotted(node.func).startswith("torch.nn."))

    def _behind(self, module: Module, node: ast.AST) -> Iterator[_Node]:
        """Yield what an expression is made from, one step back."""
        if isinstance(node, ast.Name):
            yield from self.values_of(module, node)
            return
        if isinstance(node, ast.Attribute):
            yield from self.attributes.get(node.attr, ())
            yield from self._put.get(node.attr, ())
            yield module, node.value
            return
        if isinstance(node, ast.Call):
            yield from self._called_code(module, node)
        if isinstance(node, ast.Lambda):
            yield module, node.body
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield module, child
            elif isinstance(child, ast.comprehension):
                yield from ((module, part) for part in (child.iter, *child.ifs))
            elif isinstance(child, ast.keyword):
                yield module, child.value

    def _called_code(self, module: Module, call: ast.Call) -> Iterator[_Node]:
        """Yield what a function of the program returns, and what a class does when its instances are used."""
        name = "" if module.is_standard(call.func) else last_part(call.func)
        # A function handed over is called there.
        handed = [last_part(one) for one in call.args[:1]] if last_part(call.func) in _HANDING_OVER else []
        for owner, function in (one for called in (name, *handed) for one in self.functions.get(called, ())):
            # Of many functions in libraries, such as `get`, only the name is that of the one called.
            yield from ((owner, value) for value in given_back(function) if self._is_own_or_ran(owner, value))
        for owner, kind in self.classes.get(name, ()):
            for part in kind.body:
                if isinstance(part, Function) and part.name in _RUN_BY_OTHERS:
                    yield from ((owner, value) for value in given_back(part))

    def values_of(self, module: Module, name: ast.Name, *, as_whole: bool = False) -> Iterator[_Node]:
        """Yield what a name may refer to: what is assigned to it, passed by callers or, if not `as_whole`, put into it or looped over."""
        scope: Scope = module.scope_of(name)
        while True:
            found = module.bound(scope, name.id)
            yield from ((module, value) for value in (module.given(scope, name.id) if as_whole else found))
            is_parameter = isinstance(scope, Function | ast.Lambda) and name.id in parameters(scope)
            if is_parameter and isinstance(scope, Function):
                yield from self._passed(scope, name.id)
            if found or is_parameter or isinstance(scope, ast.Module):
                return
            scope = module.scope_of(scope)

    def _passed(self, function: Function, parameter: str) -> Iterator[_Node]:
        position = parameters(function).index(parameter)
        is_method = bool(parameters(function)) and parameters(function)[0] in ("self", "cls")
        names = [function.name]
        if function.name == "__init__":
            names = [kind.name for kinds in self.classes.values() for _, kind in kinds if function in kind.body]
        for name in names:
            for module, call in self.callers.get(name, ()):
                at = position - is_method
                if 0 <= at < len(call.args):
                    yield module, call.args[at]
                yield from ((module, keyword.value) for keyword in call.keywords if keyword.arg == parameter)


_TOO_LATE = ("TimeoutError", "Empty")
_QUEUES = frozenset({"Queue", "SimpleQueue", "JoinableQueue"})
_STARTED = ("Thread", "Process", "submit")
_DRAWS = frozenset({
    "normal", "random", "integers", "choice", "choices", "permutation", "shuffle", "uniform", "standard_normal", "randint", "rand", "randn",
    "randrange", "sample", "gauss", "exponential", "poisson", "beta", "binomial",
})  # fmt: skip
_THREAD_POOLS = ("ThreadPoolExecutor", "ThreadPool")
_HANDING_OVER = ("submit", "map", "apply_async", "imap", "imap_unordered", "starmap", "run_in_executor")
_REPEATING = ("map", "imap", "imap_unordered", "starmap")


def _is_repeated(module: Module, call: ast.Call) -> bool:
    """Whether a call that starts a thread may run several times, or starts several threads itself."""
    return bool(module.loops_of(call)) or last_part(call.func) in _REPEATING


def _added_to(node: ast.AST, function: Function, start: ast.Call) -> Iterator[str]:
    """Yield the names by which other code knows what a statement adds to, in a function that a call starts in a thread."""
    target: ast.expr | None = node.target if isinstance(node, ast.AugAssign) else None
    is_name = isinstance(target, ast.Name)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FILLING - {"put"}:
        target = node.func.value
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, ast.Attribute):
        yield target.attr
    if not isinstance(target, ast.Name):
        return
    if target.id in parameters(function):
        passed = next((one.value for one in start.keywords if one.arg == "args"), None)
        given = passed.elts if isinstance(passed, ast.Tuple | ast.List) else start.args[1:]
        position = parameters(function).index(target.id)
        yield from (last_part(one) for one in given[position : position + 1] if last_part(one))
        return
    declared = {name for one in within(function) if isinstance(one, ast.Global | ast.Nonlocal) for name in one.names}
    is_own = not is_name and target.id in bindings_of(function)[1]
    if target.id in declared or not (is_name or is_own):
        yield target.id


def _uses_letters(node: ast.AST | None) -> bool:
    """Whether an expression computes with the characters of a string, for example to make a seed."""
    name = last_part(node.func) if isinstance(node, ast.Call) else ""
    return name in _USING_NAMES or _names_seed(name)


def _names_seed(name: str) -> bool:
    return "seed" in name.lower()


def _is_parameter(module: Module, name: ast.Name) -> bool:
    scope = module.scope_of(name)
    return isinstance(scope, Function | ast.Lambda) and name.id in parameters(scope)


def _is_call_of(node: ast.expr, method: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method
