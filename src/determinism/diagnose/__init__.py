"""From a divergence to its cause, with evidence from further runs."""
