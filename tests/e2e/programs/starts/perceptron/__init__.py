"""A package that trains a perceptron: started with `python -m`, and by the script that an installer makes for it."""
