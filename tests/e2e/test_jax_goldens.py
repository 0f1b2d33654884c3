"""`determinism golden` on a JAX program, which holds no state: the golden keeps the results of its ops."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.commands import run

PROGRAM = """\
import jax
import determinism

weights = jax.random.normal(jax.random.PRNGKey(0), (4, 1))
for step in range(3):
    weights = weights - 0.1 * weights
    determinism.step()
"""


def test_a_jax_program_matches_its_golden_and_a_changed_one_does_not(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = ["train.golden", "--", sys.executable, "train.py"]
    created = run(tmp_path, "golden", "create", *command)
    assert created.status == 0, created.text
    assert run(tmp_path, "golden", "check", *command).status == 0
    program.write_text(PROGRAM.replace("0.1", "0.2"), encoding="utf-8")
    changed = run(tmp_path, "golden", "check", *command)
    assert changed.status == 1
    assert "the results differ at step 0, train.py:6" in changed.text
