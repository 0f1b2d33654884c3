"""The version of the distribution, which setup.py reads too."""

__version__ = "0.5.0"
