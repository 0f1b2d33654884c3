"""Notebook cells that cannot be numbered have a name that is the same in every run."""

from __future__ import annotations

import pytest

from determinism.source_files import cell_name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/tmp/ipykernel_4711/99.py", "/tmp/ipykernel/99.py"),
        ("<ipython-input-3-ab12>", "<ipython-input-3-ab12>"),
        ("/home/ada/ipykernel_notes.py", None),
        ("/home/ada/train.py", None),
        ("<string>", None),
    ],
)
def test_name_of_a_cell(path: str, name: str | None) -> None:
    assert cell_name(path) == name
