"""Sharpness: the largest curvature of a loss, by products with its Hessian, which is never formed.

    python scripts/examples/days/sharpness.py models/training/mlp.onnx models/training/mlp.npz

`hessian_vector_product` adds to the model an input v beside each weight and an output H v; power
iteration with them finds the eigenvalue of H that is largest in size. Gradient descent with a rate
above 2 / sharpness does not converge.
"""

import sys

import numpy as np
import onnxruntime as ort

import onnxgrad

graph = onnxgrad.hessian_vector_product(sys.argv[1], "params", "loss")
session = ort.InferenceSession(graph.SerializeToString())
data = {name[3:]: a for name, a in np.load(sys.argv[2]).items() if name.startswith("in:")}
tangents = [i for i in session.get_inputs() if i.name.endswith("_tangent")]
products = [o.name for o in session.get_outputs() if o.name.endswith("_hvp")]
v = [np.random.default_rng(0).standard_normal(i.shape, np.float32) for i in tangents]
for _ in range(100):
    size = np.sqrt(sum((part**2).sum() for part in v))
    v = session.run(products, data | {i.name: part / size for i, part in zip(tangents, v)})
print(f"sharpness {size:.4f}")
