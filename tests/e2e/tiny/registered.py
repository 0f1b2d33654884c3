"""Uses numbers of a vocabulary that goes through a registry; sets are printed in their order too, which changes nothing.

With `noise` the numbers are those of the words alone, and what differs comes from a generator that nobody seeded.
"""

import random
import sys

import tinyframe as frame

TEXT = "the best thing about it was the music and the cast of a warm and funny film"


class Registry:
    """Keeps things by name."""


def main(how):
    words, labels, authors = set(TEXT.split()), {"good", "bad", "fair"}, {"ada", "bob", "eve"}
    print("labels:", *labels)
    print("authors:", ", ".join(authors))
    print("words:", "-".join(words))
    order = {word: number for number, word in enumerate(words)}  # ORDER
    draws = random.Random(0 if how == "order" else None)  # NOISE
    for name, value in {"number": order.__getitem__ if how == "order" else len, "noise": draws.random}.items():
        setattr(Registry, name, value)
    weight = frame.full(1, 1.0)
    for item in TEXT.split():
        weight = frame.multiply(weight, frame.full(1, 1.0 + Registry.number(item) + Registry.noise()))
        frame.step(weight=weight)


main(sys.argv[1])
