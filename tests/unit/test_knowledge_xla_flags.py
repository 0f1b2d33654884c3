"""Advice for JAX names an XLA flag only for releases that know it: any other release fails at the first op."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest

from tests.architecture.xla_flags import DATA, FLAG, RESULTS, named_flags

KNOWN: dict[str, list[str]] = json.loads(RESULTS.read_text(encoding="utf-8"))
FROM = re.compile(r"from jaxlib ([0-9.]+) on", re.IGNORECASE)


def release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def advice() -> list[tuple[str, str | None, str | None]]:
    """Each clause that names a flag, the first release that it applies to, and the first that it does not apply to."""
    entries: list[tuple[dict[str, Any], str]] = []
    for path in (DATA / "jax").glob("*.toml"):
        ops = tomllib.loads(path.read_text(encoding="utf-8")).get("op", [])
        entries += [(status, "solution") for op in ops for status in op.get("status", [])]
    modes = tomllib.loads((DATA / "frameworks" / "jax.toml").read_text(encoding="utf-8"))["mode"]
    entries += [(mode, "how") for mode in modes]
    found = []
    for entry, key in entries:
        for clause in re.split(r";|\\. ", entry.get(key, "")):
            if FLAG.search(clause):
                limit = FROM.search(clause)
                found.append((clause, limit[1] if limit else entry.get("since"), entry.get("until")))
    return found


def test_advice_and_releases_exist() -> None:
    assert len(advice()) > 10
    assert len(KNOWN) > 10
    assert all(flags for flags in KNOWN.values())
    assert {flag for flags in KNOWN.values() for flag in flags} <= named_flags()


@pytest.mark.parametrize(("clause", "since", "until"), advice())
def test_each_flag_is_known_to_the_releases_that_it_is_advised_for(
    clause: str, since: str | None, until: str | None
) -> None:
    for version, flags in KNOWN.items():
        is_after = since is None or release(version) >= release(since)
        if is_after and (until is None or release(version) < release(until)):
            assert set(FLAG.findall(clause)) <= set(flags), version


def test_a_flag_of_a_later_release_would_be_found() -> None:
    assert "xla_cpu_enable_platform_dependent_math" not in KNOWN["0.8.0"]
    assert "xla_cpu_enable_platform_dependent_math" in KNOWN["0.8.1"]
    assert "xla_gpu_exclude_nondeterministic_ops" not in KNOWN["0.4.28"]
