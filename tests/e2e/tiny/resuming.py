"""Trains three steps, and leaves or finds files in the way that its arguments say."""

import json
import os
import sqlite3
import subprocess
import sys

import tinyframe as frame

how = sys.argv[1]
place = sys.argv[2] if len(sys.argv) > 2 else ""
last = os.path.join(place, "last.pt")

frame.manual_seed(7)
weight = frame.randn(8)
factor = 1.0
if how == "resume" and os.path.exists(last):
    weight = frame.load(last)["weight"]
if how == "rates" and os.path.exists("rates.db"):
    with sqlite3.connect("rates.db") as rates:
        factor = rates.execute("select rate from rates").fetchone()[0]
if how == "child":
    # It uses no framework, so it records nothing.
    code = "import os, pathlib; p = pathlib.Path('scale.txt'); print(p.read_text() if p.exists() else 1.0)"
    factor = float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
if how == "cached" and os.path.exists("cache.json"):
    with open("cache.json") as file:
        assert json.load(file) == [1, 2, 3]
if how == "edited":
    with open("config.yaml") as file:
        factor = float(file.read())
if how == "random":
    frame.seed()
weight = frame.multiply(weight, frame.full(8, factor))

for step in range(3):
    batch = frame.randn(8)
    loss = frame.mean(frame.multiply(weight, batch))
    weight = frame.subtract(weight, frame.multiply(batch, frame.full(8, 0.1)))
    frame.step(weight=weight)
    with open("train.log", "a") as log:
        log.write(f"{step} {loss.item()}\n")

if how == "resume":
    frame.save({"weight": weight}, last)
if how == "rates":
    with sqlite3.connect("rates.db") as rates:
        rates.execute("create table if not exists rates (rate real)")
        rates.execute("insert into rates values (0.5)")
if how == "child":
    with open("scale.txt", "w") as file:
        file.write("0.5")
if how == "cached":
    with open("cache.json", "w") as file:
        json.dump([1, 2, 3], file)
if how == "edited":
    # Stands for an editor in another window.
    subprocess.run(["sh", "-c", "echo 2.0 > config.yaml"], check=True)
if how in ("own", "random"):
    frame.save({"weight": weight}, last)
    print(frame.mean(frame.load(last)["weight"]).item())
    with open("train.log") as log:
        print(len(log.read()) > 0)
