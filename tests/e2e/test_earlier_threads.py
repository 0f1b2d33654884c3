"""Threads that ran before the framework was imported are a blind spot of their own process only."""

from __future__ import annotations

import sys
from pathlib import Path

from determinism.launch.record import record_program
from determinism.run_spec import RunSpec
from determinism.trace.opening import open_trace

PROGRAM = """
import multiprocessing, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True, name="early").start()
import torch
def work():
    torch.ones(2) + 1
if __name__ == "__main__":
    torch.ones(3) + 1
    for how in ("spawn", "fork"):
        child = multiprocessing.get_context(how).Process(target=work)
        child.start()
        child.join()
"""


def test_each_process_reports_its_own_threads(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    record_program([sys.executable, str(tmp_path / "program.py")], RunSpec(tmp_path / "trace"), log=tmp_path / "log")
    trace = open_trace(tmp_path / "trace")

    told = {one.key: [spot["what"] for spot in one.description["blind_spots"]] for one in trace.processes}
    # A spawned child imports the program again; in a forked child, the thread does not run.
    assert sorted(told.values()) == [[], ["early"], ["early"]], (tmp_path / "log").read_text()
