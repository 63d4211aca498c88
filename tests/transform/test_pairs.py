"""Every pair of transformations on networks of each family of rules, and forty triples."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxgrad import InputError
from onnxgrad.verify.reference.evaluate import Reference
from tests.grad.weights.test_kept import NETS, _f
from tests.helpers import covering, parse
from tests.transform.pairs import STEPS, Stage

FAMILIES = {
    **NETS,
    "powers": ("q = Softplus (x) a = Pow (q, s) y = Tanh (a)", (2, 3), {"s": np.array([2, 1, 3], np.float32)}),
    "embedding": ("i = Constant <value_ints = [2, 0]> () e = Gather (W, i) a = MatMul (x, e) y = Tanh (a)", (2, 2), {"W": _f(3, 2)}),
    "pooling": ("a = Conv <pads = [1, 1, 1, 1]> (x, W) b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a) c = AveragePool <kernel_shape = [2, 2]> (b) y = Tanh (c)", (2, 1, 6, 6), {"W": _f(2, 1, 3, 3)}),
    "selection": ("a = Mul (x, W) z = Constant <value_float = 0.45> () c = Greater (a, z) e = Exp (a) b = Where (c, e, x) d = Clip (b, , z) y = Sub (b, d)", (2, 3), {"W": _f(3)}),
    "scan": ("a0 = Constant <value_ints = [0]> () z = ReduceSum <keepdims = 0> (x, a0) h, y = Scan <num_scan_inputs = 1, body = q (float[3] s, float[3] e) => (float[3] b, float[3] o) { p = Mul (e, W) r = Add (p, s) b = Tanh (r) o = Mul (b, s) }> (z, x)", (2, 3), {"W": _f(3)}),
    "resize": ("f = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> () a = Conv (x, W) b = Resize <mode = \"linear\"> (a, , f) y = Tanh (b)", (1, 1, 4, 4), {"W": _f(2, 1, 2, 2)}),
    "sorting": ("a = MatMul (x, W) k = Constant <value_ints = [2]> () v, i = TopK (a, k) c = Tanh (v) j = Constant <value_int = 1> () s = CumSum (c, j) y = Mul (s, c)", (2, 3), {"W": _f(3, 4)}),
    "sequence": ("q = SplitToSequence <axis = 0, keepdims = 0> (x) z = Constant <value_int = 0> () a = SequenceAt (q, z) b = Mul (a, W) r = SequenceInsert (q, b) c = ConcatFromSequence <axis = 0, new_axis = 1> (r) y = Tanh (c)", (2, 3), {"W": _f(3)}),
}  # fmt: skip


NO_BATCH = ("lstm", "attention", "branches", "loop", "scan", "sequence")


def _shape_of(nodes: str, shape: tuple[int, ...], weights: dict[str, np.ndarray]) -> str:
    sizes = ",".join(map(str, shape))
    model = parse(
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[{sizes}] x) => (y) {{ {nodes} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(w, k) for k, w in weights.items())
    found = np.asarray(Reference(model).run({"x": _f(*shape)})["y"])
    return ",".join(map(str, found.shape))


def begin(net: str) -> Stage:
    nodes, shape, weights = FAMILIES[net]
    sizes = ",".join(map(str, shape))
    result = _shape_of(nodes, shape, weights)
    models = []
    for as_inputs in (False, True):
        model = parse(
            f'<ir_version: 10, opset_import: ["" : 21]> g (float[{sizes}] x) => (float u, float[{result}] y) {{ {nodes} u = ReduceSum <keepdims = 0> (y) }}'
        )
        if as_inputs:
            model.graph.input.extend(
                helper.make_tensor_value_info(k, TensorProto.FLOAT, w.shape)
                for k, w in weights.items()
            )
        else:
            model.graph.initializer.extend(
                numpy_helper.from_array(w, k) for k, w in weights.items()
            )
        models.append(model)
    batched = frozenset(() if net in NO_BATCH else ("x",))
    feeds = {"x": _f(*shape).astype(float), **{k: w.astype(float) for k, w in weights.items()}}
    return Stage(models[0], models[1], feeds, "y", "x", next(iter(weights)), batched)


ADAPTED = (
    "matmul",
    "gemm",
    "transposed",
    "attention",
    "equal weights",
    "branches",
    "loop",
    "embedding",
    "sorting",
)


def _fitting(net: str, *names: str) -> bool:
    """Whether every step has what it needs."""
    has = {"w", "initializer"}
    has |= {"batch"} - {"batch" for n in NO_BATCH if n == net} | {
        "adapter" for n in ADAPTED if n == net
    }
    for name in names:
        if not STEPS[name].needs <= has:
            return False
        has -= STEPS[name].drops
    return True


# each pair on each of the networks that it fits
PAIRS = [
    (net, first, second)
    for net in FAMILIES
    for first in STEPS
    for second in STEPS
    if _fitting(net, first, second)
]
TRIPLES = [
    ("open batch", "jvp", "per sample"), ("open batch", "gradient", "vmap weight"), ("gradient", "vmap", "gradient"),
    ("vmap", "gradient", "optimize"), ("jvp", "vmap", "jacobian"), ("hvp", "vmap weight", "jvp"),
    ("merge", "gradient", "train"), ("train", "hvp", "extract"), ("gradient", "train", "gradient"),
    ("opset up", "gradient", "vmap"), ("split", "gradient", "opset up"), ("backward", "vmap", "jvp"),
    ("optimize", "jacobian", "train"), ("float16", "gradient", "vmap"), ("opset down", "hvp", "gradient"),
    ("join", "per sample", "gradient"), ("join before", "hessian", "jvp"), ("extract", "checkpoint", "vmap"),
    ("vmap", "vmap", "gradient"), ("per sample", "jvp", "join"),
]  # fmt: skip
CHAINS = []
for number, names in enumerate(TRIPLES):
    nets = [net for net in FAMILIES if _fitting(net, *names)]
    CHAINS += [(nets[(7 * number + k) % len(nets)], *names) for k in range(2)]

_DERIVED = ("gradient", "checkpoint", "jvp", "hvp", "jacobian", "hessian")


def _refusal(net: str, first: str, second: str) -> str:
    """What a refusal of the second transformation says, if it may be refused."""
    if second == "lift":
        return "so nothing would run once, at load|nothing depends on weights alone"
    if second == "open batch" and first in ("vmap", "per sample", "open batch"):
        return "is open already"
    if second in ("open batch", "per sample") and first in _DERIVED:
        return (
            "open the batch of the model first, then form its derivative|the inputs share no batch"
        )
    return "map the model, then form its derivative" if net in ("sequence", "loop") else "$^"


def _run(stage: Stage, net: str, first: str, second: str) -> Stage | None:
    try:
        return STEPS[second].run(stage)
    except InputError as error:
        assert re.search(_refusal(net, first, second), str(error)) and "\n" not in str(error)
        return None


@functools.lru_cache(1)
def _first(net: str, first: str) -> Stage | None:
    return _run(begin(net), net, "", first)


pytestmark = pytest.mark.filterwarnings("ignore:no requested value reaches")


# by default every network, every first and every second transformation
# (a Hessian of a convolution takes thousands of differences)
_SMALL = ("gemm", "layer norm", "prelu", "exponential", "divisor")
LIGHT = [names for names in PAIRS if "hessian" not in names or names[0] in _SMALL]
QUICK = {LIGHT[i] for i in covering(LIGHT)}


@pytest.mark.parametrize(
    ("net", "first", "second"),
    [pytest.param(*names, marks=() if names in QUICK else pytest.mark.slow) for names in PAIRS],
)
def test_pairs(net: str, first: str, second: str) -> None:
    stage = _first(net, first)
    if stage is not None:
        _run(stage, net, first, second)


@pytest.mark.slow
@pytest.mark.parametrize(("net", "first", "second", "third"), CHAINS)
def test_triples(net: str, first: str, second: str, third: str) -> None:
    stage = _first(net, first)
    assert stage is not None
    stage = _run(stage, net, first, second)
    assert stage is not None
    _run(stage, net, second, third)
