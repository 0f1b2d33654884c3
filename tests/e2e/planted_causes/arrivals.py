"""Programs that receive from whichever rank sends first."""

from __future__ import annotations

from tests.e2e.planted_causes.planted import Planted

_CAUSES = ("arrival-order",)
_HEAD = """
        import os
        import tempfile
        import torch
        import torch.distributed as dist
        import torch.multiprocessing as mp

        SIZE = 3

        def work(rank, step):
            torch.manual_seed(100 * rank + step)
            made = torch.rand(200 + 300 * (step % 2), 60)
            for _ in range(3 + rank):
                made = torch.tanh(made @ made.T @ made / 1000)
            return made[0] * rank + step
"""
_TAIL = """
        def main(rank, file):
            torch.set_num_threads(1)
            dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=SIZE)
            serve() if rank == 0 else train(rank)
            dist.barrier()
            dist.destroy_process_group()

        if __name__ == "__main__":
            with tempfile.TemporaryDirectory() as folder:
                mp.start_processes(main, args=(os.path.join(folder, "store"),), nprocs=SIZE, start_method="fork")
"""
_TRAIN = """
        def train(rank):
            for step in range(8):
                dist.send(work(rank, step), 0)
"""


def _program(
    name: str, line: str, body: str, *mended: tuple[str, str], train: str = _TRAIN, or_line: str | None = None
) -> Planted:
    lines = (line,) if or_line is None else (line, or_line)
    return Planted(name, _CAUSES, lines, _HEAD + body + train + _TAIL, mended, is_fixed=False)


PROGRAMS = (
    _program(
        "a running mean",
        "dist.recv(received)",
        """
        def serve():
            received, mean = torch.zeros(60), torch.zeros(60)
            for _ in range(16):
                dist.recv(received)
                mean = 0.9 * mean + 0.1 * received
            print(mean.sum().item())
        """,
        ("for _ in range(16):", "for number in range(16):"),
        ("dist.recv(received)", "dist.recv(received, 1 + number % 2)"),
    ),
    _program(
        "no source, by its name",
        "src=None",
        """
        def serve():
            rows = []
            for _ in range(16):
                row = torch.zeros(60)
                dist.recv(row, src=None)
                rows.append(row)
            print((torch.stack(rows) * torch.linspace(0, 1, 16)[:, None]).sum().item())
        """,
        ("for _ in range(16):", "for number in range(16):"),
        ("src=None", "src=1 + number % 2"),
    ),
    _program(
        "a server of parameters",
        "sender = dist.recv(gradient)",
        """
        def serve():
            weights, gradient = torch.ones(60), torch.zeros(60)
            for _ in range(16):
                sender = dist.recv(gradient)
                weights = weights - 0.1 * gradient * weights
                dist.send(weights, sender)
            print(weights.sum().item())
        """,
        ("for _ in range(16):", "for number in range(16):"),
        ("dist.recv(gradient)", "dist.recv(gradient, 1 + number % 2)"),
        train="""
        def train(rank):
            weights = torch.ones(60)
            for step in range(8):
                dist.send(work(rank, step) * weights, 0)
                dist.recv(weights, 0)
        """,
    ),
    _program(
        "a function that receives",
        "dist.recv(buffer)",
        """
        def receive():
            buffer = torch.empty(60)
            dist.recv(buffer)
            return buffer

        def serve():
            state = torch.zeros(60)
            for _ in range(16):
                state = torch.sin(state + receive())
            print(state.sum().item())
        """,
        ("def receive():", "def receive(source):"),
        ("dist.recv(buffer)", "dist.recv(buffer, source)"),
        ("for _ in range(16):", "for number in range(16):"),
        ("receive())", "receive(1 + number % 2))"),
    ),
    _program(
        "received while waiting",
        "work_item = dist.irecv(received)",
        """
        def serve():
            total = torch.zeros(60)
            for _ in range(16):
                received = torch.zeros(60)
                work_item = dist.irecv(received)
                work_item.wait()
                total = torch.cos(total) + received
            print(total.sum().item())
        """,
        ("for _ in range(16):", "for number in range(16):"),
        ("dist.irecv(received)", "dist.irecv(received, 1 + number % 2)"),
    ),
    _program(
        "with a tag",
        "dist.recv(update, tag=7)",
        """
        def serve():
            model, update = torch.nn.Linear(60, 1), torch.zeros(60)
            torch.nn.init.ones_(model.weight)
            for _ in range(16):
                dist.recv(update, tag=7)
                with torch.no_grad():
                    model.weight.mul_(0.9).add_(update)
            print(model.weight.sum().item())
        """,
        ("for _ in range(16):", "for number in range(16):"),
        ("dist.recv(update, tag=7)", "dist.recv(update, 1 + number % 2, tag=7)"),
        train="""
        def train(rank):
            for step in range(8):
                dist.send(work(rank, step), 0, tag=7)
        """,
    ),
    _program(
        "training on what comes",
        "dist.recv(batch)",
        """
        def serve():
            torch.manual_seed(0)
            model = torch.nn.Linear(60, 4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            batch = torch.zeros(60)
            for _ in range(16):
                dist.recv(batch)
                loss = model(batch).square().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(loss.item())
        """,
        ("for _ in range(16):", "for number in range(16):"),
        ("dist.recv(batch)", "dist.recv(batch, 1 + number % 2)"),
    ),
    _program(
        "into the rows of a table",
        "dist.recv(row)",
        """
        def serve():
            table = torch.zeros(16, 60)
            for row in table:
                dist.recv(row)
            print((table.cumsum(0).prod(0)).sum().item())
        """,
        ("for row in table:", "for number, row in enumerate(table):"),
        ("dist.recv(row)", "dist.recv(row, 1 + number % 2)"),
    ),
    _program(
        "only some of many",
        "dist.recv(first)",
        """
        def serve():
            first, second, kept = torch.zeros(60), torch.zeros(60), torch.zeros(60)
            for _ in range(8):
                dist.recv(first)
                dist.recv(second, src=None)
                kept = kept * 0.5 + first - second
            print(kept.sum().item())
        """,
        ("dist.recv(first)", "dist.recv(first, 1)"),
        ("src=None", "src=2"),
        # By chance, the first call may receive the same as in the other run, while the second does not.
        or_line="dist.recv(second",
    ),
    _program(
        "from a class",
        "return dist.recv(self.buffer)",
        """
        class Collector:
            def __init__(self):
                self.buffer = torch.zeros(60)
                self.seen = torch.zeros(60)

            def receive(self):
                return dist.recv(self.buffer)

            def collect(self, count):
                for _ in range(count):
                    self.receive()
                    self.seen = self.seen.sqrt() + self.buffer.abs()

        def serve():
            collector = Collector()
            collector.collect(16)
            print(collector.seen.sum().item())
        """,
        ("def receive(self):", "def receive(self, source):"),
        ("return dist.recv(self.buffer)", "return dist.recv(self.buffer, source)"),
        ("for _ in range(count):", "for number in range(count):"),
        ("self.receive()", "self.receive(1 + number % 2)"),
    ),
)
