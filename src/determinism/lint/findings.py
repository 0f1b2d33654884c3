"""What lint finds, and the rules: each has the identifier of the cause that `check` would name."""

from __future__ import annotations

import ast
import difflib
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path

from determinism.diagnose.experiments import CauseEntry, causes
from determinism.diagnose.parsed_module import Function, Module, last_part
from determinism.diagnose.program_flow import Program
from determinism.errors import UsageError

_FILE = Path(__file__).with_name("data") / "rules.toml"


class Severity(StrEnum):
    """What `check` would say about two runs."""

    DIFFERS = "differs"
    MAY_DIFFER = "may differ"
    ON_RESUME = "costs reproducibility on resume"
    REPEATS = "repeats numbers"
    """Runs are the same, but numbers that should be different are the same, too."""
    NOT_EXAMINED = "not examined"
    """The file could not be read."""


@dataclass(frozen=True)
class Rule:
    """A rule, with a program that breaks it and one that follows it."""

    identifier: str
    title: str
    why: str
    remedy: str
    bad: str
    good: str
    device: str | None = None
    """The device for which the programs are shown; None if it does not matter."""
    settings: tuple[str, ...] = ()
    """The framework settings that it covers, by their names in the settings database."""


@cache
def rules() -> dict[str, Rule]:
    """Return every rule by its identifier. The texts of a cause come from where `check` has them."""
    known = causes()
    with _FILE.open("rb") as file:
        entries = tomllib.load(file)
    found: dict[str, Rule] = {}
    for identifier, entry in entries.items():
        cause = known.get(identifier)
        title, why, remedy = (
            (cause.title, cause.why, cause.remedy) if cause else (entry["title"], entry["why"], entry["remedy"])
        )
        bad, good = entry.get("bad", ""), entry.get("good", "")
        settings = tuple(entry.get("settings", ()))
        found[identifier] = Rule(identifier, title, why, remedy, bad, good, entry.get("device"), settings)
    return found


@dataclass(frozen=True)
class Fix:
    """Replacements in a file, by line and column as in the syntax tree."""

    title: str
    edits: tuple[tuple[int, int, int, int, str], ...]
    """First line and column, last line and column, and the new text."""


@dataclass(frozen=True)
class Finding:
    """A line where a rule fires."""

    rule: str
    severity: Severity
    message: str
    file: str
    line: int
    column: int
    """Counted from 1."""
    code: str
    cell: int | None = None
    fix: Fix | None = None


@dataclass(frozen=True)
class Text:
    """A file as the rules see it."""

    module: Module
    program: Program
    device: str | None = None
    versions: tuple[tuple[str, str], ...] = ()
    """Versions of frameworks whose ops are looked up; the default is the installed version."""

    def finding(
        self, rule: str, severity: Severity, message: str, node: ast.expr | ast.stmt, fix: Fix | None = None
    ) -> Finding:
        """Return what a rule says about a node."""
        lines = self.module.lines
        number, offset = node.lineno, node.col_offset
        name = node.func if isinstance(node, ast.Call) else None
        if isinstance(name, ast.Attribute) and (name.end_lineno or number) > number:
            # A chain of calls over several lines begins on an earlier line.
            number, offset = name.end_lineno or number, (name.end_col_offset or 0) - len(name.attr.encode())
        line = lines[number - 1] if number <= len(lines) else ""
        # Columns in the syntax tree count bytes.
        column = len(line.encode()[:offset].decode(errors="replace")) + 1
        return Finding(rule, severity, message, self.module.file, number, column, line.strip(), None, fix)

    @cached_property
    def calls(self) -> frozenset[str]:
        """The last parts of the names of all called functions."""
        return frozenset(last_part(node.func) for node in self.module.nodes if isinstance(node, ast.Call))

    @cached_property
    def names(self) -> frozenset[str]:
        """What all dotted names in the file refer to."""
        return frozenset(
            self.module.dotted(node) for node in self.module.nodes if isinstance(node, ast.Name | ast.Attribute)
        )

    def uses_frameworks(self) -> bool:
        """Whether the file imports a framework or NumPy."""
        return bool(
            self.module.packages
            & {"torch", "numpy", "tensorflow", "keras", "jax", "flax", "lightning", "pytorch_lightning"}
        )

    def is_written_in_class(self, target: ast.Attribute) -> bool:
        """Whether the class, or a loop over parameters in the file, gives an attribute values."""
        owner = next((one for one in self.module.outwards(target) if isinstance(one, ast.ClassDef)), None)
        if owner is None or not all(last_part(base) == "Module" for base in owner.bases):
            return True
        for node in self.module.nodes:
            if isinstance(node, ast.Call) and last_part(node.func) in (
                "parameters",
                "load_state_dict",
                "named_parameters",
            ):
                if last_part(node.func) != "load_state_dict" and self._is_filled_in_loop(node):
                    return True
            if not isinstance(node, ast.Attribute) or node.attr != target.attr or node is target:
                continue
            within = self.module.scope_of(node)
            if isinstance(within, Function) and within.name == "reset_parameters" and within.name not in self.calls:
                # PyTorch does not call it by itself.
                continue
            at: ast.AST = node
            while (parent := self.module.parents.get(at)) is not None and not isinstance(parent, ast.stmt):
                if isinstance(parent, ast.Call):
                    name = last_part(parent.func)
                    if name.endswith("_") or "init" in self.module.dotted(parent.func) or "init" in name:
                        return True
                at = parent
            if isinstance(parent, ast.Assign) and any(at is one or node in ast.walk(one) for one in parent.targets):
                return True
        return False

    def _is_filled_in_loop(self, node: ast.AST) -> bool:
        loop = next((one for one in self.module.outwards(node) if isinstance(one, ast.For)), None)
        return loop is not None and any(
            isinstance(one, ast.Call) and last_part(one.func).endswith("_") for one in ast.walk(loop)
        )


