"""An operator of your own: its gradient, what it computes, a law about it, and the proof of both.

    python scripts/examples/days/own_operator.py

my.domain::Rotate turns points of the plane by an angle. Two turns in a row are one.
"""

import numpy as np
import onnx

import onnxgrad
from onnxgrad import P, capture, op

model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 20, "my.domain" : 1]>
    turns (float[N,2] points) => (float[N,2] y) {
      half = my.domain.Rotate <angle = 0.5> (points)
      more = my.domain.Rotate <angle = 0.25> (half)
      y = Tanh (more)
    }
""")
rotate, a_rotate = op.domain("my.domain").Rotate, P.domain("my.domain").Rotate
onnxgrad.vjp("my.domain::Rotate", lambda g, y, x, angle: rotate(g, angle=-angle))


@onnxgrad.kernel("my.domain::Rotate")
def turned(x, angle):
    c, s = np.cos(angle), np.sin(angle)
    return x @ np.array([[c, s], [-s, c]])


x, first, second = capture("x first second")


@onnxgrad.rewrite(a_rotate(a_rotate(x, angle=first), angle=second))
def turn_once(x, first, second):
    """Rotate(Rotate(x, a), b) = Rotate(x, a + b)"""
    return rotate(x, angle=first + second)


checked = onnxgrad.check_gradient(model)
done = onnxgrad.optimize(model, passes=["default", turn_once], report=True)
print(checked, done, sep="\n")
