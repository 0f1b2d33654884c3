"""Notes, in the user's own modules, what a program takes from outside: the order of a set, a listing, the clock, entropy.

Loaded in the user's process only on request. The user's modules are compiled from a rewritten syntax tree, in memory:
each call and each iteration first asks here whether it uses such a source. A source whose notes differ between two runs
may have made them differ; fixing its value shows whether it did.
"""
