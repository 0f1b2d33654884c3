"""Measures the structure of the package, and fails if a limit is exceeded: `make house`.

Every import counts, including those within functions and for type checking only. Chains are measured twice: over all imports,
and over those made when a module is loaded, which decide what Python must read first.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

PACKAGE = Path(__file__).parents[1] / "src" / "determinism"

MOST_MODULES = 230
"""Modules with code; a package also needs a file with its docstring."""
LONGEST_CHAIN = 10
"""Over all imports. What has been achieved must not be lost again."""
LONGEST_LOADED_CHAIN = 10
"""Over the imports made when a module is loaded."""
FEWEST_LINES = 40
MEDIAN_LINES = range(150, 301)
"""If shorter, a subject is spread over several files; if longer, several subjects share one."""

SHORT: dict[str, str] = {
    "determinism.cli.run": "a subcommand is a file, so that `--help` loads no other",
    "determinism.cli.show": "a subcommand is a file",
    "determinism.digest": "the one place that names the algorithm, loaded in every recorded program, without NumPy",
    "determinism.frameworks.tensorflow.keras_callback": "imports Keras, so it is loaded only if a program requests the callback",
}
"""Modules with fewer lines than `FEWEST_LINES`, each with the reason. Packages with only a docstring need none."""

RECORDING = "determinism.frameworks.torch.session"
REPORTING = ("determinism.comparison.runs", "determinism.report.terminal")
"""The module that makes records in the program, and those that turn its trace into a line of the report."""


@dataclass(frozen=True)
class Module:
    """A module of the package."""

    name: str
    lines: int
    holds_code: bool
    loaded: frozenset[str]
    """Modules that it imports when it is loaded."""
    imported: frozenset[str]
    """All modules that it imports, including those within functions and for type checking only."""


@dataclass
class House:
    """The modules of a package, by name."""

    modules: Mapping[str, Module]
    short: Mapping[str, str] = field(default_factory=lambda: SHORT)

    def lines(self) -> list[int]:
        """The numbers of lines of the modules with code."""
        return [module.lines for module in self.modules.values() if module.holds_code]

    def short_modules(self) -> list[Module]:
        """The modules with few lines."""
        found = [module for module in self.modules.values() if module.holds_code and module.lines < FEWEST_LINES]
        return sorted(found, key=lambda module: module.name)

    def with_one_importer(self) -> list[tuple[str, str]]:
        """Modules that only one other module imports, with that module; both are in the same folder."""
        importers: dict[str, set[str]] = {name: set() for name in self.modules}
        for module in self.modules.values():
            for name in module.imported:
                importers[name].add(module.name)
        alone = [(name, *found) for name, found in importers.items() if len(found) == 1]
        return sorted((name, by) for name, by in alone if name.rpartition(".")[0] == by.rpartition(".")[0])

    def cycles(self) -> list[list[str]]:
        """Groups of modules that import each other, directly or indirectly, over all imports."""
        return [sorted(group) for group in _groups(self.modules) if len(group) > 1]

    def longest_chain(self, *, loaded: bool = False) -> list[str]:
        """The longest path from a module to one that it imports, to one that this imports, and so on.

        Args:
            loaded: Follow only imports made when a module is loaded.
        """
        best: dict[str, list[str]] = {}

        def chain_from(name: str, above: tuple[str, ...]) -> list[str]:
            if name not in best:
                module = self.modules[name]
                targets = sorted(module.loaded if loaded else module.imported)
                below = (chain_from(n, (*above, name)) for n in targets if n not in above)
                best[name] = [name, *max(below, key=len, default=[])]
            return best[name]

        return max((chain_from(name, ()) for name in sorted(self.modules)), key=len)

    def _chains(self) -> Iterator[tuple[str, int, list[str]]]:
        yield "imports", LONGEST_CHAIN, self.longest_chain()
        yield "loaded modules", LONGEST_LOADED_CHAIN, self.longest_chain(loaded=True)

    def loaded_by(self, names: Iterable[str]) -> set[str]:
        """These modules and all that are loaded with them."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self.modules[name].loaded
        return found

    def broken_limits(self) -> Iterator[str]:
        """Yield the limits that are exceeded."""
        if len(self.lines()) > MOST_MODULES:
            yield f"{len(self.lines())} modules with code, and at most {MOST_MODULES} are allowed"
        for what, limit, chain in self._chains():
            if len(chain) > limit:
                yield f"a chain of {len(chain)} {what}, and at most {limit} are allowed: {' > '.join(chain)}"
        for group in self.cycles():
            yield f"a cycle of imports: {', '.join(group)}"
        for module in self.short_modules():
            if module.name not in self.short:
                yield f"{module.name} has {module.lines} lines; give it its own subject, merge it, or state the reason in SHORT"
        stale = set(self.short) - {module.name for module in self.short_modules()}
        for name in sorted(stale):
            yield f"SHORT gives a reason for {name}, which is not a short module"
        middle = int(median(self.lines()))
        if middle not in MEDIAN_LINES:
            yield f"a median of {middle} lines, and {MEDIAN_LINES.start} to {MEDIAN_LINES.stop - 1} are allowed"


