"""Whether ops give the same bits again, measured here: `determinism audit`. The core imports nothing from here."""
