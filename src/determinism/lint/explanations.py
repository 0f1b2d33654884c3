"""The page of a rule or a cause: for `determinism lint --explain`, for SARIF, and for the documentation, which has one for each."""

from __future__ import annotations

import difflib

from determinism.diagnose.experiments import CauseEntry, causes
from determinism.errors import UsageError
from determinism.lint.findings import Rule, rules

_INTERNAL = frozenset({"unparsable", "unused-ignore"})
"""Rules that are about the text and not about runs."""


def explained() -> tuple[str, ...]:
    """The identifiers of all rules, and of the causes that only `check` can see."""
    return tuple(dict.fromkeys([*rules(), *causes()]))


def explanation(identifier: str, *, causes_page: str | None = None) -> str:
    """What a rule or a cause is about, with a program that has it and one that does not, as Markdown.

    Args:
        identifier: Of the rule, which is that of the cause that `check` names.
        causes_page: Where the page of causes is, for a link.

    Raises:
        UsageError: There is neither a rule nor a cause of that name.
    """
    rule, cause = rules().get(identifier), causes().get(identifier)
    if rule is None and cause is None:
        near = difflib.get_close_matches(identifier, explained(), n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(explained())}."
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
    """What removes a cause without a change of its line, and what else that changes."""
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
