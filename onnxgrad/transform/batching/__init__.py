"""The table of batching rules: for each operator, on which axis of its results the rows stand if
they stand on given axes of its operands.

`layout.py` says where the rows of a value are; `site.py` is one node at work. Rules in place keep
the node: `elementwise_and_products.py`, `moves.py` (shapes and indices), `along_axes.py`
(reductions and normalisations), `spatial.py` (convolutions, pools, recurrent operators). If such a
rule refuses, the rule of `shifted.py` computes the node with the rows on an axis of their own in
front. If that refuses too, `scan.py` runs the node once per row. `walk.py` applies them.
"""
