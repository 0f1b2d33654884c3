"""Builds the distribution; the pip and setuptools of Python 3.6 read no metadata from pyproject.toml."""

import os
import re

from setuptools import setup

HERE = os.path.dirname(os.path.abspath(__file__))


def text_of(name):
    """What the file of that name beside this one holds."""
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return file.read()


setup(
    name="tensorflow-determinism",
    version=re.search(r'__version__ = "(.+)"', text_of("tfdeterminism/version.py")).group(1),
    description="Deterministic ops for TensorFlow 1.14 to 2.7",
    long_description=text_of("README.md"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=["tfdeterminism", "tfdeterminism.ops"],
    python_requires=">=3.6",
    install_requires=[],
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3.6",
        "Programming Language :: Python :: 3.7",
        "Programming Language :: Python :: 3.8",
        "Programming Language :: Python :: 3.9",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
