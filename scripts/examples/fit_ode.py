"""A physical parameter fitted through a Loop: the friction and the length of a pendulum.

    python scripts/examples/fit_ode.py [-o FOLDER]

The model integrates a'' = -(9.81 / length) sin a - friction a' in an ONNX Loop, by semi-implicit
Euler steps, and returns the angle after each step. Both parameters are initializers, as weights
are: the step of training differentiates through the Loop and fits them to noisy angles that were
measured. FOLDER gets pendulum.onnx with the fitted parameters, and fit.png (needs matplotlib).
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from onnxgrad import Trainer, train, training_step

PENDULUM = """
<ir_version: 10, opset_import: ["" : 20]>
pendulum (double start, int64 steps) => (double[T] angles)
  <double friction = {0.3}, double length = {1.5}, double rest = {0},
   double g = {9.81}, double dt = {0.02}, bool go = {1}> {
  pull = Div (g, length)
  angle, speed, angles = Loop (steps, go, start, rest) <body = swing
    (int64 i, bool on, double a, double v) => (bool still, double a1, double v1, double seen) {
      still = Identity (on)
      sine = Sin (a)    drawn = Mul (pull, sine)    rubbed = Mul (friction, v)
      force = Add (drawn, rubbed)    change = Mul (dt, force)    v1 = Sub (v, change)
      way = Mul (dt, v1)    a1 = Add (a, way)    seen = Identity (a1)
    }>
}
"""
TRUE = {"friction": 0.15, "length": 1.2}


def with_values(model, values):
    """The model with other numbers in its scalar initializers."""
    for tensor in model.graph.initializer:
        if tensor.name in values:
            value = np.array(values[tensor.name])
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    return model


def angles(model, feeds):
    """What the model says."""
    return ort.InferenceSession(model.SerializeToString()).run(["angles"], feeds)[0]


def main(folder=None):
    model = onnx.parser.parse_model(PENDULUM)
    feeds = {"start": np.array(1.0), "steps": np.array(200)}
    exact = angles(with_values(onnx.parser.parse_model(PENDULUM), TRUE), feeds)
    measured = exact + np.random.default_rng(0).normal(0, 1e-3, exact.shape)
    step = training_step(model, "mse", train.Adam(), list(TRUE))
    trainer = Trainer(step, rate=train.schedules.Cosine(0.05, T_max=400))
    history = trainer.fit([{**feeds, "target": measured}], epochs=400)
    found = {name: float(value) for name, value in trainer.parameters.items()}
    print(f"loss {history.losses[0]:.2e} -> {history.losses[-1]:.2e}")
    for name, value in found.items():
        print(f"{name}: {value:.4f}, it was {TRUE[name]}")
    if folder:
        from matplotlib.figure import Figure

        trainer.export(model, folder / "pendulum.onnx")
        axes = Figure().subplots()
        axes.plot(measured, ".", label="measured")
        axes.plot(angles(with_values(model, found), feeds), label="fitted")
        axes.legend()
        axes.figure.savefig(folder / "fit.png")
    return found, history.losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", metavar="FOLDER", type=Path, help="where files are written")
    main(parser.parse_args().o)
