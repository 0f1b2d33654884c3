"""Checks within one run, without a second one, of what must agree, such as replicas of a parameter on several ranks."""
