"""Budgets hold in real runs: the measured peak of accepted budgets, over random networks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxgrad import gradient
from onnxgrad.errors import InputError
from tests.grad.numeric import scalar_model

CHILD = """
import sys
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 1, 4
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
given = session.get_inputs()[0]
x = np.ones(given.shape, np.float32)
def memory(field):
    return int(next(l for l in open("/proc/self/status") if l.startswith(field)).split()[1])
base = memory("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
session.run(None, {given.name: x})
print((memory("VmHWM") - base) * 1024)
"""


def measured(graph: onnx.ModelProto, path: Path) -> int:
    onnx.save(graph, path)
    words = [sys.executable, "-c", CHILD, str(path)]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def network(rng: np.random.Generator) -> onnx.ModelProto:
    """Returns a chain of random layers, convolutions or products, with shortcuts."""
    images, width = bool(rng.integers(2)), int(rng.choice([16, 24, 32]))
    shape = (4, width, 48, 48) if images else (1024, 8 * width)
    nodes, weights, kept = [], {}, "x"
    last = "x"
    for i in range(int(rng.integers(8, 24))):
        kind = int(rng.integers(4))
        if kind < 2:
            size = (width, width, 3, 3) if images else (8 * width, 8 * width)
            weights[f"w{i}"] = rng.standard_normal(size).astype(np.float32) / 20
            op = "Conv <pads = [1, 1, 1, 1]>" if images else "MatMul"
            nodes.append(f"h{i} = {op} ({last}, w{i})")
        elif kind == 2:
            nodes.append(f"h{i} = {rng.choice(['Relu', 'Tanh', 'Gelu', 'Softplus'])} ({last})")
        else:
            nodes.append(f"h{i} = {rng.choice(['Add', 'Mul'])} ({last}, {kept})")
            kept = f"h{i}"
        last = f"h{i}"
    sizes = ",".join(map(str, shape))
    text = f"""<ir_version: 10, opset_import: ["" : 20]> g (float[{sizes}] x) => (float loss) {{
        {" ".join(nodes)} q = Mul ({last}, {last}) loss = ReduceMean <keepdims = 0> (q) }}"""
    return scalar_model(text, **weights)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from /proc")
@pytest.mark.parametrize("seed", [*range(12), 129])
def test_measured_peaks_are_within_a_tenth_of_accepted_budgets(seed: int, tmp_path: Path) -> None:
    model = network(np.random.default_rng(seed))
    plain = measured(gradient(model, None, "loss"), tmp_path / "plain.onnx")
    held = []
    for share in (0.8, 0.5, 0.3):
        budget = int(share * plain)
        try:
            graph = gradient(model, None, "loss", checkpoint=budget)
        except InputError as error:
            # the least that a refusal names is accepted, and holds
            budget = int(re.search(r"about (\d+)$", str(error))[1])
            graph = gradient(model, None, "loss", checkpoint=budget)
        held.append(measured(graph, tmp_path / "graph.onnx") / budget)
    assert max(held) <= 1.1, held
