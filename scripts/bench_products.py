"""Sizes at which merged products are faster than separate ones in onnxruntime.

`python scripts/bench_products.py [--provider cuda] [--seconds N] [--write]`: the time after a law
relative to the time before, one thread, fastest of interleaved runs. The thresholds in
`laws.combine_parallel.merging.is_narrow` and `laws.fold_bias` come from the two tables. On
CUDA, inputs and results stay on the device, and the sizes are larger.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.records import write_record  # noqa: E402  # the script runs from a checkout
from scripts.sessions import session  # noqa: E402

ROWS = (1, 8, 64, 512, 2048)
RNG = np.random.default_rng(0)
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Sizes:
    """The sizes of the two tables: the inner axis and the columns of merged products, and of
    Gemms that are added.
    """

    inner: Sequence[int]
    columns: Sequence[int]
    added: Sequence[int]


SIZES = {
    "cpu": Sizes((16, 64, 256, 1024), (4, 8, 16, 32, 48, 96), (16, 64, 256, 1024)),
    "cuda": Sizes((64, 256, 1024, 4096), (16, 64, 256, 1024), (64, 256, 1024, 4096)),
}


@dataclass(frozen=True)
class Bench:
    """The provider on which two forms are compared, and the seconds for each pair."""

    provider: str
    seconds: float

    def session(
        self, body: str, outputs: str, inputs: str, arrays: Arrays
    ) -> onnxruntime.InferenceSession:
        """A graph whose weights are `arrays`."""
        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {{ {body} }}'
        )
        model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
        return session(model, cuda=self.provider == "cuda")

    def runs(self, opened: onnxruntime.InferenceSession, feeds: Arrays) -> Callable[[int], None]:
        """Returns a function that runs a graph a given number of times.

        On CUDA, feeds and results stay on the device; the function returns when all runs are done.
        """
        binding = opened.io_binding()
        for name, value in feeds.items():
            there = onnxruntime.OrtValue.ortvalue_from_numpy(value, self.provider, 0)
            binding.bind_ortvalue_input(name, there)
        for output in opened.get_outputs():
            binding.bind_output(output.name, self.provider)

        def run(times: int) -> None:
            for _ in range(times):
                if self.provider == "cuda":
                    opened.run_with_iobinding(binding)
                else:
                    opened.run(None, feeds)
            binding.synchronize_outputs()

        return run

    def ratio(
        self,
        before: onnxruntime.InferenceSession,
        after: onnxruntime.InferenceSession,
        feeds: Arrays,
    ) -> float:
        """Returns the fastest run of `after` over the fastest of `before`. A run takes about a
        millisecond.
        """
        both = [self.runs(opened, feeds) for opened in (before, after)]
        both[0](1)  # the first one on CUDA chooses algorithms
        started = time.perf_counter()
        both[0](1)
        times = max(2, int(1e-3 / (time.perf_counter() - started)))
        best, end = [np.inf, np.inf], time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            for i, run in enumerate(both):
                started = time.perf_counter()
                run(times)
                best[i] = min(best[i], time.perf_counter() - started)
        return best[1] / best[0]


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def merged(bench: Bench, branches: int, k: int, n: int, *, biased: bool) -> list[float]:
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
    before = bench.session(f"{body} {rest}", outputs, inputs, own)
    after = bench.session(f"{whole} {split} {rest}", outputs, inputs, all_)
    return [bench.ratio(before, after, {"x": normal(1, m, k)}) for m in ROWS]


def accumulated(bench: Bench, k: int, n: int) -> list[float]:
    """sigmoid(Gemm(x, v, c) + Gemm(h, w, d)), one Gemm adding the other over an Add of both."""
    own = {"v": normal(k, n), "w": normal(k, n), "c": normal(n), "d": normal(n)}
    inputs, outputs = f"float[M,{k}] x, float[M,{k}] h", f"float[M,{n}] y"
    before = bench.session(
        "p = Gemm(x, v, c) q = Gemm(h, w, d) a = Add(p, q) y = Sigmoid(a)", outputs, inputs, own
    )
    once = {"v": own["v"], "w": own["w"], "e": own["c"] + own["d"]}
    after = bench.session(
        "q = Gemm(h, w, e) a = Gemm(x, v, q) y = Sigmoid(a)", outputs, inputs, once
    )
    return [bench.ratio(before, after, {"x": normal(m, k), "h": normal(m, k)}) for m in ROWS]


def table(bench: Bench) -> Iterator[str]:
    sizes = SIZES[bench.provider]
    head = " | ".join(map(str, ROWS))
    yield "Parallel products as one, over separate; columns of each, by rows of the left operand."
    yield ""
    yield f"| biased | branches | k | columns | {head} |"
    yield "|---" * (4 + len(ROWS)) + "|"
    for biased in (True, False):
        for branches in (2, 3):
            for k in sizes.inner:
                for n in sizes.columns:
                    found = merged(bench, branches, k, n, biased=biased)
                    cells = " | ".join(f"{r:.2f}" for r in found)
                    yield f"| {'yes' if biased else 'no'} | {branches} | {k} | {n} | {cells} |"
    yield ""
    yield "A Gemm that adds another, over the Add of both; by rows."
    yield ""
    yield f"| k | columns | {head} |"
    yield "|---" * (2 + len(ROWS)) + "|"
    for k in sizes.added:
        for n in sizes.added:
            cells = " | ".join(f"{r:.2f}" for r in accumulated(bench, k, n))
            yield f"| {k} | {n} | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", choices=tuple(SIZES), default="cpu")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each pair of forms")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    lines = []
    for line in table(Bench(args.provider, args.seconds)):
        print(line, flush=True)
        lines.append(line)
    if args.write:
        write_record("products" if args.provider == "cpu" else "products_cuda", lines)


if __name__ == "__main__":
    main()
