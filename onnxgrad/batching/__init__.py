"""Batching rules of operators: the axis of the rows in the results, by their axes in the operands.

`layout.py` describes the axis of the rows, `site.py` a node to which a rule applies. Rules in place
keep the node: `elementwise_and_products.py`, `moves.py` (shapes and indices), `along_axes.py`
(reductions and normalisations), `spatial.py` (convolutions, pools, recurrent operators). If such a
rule refuses, the rule of `shifted.py` or `sequences.py` computes the node with the rows on their
own axis in front. If that refuses, too, rows are followed through a formula (`formulas.py`), the
body of the operator's schema, or nested graphs (`control_flow.py`). At last `scan.py` runs the node
once per row. `walk.py` applies the rules.
"""
