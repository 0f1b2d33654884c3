"""Rules on order: sets, directory listings, and results taken as they become ready."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import takewhile

from determinism.diagnose.parsed_module import Function, given_to, gives_numbers, last_part, parameters
from determinism.diagnose.program_flow import CALLS, METHODS, OBJECTS
from determinism.lint.execution import drawn_library, is_set_to
from determinism.lint.findings import Finding, Severity, Text, around
from determinism.probes.rewrite import IGNORES_ORDER

_DEEPEST = 5
_PASSES_ON = frozenset({"list", "tuple", "iter", "map", "filter", "reversed", "tqdm", "track", "chain", "islice"})
_NUMBERS_IN_ORDER = frozenset({"enumerate", "zip", "next"})
_SORTS = frozenset({"sorted", "natsorted"})
_COUNTS = IGNORES_ORDER | _SORTS | {
    "Counter", "sum", "bool", "isinstance", "OrderedSet", "dict", "result_type", "promote_types", "broadcast_shapes", "gcd", "lcm", "fsum",
}  # fmt: skip
_LISTS = _SORTS | {"list", "tuple", "dict", "zip", "map", "array"}
_BY_TIME = ("getctime", "getmtime", "st_mtime", "st_ctime", "int(")
"""Keys that are hardly ever equal for two elements."""
_EXTENDS = frozenset({"append", "extend", "insert", "appendleft"})
_IGNORES_IN_LOGS = frozenset({
    "print", "debug", "info", "warning", "warn", "error", "exception", "critical", "log", "echo", "warning_once", "info_once", "write_line",
})  # fmt: skip
_WRITES_LOGS = ("log", "print", "plot", "show")
"""Prefixes of the names of functions that display their arguments."""
_FILLS = frozenset(
    {
        "append",
        "extend",
        "insert",
        "appendleft",
        "put",
        "writerow",
        "add_module",
        "register_module",
        "register_parameter",
    }
)
_CONSUMERS = ("torch.", "numpy.", "random.", "pandas.", "tensorflow.", "jax.", "json.dump", "pickle.dump")
_TRAINS = frozenset({"backward", "apply_gradients", "train_on_batch", "train_step", "partial_fit"})
_WRITES = frozenset({"write", "writelines"})
_SHOWS = ("stdout", "stderr", "log", "bar", "console", "report", "tqdm")
"""Parts of the names of objects that are written to for somebody to read."""
_CHOOSES = frozenset({"choice", "choices", "shuffle", "sample", "permutation"})
_LISTING_METHODS = frozenset(name for name, source in METHODS.items() if source == "listing") | {"glob", "iglob"}
_FILE_SYSTEMS = ("fs", "filesystem")
"""Usual names of fsspec file systems, whose listings are sorted."""
_SETS = ("set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet")
_GIVES_TEXT = frozenset(
    {"str", "lower", "upper", "strip", "format", "join", "basename", "dirname", "relpath", "read_text", "as_posix"}
)
_GIVES_LIST = frozenset({"os.listdir", "glob.glob"})
_ITERATES = frozenset({"list", "tuple", "enumerate", "zip", "map", "filter", "join", "extend", "tqdm"})
"""Functions that accept an iterator as well as a list."""
_LISTS_FROM = _PASSES_ON | _NUMBERS_IN_ORDER | {"join", "array", "fromiter", "fromkeys"}
_WHOLE = frozenset({"len", "getsize", "int", "count", "numel", "size", "st_size", "stat"})


class Flow:
    """Traces where a value whose elements have no fixed order is used."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._parents = text.module.parents
        self._loads: dict[tuple[ast.AST, str], list[ast.expr]] = {}
        self._attributes: dict[str, list[ast.expr]] = {}
        self.is_certain = True
        """Whether the text shows that the order varies between runs; for a set that may hold numbers it does not."""
        self.is_of_results = False
        """Whether the elements are results that become ready in any order; they are added up like numbers."""
        self._asked: set[tuple[ast.AST, str]] | None = None
        """Scopes, each with an expression whose elements it counts."""
        for node in text.module.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._loads.setdefault((text.module.scope_of(node), node.id), []).append(node)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                self._attributes.setdefault(node.attr, []).append(node)

    def is_used_in_order(self, node: ast.AST, depth: int = 0, *, is_list: bool = True) -> bool:
        """Whether the order of the elements affects anything.

        Args:
            node: What holds or yields the elements.
            depth: How many steps were followed.
            is_list: Whether the node orders its elements; a set orders them only when it is iterated.
        """
        parent = self._parents.get(node)
        if depth > _DEEPEST or parent is None:
            return False
        if isinstance(parent, ast.keyword):
            parent = self._parents[parent]
        if isinstance(parent, ast.Call):
            return self._is_call(parent, node, depth, is_list)
        if isinstance(parent, ast.For | ast.AsyncFor) and parent.iter is node:
            return self.is_loop_ordered(parent, depth)
        if isinstance(parent, ast.comprehension) and parent.iter is node:
            return self._is_comprehension(self._parents[parent], depth)
        if isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            return self._is_assigned(parent, depth, is_list)
        if not is_list:
            return False
        if isinstance(parent, ast.Subscript):
            is_index = parent.slice is node and self._is_list(node)
            is_taken_from = parent.value is node and not (self.is_only_one(node) or self._is_counted_along(node))
            return (is_index or is_taken_from) and not self._is_shown(parent)
        if isinstance(parent, ast.Attribute):
            is_called = isinstance(self._parents.get(parent), ast.Call)
            return parent.attr in ("index", "pop") and is_called and not self.is_only_one(node)
        if isinstance(parent, ast.Return):
            return self._is_returned(parent, depth)
        if isinstance(parent, ast.BinOp | ast.IfExp | ast.Starred | ast.Await | ast.BoolOp):
            return self.is_used_in_order(parent, depth + 1)
        if isinstance(parent, ast.Yield | ast.YieldFrom):
            return True
        if isinstance(parent, ast.Dict):
            return node in parent.values and self._is_kept(parent)
        return isinstance(parent, ast.List | ast.Tuple) and isinstance(node, ast.Starred)

    def _is_list(self, index: ast.AST) -> bool:
        """Whether an index is a list for certain, so that it takes from an array, a tensor or a table, and in its order."""
        values = [index]
        if isinstance(index, ast.Name):
            values = [*self._text.module.given(self._text.module.scope_of(index), index.id)]
        made = (isinstance(one, ast.ListComp) or ast.unparse(one).startswith("list(") for one in values)
        return bool(values) and all(made)

    def _is_kept(self, literal: ast.Dict) -> bool:
        """Whether a dictionary literal goes straight into a file that is read again."""
        call = self._parents.get(literal)
        name = self._text.module.dotted(call.func) if isinstance(call, ast.Call) else ""
        return name in ("json.dump", "json.dumps", "pickle.dump", "pickle.dumps", "torch.save")

    def is_only_one(self, node: ast.AST) -> bool:
        """Whether the function checks that there is only one element, so that an element taken is the only one."""
        while isinstance(node, ast.Call) and last_part(node.func) in _PASSES_ON and node.args:
            node = node.args[0]
        if not isinstance(node, ast.expr):
            return False
        if self._asked is None:
            self._asked = {
                (self._text.module.scope_of(one), ast.unparse(one.left.args[0]))
                for one in self._text.module.nodes
                if isinstance(one, ast.Compare) and _asks_for_one(one) and isinstance(one.left, ast.Call)
            }
        return (self._text.module.scope_of(node), ast.unparse(node)) in self._asked

    def _is_call(self, call: ast.Call, node: ast.AST, depth: int, is_list: bool) -> bool:
        name = last_part(call.func)
        if name == "sum" and self.is_of_results and isinstance(node, ast.GeneratorExp | ast.ListComp):
            return self.is_rounded(node.elt) and not self._is_shown(call)
        if name in _COUNTS:
            # Among several elements with the smallest key, the first is taken.
            keys = [ast.unparse(one.value) for one in call.keywords if one.arg == "key"]
            is_ambiguous = bool(keys) and not any(word in keys[0] for word in _BY_TIME)
            return name in ("min", "max") and is_ambiguous and len(call.args) == 1
        if name in _IGNORES_IN_LOGS or self._is_shown(call):
            return False
        if isinstance(call.func, ast.Name) and name in self._text.program.functions:
            return self._is_parameter_ordered(call, node, depth, is_list)
        outer = self._parents.get(call)
        if name == "next" and (self.is_only_one(node) or _has_ending(node) or isinstance(outer, ast.Compare)):
            return False
        if name in _NUMBERS_IN_ORDER:
            return self._is_numbered(call)
        if name in _PASSES_ON:
            return self.is_used_in_order(call, depth + 1)
        dotted = self._text.module.dotted(call.func)
        if dotted == "asyncio.run" or name == "run_until_complete":
            return self.is_used_in_order(call, depth + 1, is_list=is_list)
        if name == "join":
            is_pattern = isinstance(outer, ast.Call) and self._text.module.dotted(outer.func).startswith("re.")
            if dotted == "os.path.join" or is_pattern:
                return False
            return self.is_used_in_order(call, depth + 1) or isinstance(outer, ast.Call)
        if not is_list:
            return False
        if name in _EXTENDS - {"append"} and isinstance(call.func, ast.Attribute):
            return self._is_filled_in_order(call.func.value, depth)
        if any(one.arg == "dtype" and last_part(one.value).startswith(("int", "long")) for one in call.keywords):
            return False
        return dotted.startswith(_CONSUMERS) or name in _CHOOSES or name in _FILLS - _EXTENDS

    def _is_parameter_ordered(self, call: ast.Call, node: ast.AST, depth: int, is_list: bool) -> bool:
        """Whether a function of the file that is passed the elements uses their order."""
        ((_, function), *others) = self._text.program.functions[last_part(call.func)]
        names = parameters(function)
        by_place = call.args.index(node) if node in call.args else None
        if others or any(isinstance(one, ast.Starred) for one in call.args):
            return False
        if function.name.lower().strip("_").startswith(_WRITES_LOGS):
            return False
        by_name = next((one.arg for one in call.keywords if one.value is node), None)
        name = by_name if by_place is None else names[by_place] if by_place < len(names) else None
        if name is None or self._text.module.given(function, name):
            return False
        uses = self._loads.get((function, name), [])
        if is_list and any(self._is_sorted_in_place(use) for use in uses):
            return False
        return any(self.is_used_in_order(use, depth + 1, is_list=is_list) for use in uses[:40])

    def _is_numbered(self, call: ast.Call) -> bool:
        """Whether the numbers that elements get are used for more than the log."""
        parent = self._parents.get(call)
        if isinstance(parent, ast.comprehension) and last_part(call.func) == "zip":
            # Lists that were filled in parallel stay in the same order.
            if all(isinstance(one, ast.Name) and self._is_filled(one) for one in call.args):
                return self._is_comprehension(self._parents[parent], 1)
        if isinstance(parent, ast.For) and last_part(call.func) == "enumerate":
            counter = parent.target.elts[0] if isinstance(parent.target, ast.Tuple) else None
            name = counter.id if isinstance(counter, ast.Name) else ""
            uses = [
                one for part in parent.body for one in ast.walk(part) if isinstance(one, ast.Name) and one.id == name
            ]
            taken = call.args[0] if call.args else None
            uses = [one for one in uses if not (isinstance(taken, ast.Name) and self._is_beside(one, taken))]
            return any(not self._is_shown(one) for one in uses) or self.is_loop_ordered(parent, 0)
        return not self._is_shown(call) and not self._is_sorted_in_place(call)

    def _is_beside(self, number: ast.Name, taken: ast.Name) -> bool:
        """Whether a number indexes a list for the entry of the same element, in a loop over the same set."""
        parent = self._parents.get(number)
        if not (isinstance(parent, ast.Subscript) and parent.slice is number and isinstance(parent.ctx, ast.Load)):
            return False
        holder = parent.value
        return isinstance(holder, ast.Name) and self._is_made_along(holder, taken.id)

    def _is_made_along(self, holder: ast.Name, taken: str) -> bool:
        """Whether a list has one entry for each element of a set, in the order of the set."""
        scope = self._text.module.scope_of(holder)
        for value in self._text.module.given(scope, holder.id):
            if isinstance(value, ast.ListComp) and _is_name(value.generators[0].iter, taken):
                return True
        for use in self._loads.get((scope, holder.id), []):
            added = self._parents.get(use)
            if isinstance(added, ast.Attribute) and added.attr == "append":
                outer = (one for one in self._text.module.outwards(added) if isinstance(one, ast.For | Function))
                loop = next(outer, None)
                if isinstance(loop, ast.For) and _is_name(loop.iter, taken):
                    return True
        return False

    def _is_counted_along(self, use: ast.AST) -> bool:
        """Whether a list is indexed by the number of an element in a loop over the set that the list was made from."""
        parent = self._parents.get(use)
        if not (isinstance(parent, ast.Subscript) and parent.value is use and isinstance(parent.slice, ast.Name)):
            return False
        for at in takewhile(lambda one: not isinstance(one, Function), self._text.module.outwards(parent)):
            if isinstance(at, ast.For) and isinstance(at.iter, ast.Call) and last_part(at.iter.func) == "enumerate":
                counter = at.target.elts[0] if isinstance(at.target, ast.Tuple) else None
                if counter is not None and _is_name(counter, parent.slice.id) and isinstance(at.iter.args[0], ast.Name):
                    return isinstance(use, ast.Name) and self._is_made_along(use, at.iter.args[0].id)
        return False

    def _is_filled(self, name: ast.Name) -> bool:
        """Whether elements are appended to what a name refers to."""
        uses = self._loads.get((self._text.module.scope_of(name), name.id), [])
        holders = [self._parents.get(use) for use in uses]
        return any(isinstance(one, ast.Attribute) and one.attr in _EXTENDS for one in holders)

    def _is_comprehension(self, node: ast.AST, depth: int) -> bool:
        if isinstance(node, ast.SetComp | ast.DictComp):
            return isinstance(node, ast.DictComp) and any(
                isinstance(one, ast.Call) and last_part(one.func) == "len" and last_part(one.args[0]) == "self"
                for one in ast.walk(node.value)
                if isinstance(one, ast.Call) and one.args
            )
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            targets = {one.id for part in node.generators for one in ast.walk(part.target) if isinstance(one, ast.Name)}
            is_made_of_them = any(isinstance(one, ast.Name) and one.id in targets for one in ast.walk(node.elt))
            # At most one element equals what it is compared with.
            if not is_made_of_them or any(_is_equality(one, targets) for part in node.generators for one in part.ifs):
                return False
        return self.is_used_in_order(node, depth + 1)

    def _is_assigned(self, statement: ast.Assign | ast.AnnAssign | ast.NamedExpr, depth: int, is_list: bool) -> bool:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            if isinstance(target, ast.Name):
                uses = self._loads.get((self._text.module.scope_of(target), target.id), [])
            elif isinstance(target, ast.Attribute) and depth < 2:
                uses = self._attributes.get(target.attr, [])
            else:
                continue
            if is_list and any(self._is_sorted_in_place(use) for use in uses):
                continue
            later = [use for use in uses if use.lineno >= statement.lineno or isinstance(target, ast.Attribute)]
            if any(self.is_used_in_order(use, depth + 1, is_list=is_list) for use in later[:40]):
                return True
        return False

    def _is_sorted_in_place(self, use: ast.expr) -> bool:
        parent = self._parents.get(use)
        if isinstance(parent, ast.Attribute) and parent.attr == "sort":
            return True
        at: ast.AST | None = parent
        while at is not None and not isinstance(at, ast.stmt | ast.comprehension):
            if isinstance(at, ast.Call) and last_part(at.func) in _SORTS:
                return True
            at = self._parents.get(at)
        # Inside a comprehension that is sorted as a whole.
        around = self._parents.get(at) if isinstance(at, ast.comprehension) else None
        outer = self._parents.get(around) if around is not None else None
        return isinstance(outer, ast.Call) and last_part(outer.func) in _SORTS

    def _is_returned(self, statement: ast.Return, depth: int) -> bool:
        function = self._text.module.scope_of(statement)
        if not isinstance(function, Function):
            return False
        calls = self._text.program.callers.get(function.name, [])
        return any(self.is_used_in_order(call, depth + 1) for _, call in calls[:20])

    def _is_shown(self, node: ast.AST) -> bool:
        """Whether a value only ends up in a message, a log or an error."""
        module = self._text.module
        for at in module.within_statement(node):
            name = last_part(at.func) if isinstance(at, ast.Call) else ""
            if isinstance(at, ast.JoinedStr) or name in _IGNORES_IN_LOGS or name.endswith("Error"):
                return True
        return isinstance(module.statement_of(node), ast.Raise | ast.Assert)

    def is_loop_ordered(self, loop: ast.For | ast.AsyncFor, depth: int) -> bool:
        """Whether the result of a loop depends on the order of its iterations."""
        names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        taken = _taken_from(loop, names) if self.is_of_results else set()
        return self._goes_on(loop) or any(
            self._is_step_ordered(node, names, depth)
            or _is_applied(node, names)
            or self._is_written(node, names, loop)
            or self._is_numbered_by_method(node, names, depth)
            or (self.is_of_results and self._is_accumulated(node, names, taken))
            for part in loop.body
            for node in ast.walk(part)
        )

    def _is_numbered_by_method(self, node: ast.AST, names: set[str], depth: int) -> bool:
        """Whether an element is passed to a method of the file that numbers its arguments, or keeps them in a list."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return False
        holder, method = node.func.value, node.func.attr
        if not isinstance(holder, ast.Name) or not any(_is_name(one, name) for one in node.args for name in names):
            return False
        made = [one for _, one in self._text.program.values_of(self._text.module, holder, as_whole=True)]
        for call in made:
            found = self._text.program.classes.get(last_part(call.func), ()) if isinstance(call, ast.Call) else ()
            for part in (one for _, owner in found for one in owner.body):
                if isinstance(part, Function) and part.name == method:
                    return any(self._gives_number(one, depth) for one in ast.walk(part))
        return False

    def _gives_number(self, node: ast.AST, depth: int) -> bool:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            return isinstance(node.value, ast.Call) and last_part(node.value.func) == "len"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _EXTENDS:
            return isinstance(node.func.value, ast.Attribute) and self._is_filled_in_order(node.func.value, depth)
        return False

    def _is_accumulated(self, node: ast.AST, names: set[str], taken: set[str]) -> bool:
        """Whether a result is added to earlier ones, or the next value is computed from it and the previous one."""
        if not self._text.uses_frameworks():
            return False
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            return isinstance(node.target, ast.Name | ast.Attribute) and _takes_result(node.value, names, taken)
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
            return False
        target, value = node.targets[0].id, node.value
        if isinstance(value, ast.Call):
            is_given = any(_is_name(one, target) for one in value.args) and last_part(value.func) not in _COUNTS
            return is_given and any(_takes_result(one, names, taken) for one in value.args)
        is_sum = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub)
        return is_sum and _has_name(value, {target}) and _takes_result(value, names, taken)

    def _goes_on(self, loop: ast.For | ast.AsyncFor) -> bool:
        """Whether each iteration builds on the previous one: by a training step, or a draw from a global generator."""
        if not (self.is_certain and self._text.uses_frameworks()):
            return False
        calls = [one for part in loop.body for one in ast.walk(part) if isinstance(one, ast.Call)]
        return any(last_part(one.func) in _TRAINS or drawn_library(self._text.module, one) is not None for one in calls)

    def _is_written(self, node: ast.AST, names: set[str], loop: ast.For | ast.AsyncFor) -> bool:
        """Whether what is computed from an element is written to a file opened before the loop."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _WRITES):
            return False
        file = node.func.value
        if not isinstance(file, ast.Name) or any(word in file.id.lower() for word in _SHOWS):
            return False
        if not any(
            isinstance(one, ast.Name) and one.id in names for argument in node.args for one in ast.walk(argument)
        ):
            return False
        opened = [one for _, one in self._text.program.values_of(self._text.module, file, as_whole=True)]
        return bool(opened) and set(ast.walk(loop)).isdisjoint(opened)

    def _is_step_ordered(self, node: ast.AST, names: set[str], depth: int) -> bool:
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
            return not self._is_shown(node) and self._is_filled_in_order(node.func.value, depth)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Mult):
            if isinstance(node.value, ast.List | ast.ListComp) and isinstance(node.target, ast.Name | ast.Attribute):
                return self._is_filled_in_order(node.target, depth)
            # An entry of the element's own is added to only once.
            is_its_own = isinstance(node.target, ast.Subscript) and any(
                isinstance(one, ast.Name) and one.id in names for one in ast.walk(node.target.slice)
            )
            return not is_its_own and self.is_rounded(node.value)
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Subscript):
                is_count = isinstance(value, ast.Call) and last_part(value.func) == "len" and bool(value.args)
                return (
                    is_count and isinstance(value, ast.Call) and ast.unparse(value.args[0]) == ast.unparse(target.value)
                )
            is_sum = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and isinstance(target, ast.Name)
            if (
                is_sum
                and isinstance(value, ast.BinOp)
                and isinstance(value.left, ast.Name)
                and isinstance(target, ast.Name)
            ):
                return value.left.id == target.id and self.is_rounded(value.right)
        if isinstance(node, ast.Return) and node.value is not None:
            return any(isinstance(one, ast.Name) and one.id in names for one in ast.walk(node.value))
        return False

    def _is_filled_in_order(self, holder: ast.expr, depth: int) -> bool:
        if isinstance(holder, ast.Name):
            scope = self._text.module.scope_of(holder)
            uses = self._loads.get((scope, holder.id), [])
            if any(self._is_sorted_in_place(use) for use in uses):
                return False
            return any(self.is_used_in_order(use, depth + 1) for use in uses[:40])
        if isinstance(holder, ast.Attribute):
            uses = self._attributes.get(holder.attr, [])
            return not any(self._is_sorted_in_place(use) for use in uses) and any(
                self.is_used_in_order(use, depth + 1) for use in uses[:40]
            )
        return False

    def is_rounded(self, value: ast.expr) -> bool:
        """Whether the sum of such values depends on the order: not so for counts and strings."""
        if not self._text.uses_frameworks() or isinstance(value, ast.Constant | ast.JoinedStr | ast.List | ast.Tuple):
            return False
        names = {last_part(one.func) for one in ast.walk(value) if isinstance(one, ast.Call)}
        attributes = {one.attr for one in ast.walk(value) if isinstance(one, ast.Attribute)}
        has_calculation = isinstance(value, ast.BinOp) and (
            isinstance(value.op, ast.Div) or any(isinstance(one, ast.Call) for one in ast.walk(value))
        )
        tensors = {"sum", "mean", "item", "square", "norm", "pow", "dot", "result", "abs", "exp"}
        return not names & _WHOLE and not attributes & _WHOLE and (has_calculation or bool(names & tensors))


