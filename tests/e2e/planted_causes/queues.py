"""Several producers that put items into one queue."""

from __future__ import annotations

from tests.e2e.planted_causes.planted import Planted

_CAUSES = ("queue-order",)
_WORK = """
        import queue
        import threading
        import torch

        torch.manual_seed(0)
        torch.set_num_threads(1)

        def made(producer, number):
            values = torch.linspace(0, 1 + producer, 200 + 4000 * (number % 3) + 900 * producer)
            for _ in range(20 + 7 * producer):
                values = torch.sin(values * 1.1)
            return values[:50] + producer + number
"""
_PROCESSES = _WORK.replace("import queue\n        import threading", "import multiprocessing")


def _program(
    name: str, line: str, body: str, *mended: tuple[str, str], head: str = _WORK, others: tuple[str, ...] = ()
) -> Planted:
    return Planted(name, _CAUSES, (line, *others), head + body, mended, is_fixed=False)


_THREADS = """
        ready = queue.Queue()

        def produce(producer):
            for number in range(12):
                ready.put((number, producer, made(producer, number)))

        threads = [threading.Thread(target=produce, args=(one,)) for one in (0, 1)]
        for thread in threads:
            thread.start()
"""
_ONE = ("for one in (0, 1)]", "for one in (0,)]")

PROGRAMS = (
    _program(
        "two threads",
        "_, _, values = ready.get()",
        f"""{_THREADS}
        state = torch.zeros(50)
        for _ in range(24):
            _, _, values = ready.get()
            state = torch.cos(state + values)
        print(state.sum().item())
        """,
        _ONE,
        ("for _ in range(24)", "for _ in range(12)"),
    ),
    _program(
        "taken without waiting",
        "ready.get_nowait()",
        f"""{_THREADS}
        for thread in threads:
            thread.join()
        state = torch.zeros(50)
        while not ready.empty():
            state = torch.cos(state + ready.get_nowait()[2])
        print(state.sum().item())
        """,
        _ONE,
    ),
    _program(
        "a small queue",
        "values = ready.get()",
        """
        ready = queue.Queue(maxsize=2)

        def produce(producer):
            for number in range(12):
                ready.put(made(producer, number))
            ready.put(None)

        for one in (0, 1):
            threading.Thread(target=produce, args=(one,), daemon=True).start()
        state, ended = torch.zeros(50), 0
        while ended < 2:
            values = ready.get()
            if values is None:
                ended += 1
            else:
                state = 0.7 * state + values.tanh()
        print(state.sum().item())
        """,
        ("for one in (0, 1):", "for one in (0,):"),
        ("while ended < 2:", "while ended < 1:"),
    ),
    _program(
        "training on what comes",
        "batch = next(self)",
        """
        class Loader:
            def __init__(self):
                self.ready = queue.SimpleQueue()
                for producer in (0, 1, 2):
                    threading.Thread(target=self.fill, args=(producer,), daemon=True).start()

            def fill(self, producer):
                for number in range(8):
                    self.ready.put(made(producer, number))

            def __next__(self):
                return self.ready.get()

            def __iter__(self):
                for _ in range(24):
                    batch = next(self)
                    yield batch

        model = torch.nn.Linear(50, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for batch in Loader():
            loss = model(batch).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(loss.item())
        """,
        ("for producer in (0, 1, 2):", "for producer in (0,):"),
        ("for _ in range(24):", "for _ in range(8):"),
        others=("return self.ready.get()",),
    ),
    _program(
        "results of threads",
        "results.get(timeout=60)",
        """
        tasks, results = queue.Queue(), queue.Queue()
        for number in range(24):
            tasks.put(number)

        def serve(producer):
            while True:
                try:
                    number = tasks.get_nowait()
                except queue.Empty:
                    return
                results.put(made(number % 2, number))

        for one in (0, 1):
            threading.Thread(target=serve, args=(one,), daemon=True).start()
        total = torch.zeros(50)
        for _ in range(24):
            total = total.sin() + results.get(timeout=60)
        print(total.sum().item())
        """,
        ("for one in (0, 1):", "for one in (0,):"),
    ),
    _program(
        "a priority that ties",
        "ready.get()",
        """
        ready = queue.PriorityQueue()

        def produce(producer):
            for number in range(12):
                ready.put((number // 12, id(made) * 0 + producer * 0, next(counter), made(producer, number)))

        counter = iter(range(10**9))
        threads = [threading.Thread(target=produce, args=(one,)) for one in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        state = torch.zeros(50)
        for _ in range(24):
            state = torch.cos(state + ready.get()[3])
        print(state.sum().item())
        """,
        ("for one in (0, 1)]", "for one in (0,)]"),
        ("for _ in range(24)", "for _ in range(12)"),
        others=("next(counter)",),
    ),
    _program(
        "two processes",
        "values = ready.get()",
        """
        def produce(producer, ready):
            for number in range(12):
                ready.put(made(producer, number).tolist())

        context = multiprocessing.get_context("fork")
        ready = context.Queue()
        processes = [context.Process(target=produce, args=(one, ready)) for one in (0, 1)]
        for process in processes:
            process.start()
        state = torch.zeros(50)
        for _ in range(24):
            values = ready.get()
            state = torch.cos(state + torch.tensor(values))
        for process in processes:
            process.join()
        print(state.sum().item())
        """,
        ("for one in (0, 1)]", "for one in (0,)]"),
        ("for _ in range(24)", "for _ in range(12)"),
        head=_PROCESSES,
    ),
    _program(
        "daemons that send tensors",
        "ready.get()",
        """
        import torch.multiprocessing as mp

        def produce(producer, ready, ended):
            for number in range(12):
                ready.put(made(producer, number))
            ended.wait()

        context = mp.get_context("fork")
        ready, ended = context.Queue(), context.Event()
        for one in (0, 1):
            context.Process(target=produce, args=(one, ready, ended), daemon=True).start()
        state = torch.zeros(50)
        for _ in range(24):
            state = 0.5 * state + ready.get()
        ended.set()
        print(state.sum().item())
        """,
        ("for one in (0, 1):", "for one in (0,):"),
        ("for _ in range(24)", "for _ in range(12)"),
        head=_PROCESSES,
    ),
    _program(
        "a simple queue of processes",
        "inbox.get()",
        """
        import numpy as np

        def produce(producer, inbox):
            for number in range(12):
                inbox.put(made(producer, number).numpy())

        context = multiprocessing.get_context("fork")
        inbox = context.SimpleQueue()
        processes = [context.Process(target=produce, args=(one, inbox)) for one in (0, 1)]
        for process in processes:
            process.start()
        rows = [inbox.get() for _ in range(24)]
        for process in processes:
            process.join()
        table = torch.from_numpy(np.stack(rows))
        print((table * torch.linspace(0, 1, 24)[:, None]).sum().item())
        """,
        ("for one in (0, 1)]", "for one in (0,)]"),
        ("for _ in range(24)]", "for _ in range(12)]"),
        ("torch.linspace(0, 1, 24)", "torch.linspace(0, 1, 12)"),
        head=_PROCESSES,
    ),
    _program(
        "a deque",
        "ready.popleft()",
        """
        from collections import deque

        ready = deque()

        def produce(producer):
            for number in range(12):
                ready.append(made(producer, number))

        threads = [threading.Thread(target=produce, args=(one,)) for one in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        state = torch.zeros(50)
        while ready:
            state = torch.cos(state + ready.popleft())
        print(state.sum().item())
        """,
        ("for one in (0, 1)]", "for one in (0,)]"),
        others=("ready.append(",),
    ),
)
