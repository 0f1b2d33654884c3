"""Names of the pytest plugin, and the properties that it adds to tests. Loaded in every session, so it imports nothing."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pytest

    from determinism.comparison.result import Comparison
    from determinism.types import Verdict

MARKER = "deterministic"

OPTION = "determinism"
"""The name of the value of `--determinism`."""

UPDATE_OPTION = "determinism_update_goldens"
"""The name of the value of `--determinism-update-goldens`."""

PROPERTY = "determinism."
"""The prefix of the properties' names in a test's report and in JUnit XML."""

NOT_CHECKED = "not checked"
"""Replaces the verdict of a test that was run only once."""


def note(item: pytest.Item, verdict: str, **values: str | None) -> None:
    """Note properties for reports and JUnit XML, replacing those noted before.

    Args:
        item: The test.
        verdict: The verdict of its runs.
        **values: `kind`, `line` and `reason`, if they are known.
    """
    names = [PROPERTY + name for name in ("verdict", "kind", "line", "reason")]
    item.user_properties[:] = [entry for entry in item.user_properties if entry[0] not in names]
    # As plain strings: xdist sends these from its workers, but not enumerations.
    item.user_properties.append((f"{PROPERTY}verdict", str(verdict)))
    item.user_properties += [(f"{PROPERTY}{name}", value) for name, value in values.items() if value]


def note_comparison(item: pytest.Item, comparison: Comparison, verdict: Verdict | None = None) -> None:
    """Note a verdict, the kind of difference, and the line.

    Args:
        item: The test.
        comparison: The comparison of its runs.
        verdict: A verdict known by other means; None: that of the comparison.
    """
    first = comparison.first_divergence
    site = None if first is None else first.forward_site or first.site
    note(
        item,
        verdict or comparison.verdict,
        kind=None if first is None or first.kind is None else str(first.kind),
        line=None if site is None else f"{site.file}:{site.line}",
        reason=" ".join(trouble.message for trouble in comparison.trouble),
    )