def _taken_from(loop: ast.For | ast.AsyncFor, names: set[str]) -> set[str]:
    """Return the names that refer to a result in a loop."""
    # Elements of `imap_unordered` are themselves results.
    is_lazy = any(isinstance(one, ast.Call) and last_part(one.func) == "imap_unordered" for one in ast.walk(loop.iter))
    found = set(names) if is_lazy else set()
    for statement in (one for part in loop.body for one in ast.walk(part)):
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            call = statement.value
            is_result = isinstance(call.func, ast.Attribute) and call.func.attr in ("result", "get")
            if is_result and _has_name(call.func, names):
                found |= {
                    one.id for target in statement.targets for one in ast.walk(target) if isinstance(one, ast.Name)
                }
    return found


def _takes_result(value: ast.expr, names: set[str], taken: set[str]) -> bool:
    """Whether an expression is computed from a result, and not just from its size."""
    calls = [one for one in ast.walk(value) if isinstance(one, ast.Call)]
    if any(last_part(one.func) in _WHOLE for one in calls):
        return False
    return _has_name(value, taken) or any(
        last_part(one.func) == "result" and _has_name(one.func, names) for one in calls
    )


def _has_name(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(one, ast.Name) and one.id in names for one in ast.walk(node))


def _is_applied(node: ast.AST, names: set[str]) -> bool:
    """Whether the loop variable is applied to the result of the previous iteration: `x = layer(x)`."""
    if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.Call)):
        return False
    target, call = node.targets[0], node.value
    return (
        isinstance(target, ast.Name)
        and isinstance(call.func, ast.Name)
        and call.func.id in names
        and any(_is_name(one, target.id) for one in call.args)
    )


