"""What the pytest plugin, which every session loads, and what it loads when a test asks for it call things."""

from __future__ import annotations

MARKER = "deterministic"

OPTION = "determinism"
"""Of `--determinism`."""

PROPERTY = "determinism."
"""How the names of the properties begin that a test's report and JUnit XML have."""

NOT_CHECKED = "not checked"
"""What stands in place of a verdict where a test was run once."""
