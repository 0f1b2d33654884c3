"""A package that trains a perceptron, started with `python -m` or by the script that an installer generates for it."""