def _asks_for_one(node: ast.Compare) -> bool:
    """Whether a condition checks for one element or for more than one."""
    call, (operator, *_), (number, *_) = node.left, node.ops, node.comparators
    if not (isinstance(call, ast.Call) and last_part(call.func) == "len" and call.args):
        return False
    if not isinstance(number, ast.Constant):
        return False
    return (number.value == 1 and isinstance(operator, ast.Eq | ast.NotEq | ast.Gt)) or (
        number.value == 2 and isinstance(operator, ast.GtE | ast.Lt)
    )


def _has_ending(node: ast.AST) -> bool:
    """Whether files are searched only by extension, where exactly one is expected."""
    if not isinstance(node, ast.Call) or last_part(node.func) not in ("glob", "rglob", "iglob") or not node.args:
        return False
    pattern = node.args[0]
    return isinstance(pattern, ast.Constant) and str(pattern.value).startswith("*.")


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_equality(test: ast.expr, names: set[str]) -> bool:
    return (
        isinstance(test, ast.Compare)
        and len(test.ops) == 1
        and isinstance(test.ops[0], ast.Eq)
        and any(isinstance(one, ast.Name) and one.id in names for one in (test.left, *test.comparators))
    )


def _is_set(text: Text, node: ast.expr) -> bool:
    """Whether an expression is a set, and no assignment in the function makes it a list."""
    if not isinstance(node, ast.Name):
        return text.program.is_set(text.module, node)
    scope = text.module.scope_of(node)
    values, everything = text.module.given(scope, node.id), text.module.bound(scope, node.id)
    if any(isinstance(one, ast.Call) and last_part(one.func) in _LISTS for one in values):
        return False
    if isinstance(scope, Function) and not everything and node.id in parameters(scope):
        for one in [*scope.args.args, *scope.args.kwonlyargs]:
            if one.arg == node.id and one.annotation is not None:
                base = one.annotation.value if isinstance(one.annotation, ast.Subscript) else one.annotation
                is_set = isinstance(base, ast.Name | ast.Attribute) and last_part(base) in _SETS
                return is_set and "int" not in ast.unparse(one.annotation)
        passed = list(text.program.values_of(text.module, node, as_whole=True))
        return bool(passed) and all(text.program.is_set(owner, value) for owner, value in passed)
    put = [one for one in everything if one not in values]
    if put and all(_is_empty_set(one) for one in values) and all(gives_numbers(one) for one in put):
        return False
    return text.program.is_set(text.module, node)


