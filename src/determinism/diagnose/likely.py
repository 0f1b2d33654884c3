"""Names at once, before any experiment, what most likely made two runs differ: from what was recorded and the text of the program.

The line where runs first differ is where a value was used. Where it came from is looked for in the program's own files: back
from that line through assignments, loops, parameters, attributes and functions, nearest first, to a call or an iteration that gives
something else in each run. The text is only read, never run, and what it names is only likely.
"""

from __future__ import annotations

import ast
import os
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from determinism.comparison.result import Comparison, Divergence
from determinism.diagnose.experiments import Hypothesis, Intervention, sites_of
from determinism.diagnose.hypotheses import CAUSE_OF_SOURCE, told_by_kind, without_source
from determinism.op_semantics import framework_of
from determinism.probes.rewrite import IGNORES_ORDER
from determinism.redaction import redacted_code
from determinism.run_spec import FixedSource
from determinism.sites import LONGEST_CODE
from determinism.trace.reader import Trace
from determinism.trace.schema import Frame, Table
from determinism.types import Kind

_MOST_FILES = 60
_MOST_BYTES = 1_000_000
_MOST_FRAMES = 4
_MOST_LOOKED_AT = 3000
"""Expressions that are looked at on the way back."""

_OUTSIDE = frozenset({Kind.DATA, Kind.ARGUMENT, Kind.STRUCTURE, Kind.ORDER})
"""Kinds of divergences that begin outside of the framework, so that the text can say where."""

_CALLS = {
    "os.listdir": "listing", "os.scandir": "listing", "os.walk": "listing", "glob.glob": "listing", "glob.iglob": "listing",
    "time.time": "clock", "time.time_ns": "clock", "time.monotonic": "clock", "time.monotonic_ns": "clock",
    "time.perf_counter": "clock", "time.perf_counter_ns": "clock", "datetime.datetime.now": "clock", "datetime.date.today": "clock",
    "os.urandom": "entropy", "uuid.uuid4": "entropy", "uuid.uuid1": "entropy", "secrets.randbits": "entropy",
    "secrets.randbelow": "entropy", "secrets.token_bytes": "entropy", "secrets.token_hex": "entropy", "secrets.choice": "entropy",
    "random.SystemRandom": "entropy", "os.getpid": "process-id", "threading.get_ident": "process-id",
    "hash": "hash", "id": "id", "concurrent.futures.as_completed": "completion-order", "numpy.empty": "uninitialized-array",
    "numpy.empty_like": "uninitialized-array",
}  # fmt: skip
"""Calls that give something else in each run, with the source that they are."""
_METHODS = {"iterdir": "listing", "rglob": "listing", "imap_unordered": "completion-order", "getpid": "process-id"}
_GENERATORS = (
    "numpy.random.default_rng", "numpy.random.RandomState", "numpy.random.Generator", "numpy.random.SeedSequence", "numpy.random.PCG64",
    "random.Random",
)  # fmt: skip
"""Make a generator, which starts from the operating system unless a seed is given."""
_NOT_DRAWS = frozenset(
    {
        "seed",
        "get_state",
        "set_state",
        "getstate",
        "setstate",
        "Generator",
        "SeedSequence",
        "PCG64",
        "Philox",
        "MT19937",
    }
)
_SEEDS = {
    "numpy": ("numpy.random.seed",),
    "random": ("random.seed",),
    "torch": ("torch.manual_seed", "torch.random.manual_seed", "torch.cuda.manual_seed_all", "torch.random.set_rng_state", "torch.set_rng_state"),
    "tensorflow": ("tensorflow.random.set_seed",),
}  # fmt: skip
_SEED_ALL = frozenset({"seed_everything", "set_seed", "set_random_seed", "seed_all", "fix_seed", "set_all_seeds"})
"""Functions of libraries, and the names that programs give their own, that seed every generator."""
_UNORDERED = IGNORES_ORDER | {"bool", "isinstance"}
_SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
_FILLING = frozenset({"append", "extend", "add", "insert", "update", "put", "appendleft", "setdefault"})
_ITERATING = frozenset(
    {"list", "tuple", "enumerate", "zip", "map", "iter", "next", "dict", "numpy.array", "numpy.fromiter", "join"}
)
_OBJECTS = frozenset({"parameters", "modules", "children", "buffers"})
"""Methods of modules that give objects."""
_RUN_BY_OTHERS = ("__getitem__", "__iter__", "__next__", "__call__", "__getitems__", "forward")
"""Methods that run when an object is used."""

