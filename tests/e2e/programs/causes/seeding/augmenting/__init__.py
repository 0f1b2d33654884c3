"""Augmentations of images."""

from augmenting.compose import Compose
from augmenting.transforms import Brightness, Flip

__all__ = ["Brightness", "Compose", "Flip"]
