"""Notes, in the user's own modules, what a program takes from outside: the order of a set, a listing, the clock, entropy.

Loaded in the user's process only when it is asked for. The user's modules are compiled from a rewritten syntax tree, in
memory: each call and each iteration asks here first whether it uses such a source. Two runs whose notes differ tell where
their difference may have come from, and a source can be given a fixed value to see whether it did.
"""
