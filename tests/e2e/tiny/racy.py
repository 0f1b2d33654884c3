"""Adds up numbers, says to the recording that it is racy, and differs in the run that its argument names."""

import os
import sys

import tinyframe as frame

from determinism.session import record

run = len([name for name in os.listdir() if name.startswith("ran-")]) + 1
open(f"ran-{run}", "w").close()
for session in record._sessions:
    session.writer.describe(racy=sys.argv[2:])
frame.mean(frame.full(3, float(run == int(sys.argv[1])))).item()
