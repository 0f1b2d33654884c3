"""Nothing is skipped in silence: where no further runs looked for a cause, the report says why and what would."""

from __future__ import annotations

from typing import Any

import pytest

from determinism.launch.check import why_not_searched
from determinism.launch.runs import CheckRequest
from tests.builders import make_different, make_divergence, make_recorded, make_run
from tests.rendered import lines_of

COMMAND = ("python", "train.py")


def reason(seconds: float = 96.0, step: int = 3, steps: int = 400, **options: Any) -> str:
    comparison = make_different(
        runs=[make_run(1, seconds=seconds), make_run(2, seconds=seconds / 2)],
        first_divergence=make_divergence(step=step),
        recorded=make_recorded(steps=steps),
    )
    return why_not_searched(comparison, CheckRequest(COMMAND, **options))


def test_a_long_run_and_what_a_search_would_take() -> None:
    assert reason() == (
        "No cause was searched for: a run took 96 s, and from 60 s on that is done only when asked for. To search, for up to 15 minutes: "
        "determinism check --explain -- python train.py With runs that end after 5 steps, for up to 60 s: "
        "determinism check --explain --steps 5 -- python train.py"
    )


def test_a_late_step_needs_whole_runs() -> None:
    assert "--steps" not in reason(step=399)
    assert "--steps" not in reason(steps=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"explain": False}, "because of --no-explain"),
        ({"budget": 0.0}, "because of --budget 0"),
        ({"fail_fast": True}, "--fail-fast ends runs as soon as they differ"),
    ],
)
def test_what_the_user_asked_for(options: dict[str, Any], said: str) -> None:
    text = reason(seconds=3.0, **options)
    assert text.startswith("No cause was searched for") and said in text
    assert "determinism check --explain -- python train.py" in text


def test_secrets_of_the_command_are_not_repeated() -> None:
    text = why_not_searched(make_different(), CheckRequest(("python", "train.py", "--api-key", "s3cret-of-mine")))
    assert "s3cret" not in text and "--api-key" in text


def test_the_report_shows_it() -> None:
    lines = lines_of(make_different(limit=reason()))
    assert any(line.startswith("  not searched      No cause was searched for: a run took 96 s") for line in lines)
