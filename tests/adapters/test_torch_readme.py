"""The Python code in the README runs, and prints what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_code_in_the_readme_prints_the_documented_output(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)

    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600)

    assert (ran.stdout, ran.stderr, ran.returncode) == ("same None\nrng\n", "", 0)
