"""Verdicts on noisy models: `python scripts/sweep_verdicts.py --models 20 --seed 0`.

The models are products whose results are noisy, random, joined, rounded or decided by ties. Each is
compared with itself (must be equal), with other weights (never equal), and with another order of
summation (never different). Prints the counts and every miss; exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad.verify import verify  # noqa: E402  # runs from a checkout

Weights = np.ndarray[Any, np.dtype[np.float32]]
_WIDTH, _OUT = 8, 6
_F, _SAME, _END = "float[N,6] y", "d = Identity(x)", "y = Identity(p)"
# opset, output, nodes before and after the product p of d and the weights
KINDS: dict[str, tuple[int, str, str, str]] = {
    "plain": (13, _F, _SAME, _END),
    "cancelled": (13, _F, _SAME, "a = Add(p, big) y = Sub(a, big)"),
    "normal": (9, _F, "n = RandomNormalLike(x) d = Add(x, n)", _END),
    "uniform": (13, _F, _SAME, "n = RandomUniformLike(p) y = Mul(p, n)"),
    "bernoulli": (15, _F, "s = Sigmoid(x) n = Bernoulli(s) d = Mul(x, n)", "y = Tanh(p)"),
    "multinomial": (
        13, _F, "n = Multinomial <sample_size = 8> (x) f = Cast <to = 1> (n) d = Add(x, f)", _END,
    ),
    "dropout": (13, _F, "d = Dropout(x, half, true)", _END),
    "dropout below": (13, _F, _SAME, "y, m = Dropout(p, half, true)"),
    "float16": (13, _F, _SAME, "h = Cast <to = 10> (p) t = Tanh(h) y = Cast <to = 1> (t)"),
    "quantized": (
        13, _F, _SAME, "q = QuantizeLinear(p, step, zero) y = DequantizeLinear(q, step, zero)",
    ),
    "int8": (13, "int8[N,6] y", _SAME, "y = QuantizeLinear(p, step, zero)"),
    "argmax": (13, "int64[N] y", _SAME, "y = ArgMax <axis = 1, keepdims = 0> (p)"),
    "topk": (13, "int64[N,2] y", _SAME, "v, y = TopK <axis = 1> (p, two)"),
    "threshold": (13, "bool[N,6] y", _SAME, "y = Greater(p, half)"),
    "whole": (13, "int32[N,6] y", _SAME, "s = Mul(p, five) y = Cast <to = 6> (s)"),
    "joined": (13, "float[N,14] y", _SAME, "a = Mul(x, big) y = Concat <axis = 1> (a, p)"),
}  # fmt: skip
_CONSTANTS: dict[str, Any] = {
    "big": np.float32(1e8), "half": np.float32(0.5), "five": np.float32(5), "true": np.bool_(True),
    "step": np.float32(0.05), "zero": np.int8(0), "two": np.int64([2]),
}  # fmt: skip
_ROWS = 200  # so many rows that a few indices may differ by chance


def model(
    kind: str, weights: Weights, order: np.ndarray[Any, Any] | None = None
) -> onnx.ModelProto:
    """Returns a model of a kind; with `order`, it sums its products in that order."""
    opset, output, before, after = KINDS[kind]
    product = (
        "p = MatMul(d, w)" if order is None else "o = Gather <axis = 1> (d, order) p = MatMul(o, w)"
    )
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[N,{_WIDTH}] x) => ({output}) '
        f"{{ {before} {product} {after} }}"
    )
    constants = {**_CONSTANTS, "w": weights if order is None else weights[order]}
    if order is not None:
        constants["order"] = order.astype(np.int64)
    read = {name for node in made.graph.node for name in node.input}
    for name in sorted(read & constants.keys()):
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(constants[name]), name))
    return made


def _one_doubled(w: Weights, rng: np.random.Generator) -> Weights:
    found = w.copy()
    found[:, rng.integers(_OUT)] *= 2
    return found


CHANGES: dict[str, Callable[[Weights, np.random.Generator], Weights]] = {
    "three tenths": lambda w, rng: w * np.float32(0.3),
    "signs": lambda w, rng: np.where(rng.random(w.shape) < 0.25, -w, w),
    "a column": _one_doubled,
    "columns change places": lambda w, rng: np.roll(w, 1, axis=1),
}
# a scale does not change which element is the largest
_BLIND = {("argmax", "three tenths"), ("topk", "three tenths")}


def sweep(count: int, seed: int, kinds: list[str]) -> Iterator[tuple[str, str, str, bool]]:
    """Yields (kind, the other model, the verdict, whether the verdict is right)."""
    for i in range(count):
        for kind in kinds:
            rng = np.random.default_rng([seed, i])
            weights = rng.standard_normal((_WIDTH, _OUT)).astype(np.float32)
            original = model(kind, weights)
            size = {"N": _ROWS}
            report = verify(original, original, dims=size)
            yield kind, "itself", report.verdict, report.verdict == "equal"
            other = verify(original, model(kind, weights, rng.permutation(_WIDTH)), dims=size)
            yield kind, "another order", other.verdict, other.verdict != "different"
            for name, change in CHANGES.items():
                if (kind, name) not in _BLIND:
                    report = verify(original, model(kind, change(weights, rng)), dims=size)
                    yield kind, name, report.verdict, not report.ok


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=5, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=tuple(KINDS))
    args = parser.parse_args()
    started, counts, misses = time.time(), Counter[tuple[str, str]](), 0
    for kind, against, verdict, right in sweep(args.models, args.seed, args.kind or list(KINDS)):
        counts["changed" if against in CHANGES else against, verdict] += 1
        if not right:
            misses += 1
            print(f"MISS {kind} against {against}: {verdict}")
    for (against, verdict), n in sorted(counts.items()):
        print(f"{against}: {n} {verdict}")
    print(f"{sum(counts.values())} verdicts, {misses} misses in {time.time() - started:.0f} s")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
