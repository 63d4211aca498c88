"""Forces of an energy model, and a relaxation: 13 atoms of argon find their icosahedron.

    python scripts/examples/forces.py [-o FOLDER]

The model is an energy written as ONNX: Lennard-Jones, the sum over pairs of 4 (r^-12 - r^-6), which
any learned potential may replace. `gradient` adds its derivative by the positions as an output; the
forces are minus that. The atoms follow them by FIRE (Bitzek et al., "Structural relaxation made
simple", 2006) to the known minimum, -44.326801 (Wales and Doye, 1997). FOLDER gets forces.onnx, and
relaxed.xyz, which molecular viewers open.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

import onnxgrad

ENERGY = """
<ir_version: 10, opset_import: ["" : 20]>
lennard_jones (double[N,3] r) => (double energy)
  <int64[1] rows = {1}, int64[1] columns = {0}, int64[1] last = {-1}, int64 above = {1},
   double three = {3}, double four = {4}> {
  i = Unsqueeze (r, rows)    j = Unsqueeze (r, columns)    between = Sub (i, j)
  squares = ReduceSumSquare <keepdims = 0> (between, last)
  itself = EyeLike (squares)    apart = Add (squares, itself)
  r6 = Pow (apart, three)    a6 = Reciprocal (r6)    a12 = Mul (a6, a6)
  both = Sub (a12, a6)    each = Mul (four, both)    pairs = Trilu (each, above)
  energy = ReduceSum <keepdims = 0> (pairs)
}
"""


def relax(energy_and_forces, r, dt=0.01, force=1e-9):
    """FIRE: fall along the forces with momentum, and stand still when it goes uphill."""
    v, alpha, good, energies = np.zeros_like(r), 0.1, 0, []
    while len(energies) < 2000:
        energy, f = energy_and_forces(r)
        energies.append(energy)
        if np.abs(f).max() < force:
            break
        if (f * v).sum() < 0:
            v, dt, alpha, good = np.zeros_like(r), 0.5 * dt, 0.1, 0
        v = (1 - alpha) * v + alpha * f * np.linalg.norm(v) / np.linalg.norm(f)
        good += 1
        if good > 5:
            dt, alpha = min(1.1 * dt, 0.05), 0.99 * alpha
        v = v + dt * f
        r = r + dt * v
    return r, energies


def main(folder=None):
    model = onnxgrad.gradient(onnx.parser.parse_model(ENERGY), "r", "energy")
    session = ort.InferenceSession(model.SerializeToString())

    def energy_and_forces(r):
        energy, gradient = session.run(["energy", "r_grad"], {"r": r})
        return float(energy), -gradient

    corners = [(0, a, b * (1 + 5**0.5) / 2) for a in (-1, 1) for b in (-1, 1)]
    atoms = [(0, 0, 0), *(np.roll(c, k) for c in corners for k in range(3))]
    shaken = 0.6 * np.array(atoms) + np.random.default_rng(0).normal(0, 0.08, (13, 3))
    r, energies = relax(energy_and_forces, shaken)
    print(f"energy {energies[0]:.6f} -> {energies[-1]:.6f} in {len(energies)} steps")
    print(f"largest force {np.abs(energy_and_forces(r)[1]).max():.1e}")
    if folder:
        onnx.save(model, folder / "forces.onnx")
        lines = [f"Ar {x:.6f} {y:.6f} {z:.6f}" for x, y, z in 3.4 * r]  # sigma of argon: 3.4 A
        (folder / "relaxed.xyz").write_text("\n".join(["13", "argon", *lines]) + "\n")
    return energy_and_forces, shaken, r, energies


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", metavar="FOLDER", type=Path, help="where files are written")
    main(parser.parse_args().o)
