"""Makes sizes dynamic that a file fixes: `walk.py` follows them from the inputs through every node.

`agreement.py` lists the axes of operands that must have equal sizes. If a fixed size meets an open
one, `origins.py` traces the fixed size back to the number that set it, and `constants.py` extends
constants that count positions to any size. If an operand of a node (`node.py`) is open,
`reshape.py` and `targets.py` rewrite numbers in the node, such as the target of a Reshape or the
end of a Slice, and `arithmetic.py` those of Mul, Div, Mod and Add. `extensions.py` has the user's
choice of how constants continue. `expressions.py` holds the open sizes and their values in the
file.
"""
