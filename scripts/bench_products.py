"""Products that could be fewer bindings: where one form is faster than the other in onnxruntime.

`python scripts/bench_products.py [--seconds N] [--write]`: the time of the form that a law makes
over that of the form it finds, one thread, fastest of interleaved runs. The two tables are what
`laws.combine_parallel.merging.is_narrow` and `laws.accumulate_gemms` rest on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.records import write_record  # noqa: E402  # the script runs from a checkout

ROWS = (1, 8, 64, 512, 2048)
RNG = np.random.default_rng(0)
Arrays = dict[str, np.ndarray]


def session(body: str, outputs: str, inputs: str, arrays: Arrays) -> onnxruntime.InferenceSession:
    """A graph whose weights are `arrays`."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def ratio(
    before: onnxruntime.InferenceSession,
    after: onnxruntime.InferenceSession,
    feeds: Arrays,
    seconds: float,
) -> float:
    """The fastest run of `after` over the fastest of `before`; a run lasts a millisecond or so."""
    started = time.perf_counter()
    before.run(None, feeds)
    calls = max(2, int(1e-3 / (time.perf_counter() - started)))
    best, end = [np.inf, np.inf], time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, one in enumerate((before, after)):
            started = time.perf_counter()
            for _ in range(calls):
                one.run(None, feeds)
            best[i] = min(best[i], time.perf_counter() - started)
    return best[1] / best[0]


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def merged(branches: int, k: int, n: int, biased: bool, seconds: float) -> list[float]:
    """relu(x @ w1 + c1), relu(x @ w2 + c2), ... merged over separate, for each number of rows."""
    ws, cs = [normal(k, n) for _ in range(branches)], [normal(n) for _ in range(branches)]
    parts = range(branches)
    outputs = ", ".join(f"float[1,M,{n}] y{i}" for i in parts)
    inputs, own = f"float[1,M,{k}] x", {f"w{i}": w for i, w in enumerate(ws)}
    rest = " ".join(f"y{i} = Relu(a{i})" for i in parts)
    if biased:
        own |= {f"c{i}": c for i, c in enumerate(cs)}
        body = " ".join(f"m{i} = MatMul(x, w{i}) a{i} = Add(m{i}, c{i})" for i in parts)
        whole = "m = MatMul(x, w) a = Add(m, c)"
    else:
        body = " ".join(f"a{i} = MatMul(x, w{i})" for i in parts)
        whole = "a = MatMul(x, w)"
    all_ = {"w": np.concatenate(ws, 1), "s": np.array([n] * branches)}
    all_ |= {"c": np.concatenate(cs)} if biased else {}
    split = f"{', '.join(f'a{i}' for i in parts)} = Split <axis = -1> (a, s)"
    before = session(f"{body} {rest}", outputs, inputs, own)
    after = session(f"{whole} {split} {rest}", outputs, inputs, all_)
    return [ratio(before, after, {"x": normal(1, m, k)}, seconds) for m in ROWS]


def accumulated(k: int, n: int, seconds: float) -> list[float]:
    """sigmoid(Gemm(x, v, c) + Gemm(h, w, d)), one Gemm adding the other over an Add of both."""
    own = {"v": normal(k, n), "w": normal(k, n), "c": normal(n), "d": normal(n)}
    inputs, outputs = f"float[M,{k}] x, float[M,{k}] h", f"float[M,{n}] y"
    before = session(
        "p = Gemm(x, v, c) q = Gemm(h, w, d) a = Add(p, q) y = Sigmoid(a)", outputs, inputs, own
    )
    once = {"v": own["v"], "w": own["w"], "e": own["c"] + own["d"]}
    after = session("q = Gemm(h, w, e) a = Gemm(x, v, q) y = Sigmoid(a)", outputs, inputs, once)
    return [ratio(before, after, {"x": normal(m, k), "h": normal(m, k)}, seconds) for m in ROWS]


def table(seconds: float) -> Iterator[str]:
    head = " | ".join(map(str, ROWS))
    yield "Parallel products as one, over separate; columns of each, by rows of the left operand."
    yield ""
    yield f"| biased | branches | k | columns | {head} |"
    yield "|---" * (4 + len(ROWS)) + "|"
    for biased in (True, False):
        for branches in (2, 3):
            for k in (16, 64, 256, 1024):
                for n in (4, 8, 16, 32, 48, 96):
                    found = merged(branches, k, n, biased, seconds)
                    cells = " | ".join(f"{r:.2f}" for r in found)
                    yield f"| {'yes' if biased else 'no'} | {branches} | {k} | {n} | {cells} |"
    yield ""
    yield "A Gemm that adds another, over the Add of both; by rows."
    yield ""
    yield f"| k | columns | {head} |"
    yield "|---" * (2 + len(ROWS)) + "|"
    for k in (16, 64, 256, 1024):
        for n in (16, 64, 256, 1024):
            cells = " | ".join(f"{r:.2f}" for r in accumulated(k, n, seconds))
            yield f"| {k} | {n} | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each pair of forms")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    lines = []
    for line in table(args.seconds):
        print(line, flush=True)
        lines.append(line)
    if args.write:
        write_record("products", lines)


if __name__ == "__main__":
    main()