_TELLING = (
    "unseeded-generator",
    "numpy-random",
    "python-random",
    "set-order",
    "hash",
    "seed-value",
    "entropy",
    "completion-order",
)
"""Sources that give something else in nearly each run; the others are named only if there is none of these."""


@dataclass(frozen=True)
class _Found:
    source: str
    file: str
    line: int
    function: str
    code: str
    has_objects: bool = False
    """Whether it is a set whose elements are seen to be objects of classes, which are hashed by their address."""


def likely_hypotheses(comparison: Comparison, traces: Sequence[Trace]) -> list[Hypothesis]:
    """What most likely made two runs differ, as far as the records and the program's text show it.

    Args:
        comparison: Of the runs.
        traces: Of the same runs.

    Returns:
        The likeliest alone; none if nothing points to one.
    """
    divergence = comparison.first_divergence
    if divergence is None or not traces or comparison.varied or comparison.leftovers or comparison.environment:
        return []
    told = _by_itself(divergence)
    if told or divergence.site is None:
        return told
    processes = traces[0].processes
    facts = next((p.description.get("environment") or {} for p in processes if p.key == divergence.process), {})
    # The program may set the variable itself, which comes too late: what it was started with counts.
    has_fixed_hashes = (
        facts.get("hash randomization") == "False" or os.environ.get("PYTHONHASHSEED", "random").isdigit()
    )
    recorded = [one.names.frame(text) for one in processes for text in one.names.texts(Table.FRAME)]
    lines: dict[str, set[tuple[int, str]]] = {}
    for frame in [*divergence.stack, *recorded]:
        lines.setdefault(frame.file, set()).add((frame.line, frame.code))
    read = [_Module.read(file) for file in list(lines)[:_MOST_FILES]]
    # A trace may be older than the files, or from another machine.
    modules = [module for module in read if module is not None and module.has(lines[module.file])]
    if not modules:
        return []
    program = _Program(modules, has_fixed_hashes=has_fixed_hashes)
    if divergence.kind is Kind.RNG:
        return _of_generator(divergence, program)
    return _of_values(divergence, program) if divergence.kind in _OUTSIDE else []


def _by_itself(divergence: Divergence) -> list[Hypothesis]:
    """What the kind of a divergence says without a look at the text."""
    if divergence.kind is Kind.MUTATION and divergence.saved_at is None and divergence.thread is not None:
        return [Hypothesis("thread-race", Intervention.fix("thread-schedule"), sites_of(divergence))]
    if divergence.kind in (Kind.UNINITIALIZED, Kind.MUTATION) or divergence.received_at is not None:
        return told_by_kind(divergence)
    return []


def _of_generator(divergence: Divergence, program: _Program) -> list[Hypothesis]:
    """A framework's generator was in another state: it was never seeded, or with what differs."""
    library = framework_of(divergence.op)
    if library not in ("torch", "tensorflow") or ".generator" in divergence.op:
        return []
    calls = program.seedings(library)
    if not calls:
        cause = f"seed-missing-{library}"
        evidence = (
            f"No file of the program that was recorded seeds {'PyTorch' if library == 'torch' else 'TensorFlow'}."
        )
        return [Hypothesis(cause, Intervention.fix(f"{library}-seed"), sites_of(divergence), (evidence,))]
    for module, call in calls:
        origin = program.back_from([(module, one) for one in _given_to(call)])
        if origin is not None:
            site = module.frame(call)
            sites = dict.fromkeys([site, _frame(origin), *sites_of(divergence)])
            held = FixedSource(site.file, site.line, "seed-value")
            evidence = f"The seed comes from {origin.code} at {Path(origin.file).name}:{origin.line}."
            return [Hypothesis("seed-varies", Intervention(sources=frozenset({held})), tuple(sites), (evidence,))]
    return []


