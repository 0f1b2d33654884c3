"""Checks what must agree within one run, such as replicas of a parameter on several ranks: no second run is needed."""
