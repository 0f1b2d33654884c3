"""The example programs on the pages of lint rules run, if the frameworks that they import are installed."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

from determinism.lint.findings import rules

RUN = """
import contextlib, importlib.util, io, json, os, sys

programs, failed, ran = json.load(open("programs.json")), {}, []
os.environ["RANK"] = "0"
for name, text in programs.items():
    roots = {line.split()[1].partition(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    if any(importlib.util.find_spec(root) is None for root in roots):
        continue
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(text, name, "exec"), {"__name__": "__main__"})
        ran.append(name)
    except Exception as error:
        failed[name] = repr(error)
json.dump({"failed": failed, "ran": ran}, open("outcome.json", "w"))
"""


def test_the_programs_on_rule_pages_run(tmp_path: Path) -> None:
    import numpy as np

    (tmp_path / "shards").mkdir()
    for number in range(3):
        np.save(tmp_path / "shards" / f"{number}.npy", np.ones(2))
    (tmp_path / "train.txt").write_text("1 2\n3 4\n", encoding="utf-8")
    with sqlite3.connect(tmp_path / "train.db") as database:
        database.execute("CREATE TABLE rows (id, x, y)")
        database.executemany("INSERT INTO rows VALUES (?, ?, ?)", [(0, 1.0, 2.0), (1, 3.0, 4.0)])
    # The programs list file names without their folder.
    programs = {
        f"{rule.identifier} {kind}": text.replace("np.load(name)", 'np.load("shards/" + name)')
        for rule in rules().values()
        for kind, text in (("bad", rule.bad), ("good", rule.good))
        if (rule.identifier, kind) != ("unparsable", "bad")
    }
    (tmp_path / "programs.json").write_text(json.dumps(programs), encoding="utf-8")
    subprocess.run([sys.executable, "-c", RUN], cwd=tmp_path, check=True, capture_output=True, timeout=240)
    outcome = json.loads((tmp_path / "outcome.json").read_text(encoding="utf-8"))
    assert outcome["failed"] == {}
    assert len(outcome["ran"]) > 30