def _of_values(divergence: Divergence, program: _Program) -> list[Hypothesis]:
    """A value came from outside of the framework: from what a line upstream of its use took in."""
    is_of_path = divergence.kind in (Kind.STRUCTURE, Kind.ARGUMENT)
    ways = (
        program.statement_at(frame.file, frame.line, conditions=is_of_path) for frame in divergence.stack[:_MOST_FRAMES]
    )
    found = next((one for way in ways if (one := program.back_from(list(way))) is not None), None)
    if found is None:
        return []
    cause = "address-order" if found.has_objects else CAUSE_OF_SOURCE[found.source]
    sites = dict.fromkeys([_frame(found), *sites_of(divergence)])
    evidence = "According to the program's source, what differs comes from there; no experiment has confirmed it."
    if cause == "hash-order":
        intervention = Intervention.fix("hash-seed")
    else:
        intervention = without_source(FixedSource(found.file, found.line, found.source))
    return [Hypothesis(cause, intervention, tuple(sites), (evidence,))]


def _frame(found: _Found) -> Frame:
    return Frame(found.file, found.line, found.function, found.code)


# One file of the program, and what its names lead to.

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Scope = _Function | ast.Lambda | ast.Module


@dataclass
class _Module:
    """A file of the program, read."""

    file: str
    lines: list[str]
    tree: ast.Module
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, file: str) -> _Module | None:
        """The file; None if it is no Python text that can be read."""
        path = Path(file)
        try:
            if not path.is_file() or path.stat().st_size > _MOST_BYTES:
                return None
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (OSError, ValueError, SyntaxError, RecursionError):
            return None
        module = cls(file, text.split("\n"), tree)
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                module.parents[child] = node
            if isinstance(node, ast.Import):
                for name in node.names:
                    module.imports[name.asname or name.name.partition(".")[0]] = (
                        name.name if name.asname else name.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                for name in node.names:
                    module.imports[name.asname or name.name] = f"{node.module or ''}.{name.name}"
        return module

    def has(self, lines: Collection[tuple[int, str]]) -> bool:
        """Whether these lines, by number and code, are still those of the file."""
        return all(
            0 < line <= len(self.lines) and redacted_code(self.lines[line - 1].strip()[:LONGEST_CODE]) == code
            for line, code in lines
            if code
        )

    def dotted(self, node: ast.expr) -> str:
        """What a name stands for by the imports, such as `numpy.random.rand`; empty if it begins with no plain name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.imports.get(node.id, node.id), *reversed(parts)])

    def scope_of(self, node: ast.AST) -> _Scope:
        """The function around a node, or the module."""
        while (parent := self.parents.get(node)) is not None:
            if isinstance(parent, _Function | ast.Lambda | ast.Module):
                return parent
            node = parent
        return self.tree

    def frame(self, node: ast.expr | ast.stmt) -> Frame:
        """Where a node lies, as reports have it."""
        scope = self.scope_of(node)
        name = scope.name if isinstance(scope, _Function) else "<module>"
        code = self.lines[node.lineno - 1].strip() if node.lineno <= len(self.lines) else ""
        return Frame(self.file, node.lineno, name, redacted_code(code))


_Node = tuple[_Module, ast.AST]


class _Program:
    """The files of the program together."""

    def __init__(self, modules: Sequence[_Module], *, has_fixed_hashes: bool) -> None:
        self._modules = modules
        self._has_fixed_hashes = has_fixed_hashes
        self._is_in_seed = False
        """Whether the way back is that of a seed, so that it does not end in itself."""
        self._functions: dict[str, list[tuple[_Module, _Function]]] = {}
        self._classes: dict[str, list[tuple[_Module, ast.ClassDef]]] = {}
        self._attributes: dict[str, list[tuple[_Module, ast.expr]]] = {}
        self._callers: dict[str, list[tuple[_Module, ast.Call]]] = {}
        self._put: dict[str, list[tuple[_Module, ast.expr]]] = {}
        """By the name of an attribute what is put into what it stands for."""
        for module in modules:
            for node in ast.walk(module.tree):
                if isinstance(node, _Function):
                    self._functions.setdefault(node.name, []).append((module, node))
                elif isinstance(node, ast.ClassDef):
                    self._classes.setdefault(node.name, []).append((module, node))
                elif isinstance(node, ast.Call):
                    self._callers.setdefault(_last(node.func), []).append((module, node))
                    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
                    if isinstance(owner, ast.Attribute) and _last(node.func) in _FILLING:
                        self._put.setdefault(owner.attr, []).extend((module, value) for value in node.args)
                for target, value in _assigned(node):
                    if isinstance(target, ast.Attribute):
                        self._attributes.setdefault(target.attr, []).append((module, value))

    def seedings(self, library: str) -> list[tuple[_Module, ast.Call]]:
        """The calls that seed a library's global generator."""
        return [
            (module, call)
            for calls in self._callers.values()
            for module, call in calls
            if module.dotted(call.func) in _SEEDS[library] or _last(call.func) in _SEED_ALL
            or module.dotted(call.func) == "determinism.seed" or module.dotted(call.func) == "determinism.enable"
        ]  # fmt: skip

    def statement_at(self, file: str, line: int, *, conditions: bool) -> Iterator[_Node]:
        """The expressions of the smallest statement at a line, and of the conditions that it hangs on if these matter."""
        for module in self._modules:
            if module.file != file:
                continue
            spans = [
                (node.end_lineno - node.lineno, node)
                for node in ast.walk(module.tree)
                if isinstance(node, ast.stmt) and node.end_lineno is not None and node.lineno <= line <= node.end_lineno
            ]
            if spans:
                at: ast.AST = min(spans, key=lambda span: span[0])[1]
                yield from ((module, part) for part in _own_expressions(at))
                if conditions:
                    yield from self._conditions(module, at)

    def _conditions(self, module: _Module, at: ast.AST) -> Iterator[_Node]:
        while (parent := module.parents.get(at)) is not None and not isinstance(parent, ast.Module):
            if isinstance(parent, ast.If | ast.While):
                yield module, parent.test
            at = parent

    def back_from(self, begin: Sequence[_Node]) -> _Found | None:
        """The nearest source that some expressions go back to; a telling one before one that often gives the same."""
        waiting = deque(begin)
        seen: set[int] = set()
        other: _Found | None = None
        while waiting and len(seen) < _MOST_LOOKED_AT:
            module, node = waiting.popleft()
            if id(node) in seen:
                continue
            seen.add(id(node))
            seeded = self._seeded_by(module, node)
            if seeded is not None:
                return seeded
            source = self._source(module, node)
            if source is not None and isinstance(node, ast.expr):
                frame = module.frame(node)
                has_objects = source == "set-order" and self._has_objects(module, node)
                found = _Found(source, frame.file, frame.line, frame.function, frame.code, has_objects)
                if source in _TELLING:
                    return found
                other = other or found
            waiting.extend(self._behind(module, node))
        return other

    def _seeded_by(self, module: _Module, node: ast.AST) -> _Found | None:
        """The call that seeds what an expression draws from with another value in each run; None if there is none."""
        library, _, draw = module.dotted(node.func).rpartition(".") if isinstance(node, ast.Call) else ("", "", "")
        if library not in ("numpy.random", "random") or draw in _NOT_DRAWS or self._is_in_seed:
            return None
        self._is_in_seed = True
        try:
            for owner, call in self.seedings("numpy" if library == "numpy.random" else "random"):
                if self.back_from([(owner, value) for value in _given_to(call)]) is not None:
                    frame = owner.frame(call)
                    return _Found("seed-value", frame.file, frame.line, frame.function, frame.code)
        finally:
            self._is_in_seed = False
        return None

    def _source(self, module: _Module, node: ast.AST) -> str | None:
        """Which source an expression is; None if it is none."""
        if isinstance(node, ast.Call):
            return self._called(module, node)
        return "set-order" if self._is_iterated(module, node) and self._is_set(module, node) else None

    def _called(self, module: _Module, call: ast.Call) -> str | None:
        name, last = module.dotted(call.func), _last(call.func)
        if isinstance(call.func, ast.Name) and (last in self._functions or last in self._classes):
            return None
        given = _given_to(call)
        if name in _GENERATORS:
            return None if given and not _is_none(given[0]) else "unseeded-generator"
        if name in _CALLS:
            if name == "hash" and self._has_fixed_hashes:
                return None
            return None if _CALLS[name] == "listing" and self._is_sorted(module, call) else _CALLS[name]
        if last in _METHODS and isinstance(call.func, ast.Attribute):
            return None if _METHODS[last] == "listing" and self._is_sorted(module, call) else _METHODS[last]
        library, _, draw = name.rpartition(".")
        if library in ("numpy.random", "random") and draw not in _NOT_DRAWS:
            seeded = self.seedings("numpy" if library == "numpy.random" else "random")
            if not seeded:
                return "numpy-random" if library == "numpy.random" else "python-random"
        if (
            last == "pop"
            and isinstance(call.func, ast.Attribute)
            and not given
            and self._is_set(module, call.func.value)
        ):
            return "set-order"
        is_iterated = self._is_iterated(module, call) and self._is_set(module, call)
        return "set-order" if is_iterated else None

    def _is_sorted(self, module: _Module, node: ast.AST) -> bool:
        parent = module.parents.get(node)
        return isinstance(parent, ast.Call) and _last(parent.func) in _UNORDERED

    def _is_iterated(self, module: _Module, node: ast.AST) -> bool:
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
            return (name in _ITERATING or _last(parent.func) == "join") and not self._is_sorted(module, parent)
        return False

    def _is_set(self, module: _Module, node: ast.AST, depth: int = 0) -> bool:
        """Whether an expression is a set of what may be text: sets of numbers come in one order."""
        if self._has_fixed_hashes or depth > 4:
            return False
        if isinstance(node, ast.Set):
            return any(not (isinstance(one, ast.Constant) and isinstance(one.value, int | float)) for one in node.elts)
        if isinstance(node, ast.SetComp):
            return not _gives_numbers(node.elt)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr | ast.Sub | ast.BitXor):
            sides = (node.left, node.right)
            return any(self._is_set(module, side, depth + 1) or _is_call_of(side, "keys") for side in sides)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset"):
                return not (node.args and _gives_numbers(node.args[0]))
            if isinstance(node.func, ast.Attribute) and node.func.attr in _SET_METHODS:
                return self._is_set(module, node.func.value, depth + 1)
        if isinstance(node, ast.Name):
            return any(self._is_set(owner, value, depth + 1) for owner, value in self._values_of(module, node))
        if isinstance(node, ast.Attribute):
            return any(self._is_set(owner, value, depth + 1) for owner, value in self._attributes.get(node.attr, ()))
        return False

    def _has_objects(self, module: _Module, node: ast.AST, depth: int = 0) -> bool:
        """Whether the elements of a set are seen to be objects of classes."""
        if depth > 4:
            return False
        if isinstance(node, ast.SetComp | ast.GeneratorExp | ast.ListComp):
            return self._is_object(module, node.elt)
        if isinstance(node, ast.Set | ast.List | ast.Tuple):
            return any(self._is_object(module, one) for one in node.elts)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("pop", *_SET_METHODS):
                return self._has_objects(module, node.func.value, depth + 1)
            if _last(node.func) in _OBJECTS:
                return True
            return _last(node.func) in ("set", "frozenset", "map") and any(
                self._has_objects(module, one, depth + 1) or self._is_object(module, one) for one in node.args
            )
        if isinstance(node, ast.BinOp):
            return any(self._has_objects(module, side, depth + 1) for side in (node.left, node.right))
        if isinstance(node, ast.Name):
            values = list(self._values_of(module, node))
        elif isinstance(node, ast.Attribute):
            values = [*self._attributes.get(node.attr, ()), *self._put.get(node.attr, ())]
        else:
            return False
        return any(
            self._has_objects(owner, value, depth + 1) or self._is_object(owner, value) for owner, value in values
        )

    def _is_object(self, module: _Module, node: ast.AST) -> bool:
        """Whether an expression is seen to be an object of a class, or the class."""
        if isinstance(node, ast.Name):
            return node.id in self._classes or node.id == "self"
        name = _last(node.func) if isinstance(node, ast.Call) else ""
        return name in self._classes or (
            isinstance(node, ast.Call) and module.dotted(node.func).startswith("torch.nn.")
        )

    def _behind(self, module: _Module, node: ast.AST) -> Iterator[_Node]:
        """What an expression is made from, one step back."""
        if isinstance(node, ast.Name):
            yield from self._values_of(module, node)
            return
        if isinstance(node, ast.Attribute):
            yield from self._attributes.get(node.attr, ())
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

    def _called_code(self, module: _Module, call: ast.Call) -> Iterator[_Node]:
        """What a function of the program returns, and what a class of it does when its objects are used."""
        name = _last(call.func)
        for owner, function in self._functions.get(name, ()):
            yield from ((owner, value) for value in _given_back(function))
        for owner, kind in self._classes.get(name, ()):
            for part in kind.body:
                if isinstance(part, _Function) and part.name in _RUN_BY_OTHERS:
                    yield from ((owner, value) for value in _given_back(part))

    def _values_of(self, module: _Module, name: ast.Name) -> Iterator[_Node]:
        """What a name may stand for: what was assigned to it, put into it or, for a parameter, passed by callers."""
        scope: _Scope = module.scope_of(name)
        while True:
            found = list(_bound(scope, name.id))
            yield from ((module, value) for value in found)
            is_parameter = isinstance(scope, _Function | ast.Lambda) and name.id in _parameters(scope)
            if is_parameter and isinstance(scope, _Function):
                yield from self._passed(scope, name.id)
            if found or is_parameter or isinstance(scope, ast.Module):
                return
            scope = module.scope_of(scope)

    def _passed(self, function: _Function, parameter: str) -> Iterator[_Node]:
        position = _parameters(function).index(parameter)
        is_method = bool(_parameters(function)) and _parameters(function)[0] in ("self", "cls")
        names = [function.name]
        if function.name == "__init__":
            names = [kind.name for kinds in self._classes.values() for _, kind in kinds if function in kind.body]
        for name in names:
            for module, call in self._callers.get(name, ()):
                at = position - is_method
                if 0 <= at < len(call.args):
                    yield module, call.args[at]
                yield from ((module, keyword.value) for keyword in call.keywords if keyword.arg == parameter)