def _groups(modules: Mapping[str, Module]) -> Iterator[list[str]]:
    """Strongly connected modules, by Tarjan's algorithm."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[list[str]]:
        numbers[name] = lowest[name] = len(numbers)
        stack.append(name)
        for other in sorted(modules[name].imported):
            if other not in numbers:
                yield from visit(other)
            if other in stack:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == numbers[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            yield group

    for name in modules:
        if name not in numbers:
            yield from visit(name)


# Reads the modules.


def read_house(package: Path = PACKAGE, short: Mapping[str, str] = SHORT) -> House:
    """Read the modules of a package; none of them is imported.

    Args:
        package: Its folder.
        short: Modules that may be short, with the reasons.
    """
    files = {_name(package, path): path for path in sorted(package.rglob("*.py"))}
    return House({name: _module(name, path, files) for name, path in files.items()}, short)


def _name(package: Path, path: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module(name: str, path: Path, files: Mapping[str, Path]) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    loaded = {target for node in _statements(tree) for target in _targets(node, files)} - {name}
    imported = {target for node in ast.walk(tree) for target in _targets(node, files)} - {name}
    holds_code = len(tree.body) > 1 or ast.get_docstring(tree) is None
    return Module(name, len(text.splitlines()), holds_code, frozenset(loaded), frozenset(imported))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when a module is loaded."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _statements(child)


def _targets(node: ast.AST, files: Mapping[str, Path]) -> Iterator[str]:
    """The modules that a statement imports."""
    paths: list[str] = []
    if isinstance(node, ast.Import):
        paths = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        paths = [f"{node.module}.{alias.name}" for alias in node.names]
    for path in paths:
        while path and path not in files:
            path = path.rpartition(".")[0]
        if path:
            yield path


def report(house: House) -> Iterator[str]:
    """Yield the lines of a report on the structure of a package."""
    lines = house.lines()
    packages = len(house.modules) - len(lines)
    yield f"modules                     {len(lines)} (at most {MOST_MODULES}), and {packages} packages with only a docstring"
    yield f"lines                       {sum(module.lines for module in house.modules.values()):,}"
    yield f"lines of a module           median {median(lines):.0f}, 90th percentile {quantiles(lines, n=10)[8]:.0f}, most {max(lines)}"
    for what, limit, chain in (
        ("longest chain of imports   ", LONGEST_CHAIN, house.longest_chain()),
        ("of loaded modules alone    ", LONGEST_LOADED_CHAIN, house.longest_chain(loaded=True)),
    ):
        yield f"{what} {len(chain)} modules (at most {limit})"
        yield f"    {' > '.join(name.removeprefix('determinism.') for name in chain)}"
    yield f"cycles of imports           {len(house.cycles())}"
    for group in house.cycles():
        yield f"    {', '.join(group)}"
    in_program, after = house.loaded_by([RECORDING]), house.loaded_by(REPORTING)
    yield f"on the way of a record      {len(in_program | after)} modules: {len(in_program)} in the program, {len(after)} from trace to report"
    yield f"under {FEWEST_LINES} lines              {len(house.short_modules())} modules"
    for module in house.short_modules():
        yield f"    {module.name} ({module.lines}): {house.short.get(module.name, 'NO REASON')}"
    alone = house.with_one_importer()
    yield f"imported by one neighbour   {len(alone)} modules"
    for name, by in alone:
        yield f"    {name} by {by.rpartition('.')[2]}"


def main() -> int:
    """Print the measures, and the limits that are exceeded."""
    house = read_house()
    for line in report(house):
        print(line)
    broken = list(house.broken_limits())
    for limit in broken:
        print(f"BROKEN: {limit}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
