"""Measures whether ops are bitwise repeatable on this machine: `determinism audit`. The core imports nothing from here."""
