"""Differentiates every node case of ONNX's backend suite with operands of unknown type, which come
from an operator that onnx does not know.

    python scripts/sweep_untyped.py [--only OP] [--kernel | --ranks]

The gradient must equal that of the case itself, or be refused. With --kernel, a registered kernel
shows the types, and the gradient must not be refused. With --ranks, the operands are inputs of
known dtype and unknown rank; the refusals are listed. The exit code is 1 if something failed.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import onnxgrad  # noqa: E402  # runs from a checkout
from onnxgrad.errors import InternalError, OnnxgradError  # noqa: E402
from onnxgrad.verify.compare import compare  # noqa: E402
from onnxgrad.verify.reference.evaluate import reference  # noqa: E402
from onnxgrad.verify.reference.user_operators import OWN  # noqa: E402
from tests.backend_suite import Case, usable  # noqa: E402

_KEY = ("untyped.domain", "Same")
_CLOSE = 1e-6  # constants in formulas are float32 if the dtype is unknown
_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16}


def behind(model: ModelProto) -> ModelProto:
    """Returns the model whose nodes read each float input through the unknown operator."""
    made = ModelProto()
    made.CopyFrom(model)
    floats = [v.name for v in made.graph.input if v.type.tensor_type.elem_type in _FLOATS]
    for node in made.graph.node:
        node.input[:] = [f"{n}_same" if n in floats else n for n in node.input]
    nodes = [helper.make_node(_KEY[1], [n], [f"{n}_same"], domain=_KEY[0]) for n in floats]
    kept = list(made.graph.node)
    del made.graph.node[:]
    made.graph.node.extend([*nodes, *kept])
    made.opset_import.append(helper.make_opsetid(_KEY[0], 1))
    return made


def without_ranks(model: ModelProto) -> ModelProto:
    """Returns the model, which declares no shapes of float inputs and results."""
    made = ModelProto()
    made.CopyFrom(model)
    # roi and scales are vectors, whose length shows the rank of an image
    vectors = {
        name for node in made.graph.node if node.op_type == "Resize" for name in node.input[1:]
    }
    for v in [*made.graph.input, *made.graph.output]:
        if v.type.tensor_type.elem_type in _FLOATS and v.name not in vectors:
            v.type.tensor_type.ClearField("shape")
    return made


def judged(case: Case, *, kernel: bool, ranks: bool) -> str:
    """Returns the outcome of one case: "none" if the case itself has no gradient."""
    target = case.model.graph.output[0].name
    adjoint = np.random.default_rng(0).standard_normal(case.outputs[0].shape)
    feeds = {**case.inputs, f"{target}_grad": adjoint.astype(case.outputs[0].dtype)}
    try:
        own = onnxgrad.gradient(case.model, target=target, adjoint="input")
        wanted = reference(own, feeds)
    except OnnxgradError:
        return "none"
    OWN.pop(_KEY, None)
    if kernel:
        OWN[_KEY] = lambda x: x
    try:
        model = without_ranks(case.model) if ranks else behind(case.model)
        graph = onnxgrad.gradient(model, target=target, adjoint="input")
    except InternalError as error:
        return f"INTERNAL {error}"
    except OnnxgradError as error:
        return f"{'REFUSED' if kernel else 'refused'} {error}"
    OWN[_KEY] = lambda x: x
    try:
        found = reference(graph, feeds)
    except OnnxgradError as error:
        return f"FAILS {error}"
    bad = [d for d in compare(wanted, found, _CLOSE) if not d.ok]
    return f"DIFFERS {bad[0]}" if bad else "right"


def main() -> int:
    """Returns 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", metavar="OP")
    parser.add_argument("--kernel", action="store_true")
    parser.add_argument("--ranks", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    onnxgrad.vjp("untyped.domain::Same", lambda g, y, x: g)
    counts: Counter[str] = Counter()
    for case in usable():
        nodes = case.model.graph.node
        if case.kind != "node" or len(nodes) > 1 or given.only not in ("", nodes[0].op_type):
            continue
        if not isinstance(case.outputs[0], np.ndarray) or case.outputs[0].dtype.kind != "f":
            continue
        found = judged(case, kernel=given.kernel, ranks=given.ranks)
        counts[found.split(" ")[0]] += 1
        if found[0].isupper() or (given.ranks and found.startswith("refused")):
            print(f"{case.name} | {found[:300]}", flush=True)
    print(dict(counts))
    return 1 if any(what[0].isupper() for what in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
