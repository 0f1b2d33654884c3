"""Notebook cells are identified by their numbers, and their sources of nondeterminism are noted and can be fixed as in a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from determinism.diagnose.sources import differing_sources
from tests.e2e.probing import Stage

CELLS = [
    "words = {'ant', 'bee', 'cat', 'dog', 'eel'}",
    "count = 1\nfor word in words:\n    print(word)",
    "print(hash('a'))",
]
RUN = """
import os
from IPython.core.interactiveshell import InteractiveShell
if {of_kernel}:
    from IPython.core import compilerop
    class Compiler(compilerop.CachingCompiler):
        # As the kernel of notebooks names them.
        def get_code_name(self, raw_code, transformed_code, number):
            return "/tmp/ipykernel_%d/%d.py" % (os.getpid(), number)
    InteractiveShell.compiler_class.default_value = Compiler
shell = InteractiveShell.instance()
assert ("ipykernel" in shell.compile.get_code_name("", "", 1)) is {of_kernel}
for cell in {cells}:
    shell.run_cell(cell, store_history=True).raise_error()
"""


@pytest.mark.parametrize(
    "of_kernel", [True, pytest.param(False, marks=pytest.mark.thorough("probes"))], ids=["notebook", "terminal"]
)
def test_sources_in_cells_are_noted_and_fixed(tmp_path: Path, of_kernel: bool) -> None:
    stage = Stage(tmp_path, RUN.format(of_kernel=of_kernel, cells=CELLS))
    home = {"IPYTHONDIR": str(tmp_path / "ipython")}
    found = differing_sources(stage.noted(PYTHONHASHSEED="1", **home), stage.noted(PYTHONHASHSEED="2", **home))

    places = [(one.source, one.site.file, one.site.line, one.site.code) for one in found]
    assert ("set-order", "In[2]", 2, "for word in words:") in places
    assert ("hash", "In[3]", 1, "print(hash('a'))") in places
    outputs = {stage.fixed(*found, PYTHONHASHSEED=seed, **home).stdout for seed in "123"}
    assert len(outputs) == 1
    assert len({stage.plain(PYTHONHASHSEED=seed, **home).stdout for seed in "123"}) > 1
