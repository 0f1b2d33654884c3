"""Prints values that depend on the order of a set, on random numbers, and on an unseeded generator."""

import random

import numpy as np

print(sorted({"a", "b", "c", "d", "e", "f", "g", "h"}, key=hash), random.random(), np.random.default_rng().random())
