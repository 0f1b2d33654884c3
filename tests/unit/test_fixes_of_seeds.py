"""The change that makes a seed constant leaves what is seeded a generator."""

from __future__ import annotations

from pathlib import Path

import pytest

from determinism.diagnose.fixes import code_fix, possible_uses
from determinism.run_spec import FixedSource


@pytest.mark.parametrize(
    ("line", "fixed"),
    [
        (
            "g = keras.random.SeedGenerator(int.from_bytes(os.urandom(3), 'little'))",
            "g = keras.random.SeedGenerator(0)",
        ),
        ("g = keras.random.SeedGenerator(None if x else os.urandom(1)[0])", "g = keras.random.SeedGenerator(0)"),
        ("g = keras.random.SeedGenerator()", "g = keras.random.SeedGenerator(0)"),
        (
            "generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(3), 'little'))",
            "generator = torch.Generator().manual_seed(0)",
        ),
        ("generator.seed(os.urandom(3)[0])", "generator.seed(0)"),
        ("seed = library.new_seed()", "seed = 0"),
    ],
)
def test_the_first_possible_change_of_a_line_that_reads_random_bytes(line: str, fixed: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(f"import os, keras, torch, library\nx = None\n{line}\n")
    uses = possible_uses(FixedSource(str(program), 3, "entropy"))
    change = next(found for use in uses if (found := code_fix(use)) is not None)
    assert change.code == fixed
