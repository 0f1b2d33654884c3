"""Trains three steps, and leaves or finds files in the way that its arguments say."""

import json
import os
import sqlite3
import subprocess
import sys

import torch

how = sys.argv[1]
place = sys.argv[2] if len(sys.argv) > 2 else ""
last = os.path.join(place, "last.pt")

torch.set_num_threads(1)
torch.manual_seed(7)
model = torch.nn.Linear(8, 4)
if how == "resume" and os.path.exists(last):
    model.load_state_dict(torch.load(last))  # SITE
if how == "rates" and os.path.exists("rates.db"):
    with sqlite3.connect("rates.db") as rates:
        model.weight.data.mul_(rates.execute("select rate from rates").fetchone()[0])
if how == "child":
    # It uses no framework, so it records nothing.
    code = "import os, pathlib; p = pathlib.Path('scale.txt'); print(p.read_text() if p.exists() else 1.0)"
    scale = float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    model.weight.data.mul_(scale)
if how == "cached" and os.path.exists("cache.json"):
    with open("cache.json") as file:
        assert json.load(file) == [1, 2, 3]
if how == "edited":
    with open("config.yaml") as file:
        model.weight.data.mul_(float(file.read()))
if how == "random":
    torch.seed()

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    with open("train.log", "a") as log:
        log.write(f"{step} {loss.item()}\n")

if how == "resume":
    torch.save(model.state_dict(), last)
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
    torch.save(model.state_dict(), last)
    model.load_state_dict(torch.load(last))
    print(model.weight.sum().item())
    with open("train.log") as log:
        print(len(log.read()) > 0)
