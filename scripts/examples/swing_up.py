"""An ONNX model inside an optimal control problem of CasADi, with exact derivatives.

    python scripts/examples/swing_up.py

The model is one time step of a pendulum with a motor. CasADi (3.8, `pip install casadi`) runs ONNX
files in onnxruntime, but knows no derivative of what is in them: it looks for files beside
step.onnx that have them. `casadi_derivative` makes these, in CasADi's names and layout:
  adj_step.onnx        reverse mode, for gradients and Jacobians;
  fwd_adj_step.onnx    forward mode of that, for the Hessian of the Lagrangian.
Ipopt then swings the pendulum up in three seconds, with the least effort of the motor.
"""

import os
import tempfile
from pathlib import Path

import casadi as ca
import onnx
import onnxruntime

import onnxgrad

# state: angle (0 hangs down) and speed
MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
step (double[2] state, double[1] torque) => (double[2] after)
  <double dt = {0.05}, double gravity = {-9.81}, double friction = {-0.1}> {
  angle, speed = Split <num_outputs = 2> (state)
  sine = Sin (angle)    falling = Mul (gravity, sine)    damping = Mul (friction, speed)
  sum = Add (falling, damping)    gain = Add (sum, torque)    change = Mul (dt, gain)
  faster = Add (speed, change)    turned = Mul (dt, faster)    further = Add (angle, turned)
  after = Concat <axis = 0> (further, faster)
}
"""
STEPS = 60


def from_files(folder):
    """The step as a CasADi function that runs step.onnx and its derivatives."""
    # which onnxruntime CasADi loads: that of Python, of any version
    found = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    os.environ.setdefault("CASADI_ONNXRUNTIME_LIB", str(found))
    model = onnx.parser.parse_model(MODEL)
    adjoint = onnxgrad.casadi_derivative(model, "adj")
    onnx.save(model, folder / "step.onnx")
    onnx.save(adjoint, folder / "adj_step.onnx")
    onnx.save(onnxgrad.casadi_derivative(adjoint, "fwd"), folder / "fwd_adj_step.onnx")
    return ca.GraphBuilder(str(folder / "step.onnx")).create("step")


def swing_up(step):
    """The least effort, and the torques."""
    problem = ca.Opti()
    states, torques = problem.variable(2, STEPS + 1), problem.variable(1, STEPS)
    problem.subject_to(states[:, 0] == [0, 0])
    for i in range(STEPS):
        problem.subject_to(states[:, i + 1] == step(states[:, i], torques[i]))
    problem.subject_to(states[:, STEPS] == [ca.pi, 0])
    problem.subject_to(problem.bounded(-5, torques, 5))
    problem.minimize(ca.sumsqr(torques))
    problem.set_initial(states[0, :], ca.linspace(0, ca.pi, STEPS + 1).T)
    problem.solver("ipopt", {"print_time": False}, {"print_level": 0, "sb": "yes"})
    done = problem.solve()
    return done.value(problem.f), done.value(torques), problem.stats()["iter_count"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        effort, torques, count = swing_up(from_files(Path(folder)))
    print(f"up after {count} iterations: effort {effort:.6f}, largest torque {max(torques):.3f}")
    return effort, torques, count


if __name__ == "__main__":
    main()
