"""From a divergence to what caused it, by evidence from further runs."""