def _is_empty_set(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_part(node.func) == "set" and not given_to(node)


def _iterated(text: Text) -> Iterator[tuple[ast.expr, ast.AST]]:
    """Yield what is iterated, and the node that then has its order."""
    for node in text.module.nodes:
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            yield node.iter, node.iter
        elif isinstance(node, ast.Call) and last_part(node.func) in _LISTS_FROM:
            if text.module.dotted(node.func) == "os.path.join":
                continue
            yield from ((one, one) for one in node.args)
        elif isinstance(node, ast.Starred) and isinstance(node.ctx, ast.Load):
            yield node.value, node
        elif isinstance(node, ast.Call) and last_part(node.func) == "pop" and not given_to(node):
            if isinstance(node.func, ast.Attribute):
                yield node.func.value, node


def of_sets(text: Text, flow: Flow) -> Iterator[Finding]:
    """Yield sets whose order affects something."""
    for node, ordered in _iterated(text):
        if not isinstance(node, ast.expr) or not _is_set(text, node):
            continue
        is_pop = isinstance(ordered, ast.Call) and ordered is not node
        if is_pop and (isinstance(text.module.parents.get(ordered), ast.Expr) or flow.is_only_one(node)):
            continue
        flow.is_certain = _has_texts(text, node)
        if not is_pop and not flow.is_used_in_order(ordered, is_list=not isinstance(ordered, ast.Name)):
            continue
        if text.program.has_objects(text.module, node) or _has_parts_of_models(text, node):
            message = "A set of objects is iterated in the order of their addresses, which differ from run to run."
            yield text.finding("address-order", Severity.MAY_DIFFER, message, node)
            continue
        has_texts = _has_texts(text, node)
        severity = Severity.DIFFERS if has_texts else Severity.MAY_DIFFER
        what = "A set of strings" if has_texts else "A set"
        condition = "" if has_texts else " unless its elements are numbers"
        message = f"{what} is used in the order of its elements, which differs in each run{condition}."
        is_sortable = has_texts and not is_pop and _has_texts(text, node, all_of_them=True)
        fix = around(node, "sorted(", ")", "Iterate in a fixed order") if is_sortable else None
        if isinstance(text.module.parents.get(node), ast.Starred):
            fix = None
        yield text.finding("hash-order", severity, message, node, fix)


def _has_parts_of_models(text: Text, node: ast.AST) -> bool:
    """Whether a set is filled from the parameters or modules of a model, which are hashed by their address."""
    values = list(text.program.values_of(text.module, node)) if isinstance(node, ast.Name) else [(text.module, node)]
    return any(
        isinstance(value, ast.SetComp)
        and isinstance(value.elt, ast.Name)
        and any(isinstance(one.iter, ast.Call) and last_part(one.iter.func) in OBJECTS for one in value.generators)
        for _, value in values
    )


def _has_texts(text: Text, node: ast.AST, depth: int = 0, *, all_of_them: bool = False) -> bool:
    """Whether the text shows that elements of a set are strings, or that all of them are."""
    if depth > 4:
        return False
    decides = all if all_of_them else any

    def of_values(values: Iterable[ast.expr]) -> bool:
        # An empty set says nothing about what is put into it.
        wanted = [value for value in values if not _is_empty_set(value)]
        return bool(wanted) and decides(
            _has_texts(text, one, depth + 1, all_of_them=all_of_them) or _is_text(text, one) for one in wanted
        )

    if isinstance(node, ast.Set | ast.List | ast.Tuple):
        return bool(node.elts) and all(_is_text(text, one) for one in node.elts)
    if isinstance(node, ast.SetComp | ast.GeneratorExp | ast.ListComp):
        return _is_text(text, node.elt) or (
            isinstance(node.elt, ast.Name) and any(_gives_texts(one.iter) for one in node.generators)
        )
    if isinstance(node, ast.BinOp):
        return of_values([node.left, node.right])
    if isinstance(node, ast.Call) and last_part(node.func) in ("set", "frozenset"):
        return bool(node.args) and (of_values(node.args[:1]) or _gives_texts(node.args[0]))
    if isinstance(node, ast.Name):
        return of_values(value for _, value in text.program.values_of(text.module, node) if isinstance(value, ast.expr))
    if isinstance(node, ast.Attribute):
        return of_values(value for _, value in text.program.attributes.get(node.attr, ()))
    return False


def _is_text(text: Text, node: ast.expr) -> bool:
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return True
    if isinstance(node, ast.Attribute):
        return node.attr in ("stem", "suffix")
    return isinstance(node, ast.Call) and last_part(node.func) in _GIVES_TEXT


def _gives_texts(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_part(node.func) in ("split", "splitlines", "listdir", "readlines")


def of_counted(text: Text) -> Iterator[Finding]:
    """Yield sets of strings counted by a `Counter`, whose `most_common` lists equally common ones in order of arrival."""
    if "most_common" not in text.calls or not text.uses_frameworks():
        return
    for node in text.module.nodes:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update"):
            continue
        holder = node.func.value
        if len(node.args) != 1 or not isinstance(holder, ast.Name) or not _is_set(text, node.args[0]):
            continue
        made = [one for _, one in text.program.values_of(text.module, holder, as_whole=True)]
        is_counter = any(isinstance(one, ast.Call) and last_part(one.func) == "Counter" for one in made)
        if is_counter and _has_texts(text, node.args[0]):
            message = "A set of strings is counted in the order of its elements, which breaks ties between equally common ones."
            fix = around(node.args[0], "sorted(", ")", "Count in a fixed order")
            yield text.finding("hash-order", Severity.MAY_DIFFER, message, node.args[0], fix)


def of_listings(text: Text, flow: Flow) -> Iterator[Finding]:
    """Yield directory listings whose order affects something."""
    flow.is_certain = True
    for node in text.module.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = text.module.dotted(node.func)
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr in _LISTING_METHODS and name != "glob.glob"
        if is_method and name.partition(".")[0] in _FILE_SYSTEMS:
            continue
        if CALLS.get(name) != "listing" and not (is_method and (node.args or node.func.attr == "iterdir")):  # type: ignore[attr-defined]
            continue
        if name == "os.walk":
            loop = text.module.parents.get(node)
            body = loop.body if isinstance(loop, ast.For) else []
            sorts = any(
                isinstance(one, ast.Call) and last_part(one.func) in ("sort", "sorted", "natsorted")
                for part in body
                for one in ast.walk(part)
            )
            if not isinstance(loop, ast.For) or sorts:
                continue
        if flow.is_used_in_order(node):
            message = "The listing is in file-system order, which differs between machines and copies."
            fix = around(node, "sorted(", ")", "Sort the listing") if _may_be_list(text, node, name) else None
            yield text.finding("listing-order", Severity.MAY_DIFFER, message, node, fix)


def _may_be_list(text: Text, node: ast.Call, name: str) -> bool:
    """Whether a sorted list can replace a listing: it is already a list of names, or is iterated at once."""
    if name in _GIVES_LIST:
        return True
    if name in ("os.walk", "os.scandir"):
        return False
    parent = text.module.parents.get(node)
    if isinstance(parent, ast.For | ast.comprehension):
        return parent.iter is node
    return isinstance(parent, ast.Call) and node in parent.args and last_part(parent.func) in _ITERATES


def of_completion(text: Text, flow: Flow) -> Iterator[Finding]:
    """Yield results that are taken in the order in which they become ready."""
    for node in text.module.nodes:
        if not isinstance(node, ast.Call):
            continue
        name, last = text.module.dotted(node.func), last_part(node.func)
        if last == "as_completed" or last == "imap_unordered":
            flow.is_of_results = True
            is_used = flow.is_used_in_order(node)
            flow.is_of_results = False
            if is_used:
                message = f"{last} returns results in the order in which they become ready, and that order is used."
                yield text.finding("completion-order", Severity.MAY_DIFFER, message, node)
        elif name == "concurrent.futures.wait" and any(
            one.arg == "return_when" and last_part(one.value) == "FIRST_COMPLETED" for one in node.keywords
        ):
            message = "Whatever completes first decides what happens next."
            yield text.finding("completion-order", Severity.MAY_DIFFER, message, node)
        elif last == "DataLoader" and is_set_to(node, "in_order", False):
            message = "in_order=False yields batches in the order in which workers complete them."
            yield text.finding("completion-order", Severity.MAY_DIFFER, message, node)
        elif last in ("map", "interleave") and is_set_to(node, "deterministic", False):
            message = "deterministic=False lets the pipeline yield elements in the order in which they complete."
            yield text.finding("pipeline-order", Severity.MAY_DIFFER, message, node)


def of_threads(text: Text, flow: Flow) -> Iterator[Finding]:
    """Yield sums that several threads add to in no fixed order."""
    for name, node in text.program.changes_by_threads(text.module).items():
        if not (isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult)):
            continue
        added: list[ast.AST] = [node.value]
        if isinstance(node.value, ast.Name):
            added = [value for _, value in text.program.values_of(text.module, node.value, as_whole=True)]
        if any(isinstance(value, ast.expr) and flow.is_rounded(value) for value in added):
            message = f"Several threads add to {name} in no fixed order, which decides how the sum is rounded."
            yield text.finding("thread-race", Severity.MAY_DIFFER, message, node.target)


def findings(text: Text) -> Iterator[Finding]:
    """Yield the findings of all of these rules."""
    flow = Flow(text)
    yield from of_sets(text, flow)
    yield from of_counted(text)
    yield from of_listings(text, flow)
    yield from of_completion(text, flow)
    yield from of_threads(text, flow)
