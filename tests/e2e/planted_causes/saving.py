"""Threads that save or copy state while training changes it."""

from __future__ import annotations

from tests.e2e.planted_causes.planted import Planted

_CAUSES = ("torn-checkpoint", "thread-race")
_HEAD = """
        import copy
        import io
        import threading
        from concurrent.futures import ThreadPoolExecutor
        from pathlib import Path

        import torch
        from torch import nn

        torch.manual_seed(0)
        torch.set_num_threads(1)
        model = nn.Sequential(nn.Linear(32, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        inputs = torch.rand(16, 32)

        def step():
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.item()
"""


def _program(name: str, line: str, body: str, *mended: tuple[str, str], others: tuple[str, ...] = ()) -> Planted:
    return Planted(name, _CAUSES, (line, *others), _HEAD + body, mended, is_fixed=False)


_COPIED = "{name: value.clone() for name, value in model.state_dict().items()}"

PROGRAMS = (
    _program(
        "a thread for each checkpoint",
        "target=torch.save",
        """
        threads = []
        for number in range(9):
            step()
            if number % 3 == 2:
                threads.append(threading.Thread(target=torch.save, args=(model.state_dict(), f"{number}.pt")))
                threads[-1].start()
        for thread in threads:
            thread.join()
        print(sum(value.sum().item() for value in torch.load("2.pt").values()))
        """,
        ("args=(model.state_dict(), f", f"args=({_COPIED}, f"),
        others=("threads[-1].start()",),
    ),
    _program(
        "a function in a thread",
        "torch.save(model.state_dict(), file)",
        """
        def save(file):
            torch.save(model.state_dict(), file)

        for number in range(6):
            step()
            if number == 2:
                saver = threading.Thread(target=save, args=("model.pt",))
                saver.start()
        saver.join()
        model.load_state_dict(torch.load("model.pt"))
        print(step())
        """,
        ("        saver.start()", "        saver.start()\n        saver.join()"),
        others=("saver = threading.Thread(", "saver.start()"),
    ),
    _program(
        "a pool that saves",
        "pool.submit(torch.save, model.state_dict()",
        """
        with ThreadPoolExecutor(1) as pool:
            for number in range(6):
                step()
                if number == 2:
                    pool.submit(torch.save, model.state_dict(), "model.pt")
        print(sum(value.sum().item() for value in torch.load("model.pt").values()))
        """,
        ("pool.submit(torch.save, model.state_dict()", f"pool.submit(torch.save, {_COPIED}"),
    ),
    _program(
        "the optimizer too",
        "torch.save(state, Path(",
        """
        def save(state):
            torch.save(state, Path("all.pt"))

        for number in range(6):
            step()
            if number == 2:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                saver = threading.Thread(target=save, args=(state,))
                saver.start()
        saver.join()
        saved = torch.load("all.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        print(step())
        """,
        (
            'state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}',
            'state = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})',
        ),
        others=("saver = threading.Thread(", "saver.start()"),
    ),
    _program(
        "into memory",
        "torch.save(model, buffer)",
        """
        buffer = io.BytesIO()

        def save():
            torch.save(model, buffer)

        for number in range(6):
            step()
            if number == 2:
                saver = threading.Thread(target=save)
                saver.start()
        saver.join()
        buffer.seek(0)
        print(torch.load(buffer, weights_only=False)(inputs).sum().item())
        """,
        ("        saver.start()", "        saver.start()\n        saver.join()"),
        others=("saver = threading.Thread(", "saver.start()"),
    ),
    _program(
        "an average of the weights",
        "average[name].mul_(0.5).add_(value",
        """
        average = {name: value.clone() for name, value in model.state_dict().items()}

        def follow():
            for _ in range(3):
                for name, value in model.state_dict().items():
                    average[name].mul_(0.5).add_(value, alpha=0.5)

        follower = threading.Thread(target=follow)
        for number in range(6):
            step()
            if number == 1:
                follower.start()
        follower.join()
        print(sum(value.sum().item() for value in average.values()))
        """,
        ("        follower.start()", "        follower.start()\n        follower.join()"),
        others=("follower = threading.Thread(", "follower.start()"),
    ),
    _program(
        "a copy in a thread",
        "copies.append(copy.deepcopy(model))",
        """
        copies = []

        def keep():
            copies.append(copy.deepcopy(model))

        for number in range(6):
            step()
            if number == 2:
                keeper = threading.Thread(target=keep)
                keeper.start()
        keeper.join()
        print(copies[0](inputs).sum().item())
        """,
        ("        keeper.start()", "        keeper.start()\n        keeper.join()"),
        others=("keeper = threading.Thread(", "keeper.start()"),
    ),
    _program(
        "an evaluation beside the training",
        "score = model(inputs)",
        """
        scores = []

        def evaluate():
            with torch.no_grad():
                for _ in range(4):
                    score = model(inputs)
                    scores.append(score.mean().item())

        for number in range(6):
            step()
            if number == 2:
                judge = threading.Thread(target=evaluate)
                judge.start()
        judge.join()
        print(scores)
        """,
        ("        judge.start()", "        judge.start()\n        judge.join()"),
        others=("judge = threading.Thread(", "judge.start()"),
    ),
    _program(
        "a class that saves",
        "torch.save(self.model.state_dict(), self.file)",
        """
        class Saver(threading.Thread):
            def __init__(self, model, file):
                super().__init__()
                self.model = model
                self.file = file

            def run(self):
                torch.save(self.model.state_dict(), self.file)

        for number in range(6):
            step()
            if number == 2:
                saver = Saver(model, "model.pt")
                saver.start()
        saver.join()
        print(sum(value.sum().item() for value in torch.load("model.pt").values()))
        """,
        ("        saver.start()", "        saver.start()\n        saver.join()"),
        others=("saver = Saver(", "saver.start()"),
    ),
    _program(
        "one saver that waits for its turn",
        "torch.save(model.state_dict(), file)",
        """
        due, done = threading.Event(), threading.Event()

        def save(file):
            due.wait()
            torch.save(model.state_dict(), file)
            done.set()

        threading.Thread(target=save, args=("model.pt",), daemon=True).start()
        for number in range(6):
            step()
            if number == 2:
                due.set()
        done.wait()
        print(sum(value.sum().item() for value in torch.load("model.pt").values()))
        """,
        ("        due.set()", "        due.set()\n        done.wait()"),
        others=("threading.Thread(target=save",),
    ),
)