# Pieces of syntax.


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _given_to(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_call_of(node: ast.expr, method: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method


def _gives_numbers(node: ast.expr) -> bool:
    """Whether what is put into a set is seen to be numbers, whose hashes are the same in each run."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if isinstance(node, ast.Call):
        return _last(node.func) in ("range", "int", "float", "len", "round")
    if isinstance(node, ast.List | ast.Tuple):
        return all(_gives_numbers(one) for one in node.elts)
    return isinstance(node, ast.GeneratorExp | ast.ListComp) and _gives_numbers(node.elt)


def _own_expressions(statement: ast.AST) -> Iterator[ast.AST]:
    """The expressions of a statement itself, without those of the statements in it."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.withitem):
            yield child.context_expr


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pairs of a target and what is assigned to it."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if not isinstance(target, ast.Tuple | ast.List):
                yield target, node.value
            elif isinstance(node.value, ast.Tuple | ast.List) and len(target.elts) == len(node.value.elts):
                yield from zip(target.elts, node.value.elts, strict=True)
            else:
                yield from ((part, node.value) for part in target.elts)
    elif isinstance(node, ast.AugAssign | ast.NamedExpr) or (
        isinstance(node, ast.AnnAssign) and node.value is not None
    ):
        assert node.value is not None
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from ((part, node.iter) for part in ast.walk(node.target) if isinstance(part, ast.Name | ast.Attribute))
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr


def _within(scope: _Scope) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of functions in it."""
    waiting: deque[ast.AST] = deque(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.popleft()
        yield node
        if not isinstance(node, _Function | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def _bound(scope: _Scope, name: str) -> Iterator[ast.expr]:
    """What a name is given in a scope, and what is put into what it stands for."""
    for node in _within(scope):
        for target, value in _assigned(node):
            base = target
            while isinstance(base, ast.Subscript | ast.Starred):
                base = base.value
            if isinstance(base, ast.Name) and base.id == name:
                yield value
                if isinstance(target, ast.Subscript):
                    yield target.slice
        if isinstance(node, ast.Call):
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            if isinstance(owner, ast.Name) and owner.id == name and _last(node.func) in _FILLING:
                yield from node.args
            # What shuffles a list in place is a draw that it depends on.
            elif _last(node.func) == "shuffle" and any(
                isinstance(one, ast.Name) and one.id == name for one in node.args
            ):
                yield node


def _parameters(function: _Function | ast.Lambda) -> list[str]:
    arguments = function.args
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _given_back(function: _Function) -> Iterator[ast.expr]:
    """What a function returns or yields."""
    for node in _within(function):
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value is not None:
            yield node.value