def around(node: ast.expr, before: str, after: str, title: str) -> Fix:
    """Put text before and after an expression."""
    line, column = node.end_lineno or node.lineno, node.end_col_offset or 0
    edits = ((node.lineno, node.col_offset, node.lineno, node.col_offset, before), (line, column, line, column, after))
    return Fix(title, edits)


# The page of a rule or a cause: for `determinism lint --explain`, for SARIF, and for the documentation, which has a page for each.

_INTERNAL = frozenset({"unparsable", "unused-ignore"})
"""Rules about the text, and not about runs."""


def explained() -> tuple[str, ...]:
    """Return the identifiers of all rules, and of the causes that only `check` can see."""
    return tuple(dict.fromkeys([*rules(), *causes()]))


def explanation(identifier: str, *, causes_page: str | None = None) -> str:
    """Explain a rule or a cause in Markdown, with a program that has it and one that does not.

    Args:
        identifier: The rule, or the cause that `check` names.
        causes_page: Where the page of causes is, for a link.

    Raises:
        UsageError: There is neither a rule nor a cause with that name.
    """
    rule, cause = rules().get(identifier), causes().get(identifier)
    if rule is None and cause is None:
        near = difflib.get_close_matches(identifier, explained(), n=1)
        hint = f"Did you mean {near[0]}?" if near else f"The rules and causes are: {', '.join(explained())}."
        raise UsageError("lint-rule-unknown", f"There is no rule {identifier}, so nothing was read. {hint}")
    entry = cause or rule
    assert entry is not None
    parts = [f"# `{identifier}`", f"{entry.title}. {entry.why}", f"**What to do:** {_lowered(entry.remedy)}."]
    if cause is not None:
        parts += _of_cause(cause)
    parts.append(_who_names_it(rule, cause, causes_page))
    if rule is not None:
        parts += _programs(rule)
        if identifier not in _INTERNAL:
            parts.append(f"A comment at the line, `# determinism: ignore[{identifier}]`, marks it as intended.")
    return "\n\n".join(parts) + "\n"


def _lowered(text: str) -> str:
    return text if text[1:2].isupper() else f"{text[0].lower()}{text[1:]}"


def _of_cause(cause: CauseEntry) -> list[str]:
    """Return what removes a cause without changing its line, and what else that changes."""
    parts = []
    if cause.code is not None:
        parts.append(f"At the start of the program:\n\n```python\n{cause.code}\n```")
    if cause.env is not None:
        variables = " ".join(f"{name}={value}" for name, value in cause.env)
        parts.append(f"From outside the program: `{variables}`.")
    if cause.side_effect is not None:
        parts.append(f"**What else changes:** {_lowered(cause.side_effect)}")
    return parts


def _who_names_it(rule: Rule | None, cause: CauseEntry | None, causes_page: str | None) -> str:
    check = "`determinism check`" if causes_page is None else f"[`determinism check`]({causes_page})"
    if rule is None:
        return f"{check} reports it under this identifier, with the line. `determinism lint` cannot see it in the code."
    if cause is None:
        return "`determinism lint` reports it under this identifier."
    return (
        f"`determinism lint` reports it before a run, and {check} when two runs differ because of it, both under "
        "this identifier."
    )


def _programs(rule: Rule) -> list[str]:
    device = f" With `--device {rule.device}`:" if rule.device else ""
    return [
        f"**Bad:**{device}\n\n```python\n{rule.bad.strip()}\n```",
        f"**Good:**\n\n```python\n{rule.good.strip()}\n```",
    ]
