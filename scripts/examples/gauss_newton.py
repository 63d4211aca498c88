"""Products with the Hessian and with the Jacobian, and Gauss-Newton steps made of them.

    python scripts/examples/gauss_newton.py

The model is a damped oscillation a e^(-b t) cos(c t), whose parameters p = (a, b, c) are to fit
samples. Three products come from it as graphs, none of which ever holds a matrix:
  J v    `jvp` of the residuals r;
  J'u    `gradient` of the residuals, with the adjoint u as an input;
  H v    `hessian_vector_product` of the loss, which gives the gradient as well.
A Gauss-Newton step solves (J'J + m) s = -J'r by conjugate gradients, m as by Levenberg and
Marquardt. At an exact fit H = J'J, as the third product shows.
"""

import numpy as np
import onnx
import onnxruntime as ort

import onnxgrad

MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
fit (double[3] p, double[T] t, double[T] samples) => (double[T] r, double loss)
  <double half = {0.5}> {
  a, b, c = Split <num_outputs = 3> (p)
  bt = Mul (b, t)    falling = Neg (bt)    envelope = Exp (falling)    high = Mul (a, envelope)
  ct = Mul (c, t)    wave = Cos (ct)    y = Mul (high, wave)
  r = Sub (y, samples)    squares = ReduceSumSquare <keepdims = 0> (r)    loss = Mul (half, squares)
}
"""
TRUE = np.array([2.0, 0.3, 5.0])


def solve(product, b):
    """The s with product(s) = b, by conjugate gradients (Hestenes and Stiefel, 1952)."""
    s, r, p = np.zeros_like(b), b, b
    while np.linalg.norm(r) > 1e-12 * np.linalg.norm(b):
        q = product(p)
        step = r @ r / (p @ q)
        s, old, r = s + step * p, r, r - step * q
        p = r + (r @ r) / (old @ old) * p
    return s


def main():
    model = onnx.parser.parse_model(MODEL)
    graphs = {
        "Jv": onnxgrad.jvp(model, "p", "r"),
        "J'u": onnxgrad.gradient(model, "p", "r", adjoint="input"),
        "grad": onnxgrad.gradient(model, "p", "loss"),
        "Hv": onnxgrad.hessian_vector_product(model, "p", "loss"),
    }
    sessions = {k: ort.InferenceSession(g.SerializeToString()) for k, g in graphs.items()}
    t = np.linspace(0, 3, 60)
    data = {"t": t, "samples": TRUE[0] * np.exp(-TRUE[1] * t) * np.cos(TRUE[2] * t)}

    def run(graph, output, **feeds):
        return sessions[graph].run([output], {**data, **feeds})[0]

    def normal(v, p):
        """J'J v."""
        return run("J'u", "p_grad", p=p, r_grad=run("Jv", "r_tangent", p=p, p_tangent=v))

    p, m, losses = np.array([1.0, 0.0, 4.5]), 1e-2, [np.inf]
    while losses[-1] > 1e-20 and m < 1e6:
        here, downhill = float(run("grad", "loss", p=p)), -run("grad", "p_grad", p=p)
        new = p + solve(lambda v: normal(v, p) + m * v, downhill)  # noqa: B023  # called at once
        loss = float(run("grad", "loss", p=new))
        p, m = (new, m / 10) if loss < here else (p, m * 10)
        losses.append(min(loss, here))
        print(f"step {len(losses) - 1}: loss {losses[-1]:.2e}, p = {p.round(6)}")
    hv = run("Hv", "p_hvp", p=p, p_tangent=TRUE)
    print(f"H p = {hv.round(6)}, J'J p = {normal(TRUE, p).round(6)}")
    return p, losses[1:], run, normal


if __name__ == "__main__":
    main()
