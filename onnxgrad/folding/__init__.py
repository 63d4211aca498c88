"""The values of bindings whose operands are constants: what to compute, where, and how well it
is rounded.
"""
