"""Preprocessing and heads inside a model: steps before an input and after outputs.

Each step has a method that emits it into a graph, and one that computes it in NumPy, with which the
result is proved. `modes.py` lists the ways of libraries to resize; `resampling.py` emits them and
`pixels.py` computes them. `images.py` and `image_sizes.py` have the steps of inputs, `heads.py`,
`detection.py` and `anchors.py` those of outputs; `registry.py` reads them from text.
"""
