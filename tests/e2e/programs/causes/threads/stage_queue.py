"""A pipeline of two stages: threads normalise windows of a signal, and one thread updates a filter with them."""

import queue
import threading

import torch
from torch import Tensor


class AdaptiveFilter:
    """A filter that is corrected after each window."""

    def __init__(self, taps: int, rate: float) -> None:
        self.weights = torch.zeros(taps)
        self.rate = rate

    def update(self, window: Tensor) -> None:
        past, wanted = window.unfold(0, len(self.weights), 1)[:-1], window[len(self.weights) :]
        error = wanted - past @ self.weights
        self.weights += self.rate * past.T @ error / len(error)


def normalise(windows: "queue.Queue[Tensor | None]", ready: "queue.Queue[Tensor | None]") -> None:
    while (window := windows.get()) is not None:
        spectrum = torch.fft.rfft(window)
        spectrum[: len(window) // 50] = 0
        ready.put(torch.fft.irfft(spectrum, n=len(window)))
    ready.put(None)


def update_all(ready: "queue.Queue[Tensor | None]", adaptive: AdaptiveFilter, producers: int) -> None:
    ended = 0
    while ended < producers:
        cleaned = ready.get()
        if cleaned is None:
            ended += 1
        else:
            adaptive.update(cleaned)


torch.manual_seed(16)
signal = torch.randn(60_000).cumsum(0) / 30
windows: queue.Queue = queue.Queue()
ready: queue.Queue = queue.Queue()
for number in range(40):
    windows.put(signal[number * 1000 : number * 1000 + 2000 + 6000 * (number % 2)])
for _ in range(3):
    windows.put(None)
adaptive = AdaptiveFilter(taps=12, rate=0.05)
stages = [threading.Thread(target=normalise, args=(windows, ready)) for _ in range(3)]
stages.append(threading.Thread(target=update_all, args=(ready, adaptive, 3)))
for stage in stages:
    stage.start()
for stage in stages:
    stage.join()
print(adaptive.weights.tolist())
