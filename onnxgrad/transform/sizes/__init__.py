"""Sizes that a file fixes become open: `walk.py` follows them from the inputs through every node.

`agreement.py` says which axes of a node's operands must agree. If a fixed size meets an open one,
`origins.py` goes back to the number that fixed it, and `constants.py` writes constants that count
positions for any size. `reshape.py` and `targets.py` rewrite numbers in a node (`node.py`) whose
operand is open: the target of a Reshape, the end of a Slice. `expressions.py` has the open sizes
and their values in the file.
"""
