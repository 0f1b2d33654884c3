"""Names of the pytest plugin, and the properties that it gives tests. Loaded in every session, so it imports nothing."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pytest

    from determinism.comparison.result import Comparison
    from determinism.types import Verdict

MARKER = "deterministic"

OPTION = "determinism"
"""Of `--determinism`."""

UPDATE_OPTION = "determinism_update_goldens"
"""Of `--determinism-update-goldens`."""

PROPERTY = "determinism."
"""How the names of the properties begin that a test's report and JUnit XML have."""

NOT_CHECKED = "not checked"
"""What stands in place of a verdict where a test was run once."""


def note(item: pytest.Item, verdict: str, **values: str | None) -> None:
    """Note properties, which reports and JUnit XML have, in place of those noted before.

    Args:
        item: The test.
        verdict: Of its runs.
        **values: `kind`, `line` and `reason`, as far as they are known.
    """
    names = [PROPERTY + name for name in ("verdict", "kind", "line", "reason")]
    item.user_properties[:] = [entry for entry in item.user_properties if entry[0] not in names]
    # As plain strings: xdist sends them from its workers, and no enumeration.
    item.user_properties.append((f"{PROPERTY}verdict", str(verdict)))
    item.user_properties += [(f"{PROPERTY}{name}", value) for name, value in values.items() if value]


def note_comparison(item: pytest.Item, comparison: Comparison, verdict: Verdict | None = None) -> None:
    """Note a verdict, what kind of difference it is, and the line.

    Args:
        item: The test.
        comparison: What was found.
        verdict: What is known by other means; None takes that of the comparison.
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
