"""The gain of passes that other compilers have too: small graphs before and after each pass, in
onnxruntime.

`python scripts/bench_neighbours.py [CASE ...] [--seconds S] [--threads N] [--record]`: CASE is the
start of a name. Times are CPU time, medians, sessions in turns; `after / before` is below 1 if the
pass makes the graph faster. Each result is proved first. `unchanged`: the pass declined.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad import (  # noqa: E402  # the script runs from a checkout
    P,
    bench,
    capture,
    outline_as,
)
from onnxgrad.functions import optimize  # noqa: E402
from onnxgrad.verify import verify  # noqa: E402
from scripts.fetch_models import cache_folder  # noqa: E402
from scripts.records import write_record  # noqa: E402


@dataclass(frozen=True)
class Case:
    """One graph and the passes that change it; `weights` are shapes of random initializers."""

    name: str
    text: str
    passes: str | list[Any]
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    # a model in place of a text; whether onnxruntime's own rewrites are on
    made: Callable[[], ModelProto] | None = None
    optimize: bool = True

    def model(self) -> ModelProto:
        """Returns the graph before the passes."""
        if self.made is not None:
            return self.made()
        head = '<ir_version: 10, opset_import: ["": 20]>\n'
        model: ModelProto = onnx.parser.parse_model(head + self.text)
        rng = np.random.default_rng(7)
        arrays = dict(self.constants)
        for name, shape in self.weights.items():
            scale = np.float32(1 / np.sqrt(shape[-2] if len(shape) > 1 else 1))
            arrays[name] = rng.standard_normal(shape, np.float32) * scale
        for name, array in arrays.items():
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return model


def _orders() -> Iterator[Case]:
    order = "adjust-matmul-order,fold-constant,remove-unused"
    for m, k, r, n in ((1, 768, 16, 768), (128, 768, 16, 768), (128, 512, 256, 512)):
        text = f"g (float[{m},{k}] x) => (float[{m},{n}] y) {{ p = MatMul(a, b) y = MatMul(x, p) }}"
        sizes = {"a": (k, r), "b": (r, n)}
        yield Case(f"order: x @ (a @ b), {m}x{k}, rank {r}, constant", text, order, sizes)
        text = (
            f"g (float[{m},{k}] x, float[{k},{r}] a, float[{r},{n}] b) => (float[{m},{n}] y) "
            "{ p = MatMul(a, b) y = MatMul(x, p) }"
        )
        yield Case(f"order: x @ (a @ b), {m}x{k}, rank {r}, inputs", text, order)
    for m in (1, 128):
        text = f"g (float[{m},512] x) => (float[{m},128] y) {{ p = MatMul(x, a) y = MatMul(p, b) }}"
        sizes = {"a": (512, 1024), "b": (1024, 128)}
        yield Case(f"order: (x @ a) @ b, {m}x512x1024x128, constant", text, order, sizes)
    for s in (64, 1024):
        text = (
            f"g (float[1,8,{s},64] q, float[1,8,64,{s}] k, float[1,8,{s},64] v) => "
            f"(float[1,8,{s},64] y) {{ p = MatMul(q, k) y = MatMul(p, v) }}"
        )
        yield Case(f"order: linear attention, {s} tokens", text, order)


def _sums() -> Iterator[Case]:
    expand = "expand-matmul-of-sum,adjust-matmul-order,fold-constant,remove-unused"
    for m in (1, 8, 32, 128, 512):
        text = (
            f"g (float[{m},768] x, float[768,16] p, float[16,768] q) => (float[{m},768] y) "
            "{ d = MatMul(p, q) v = Add(w, d) y = MatMul(x, v) }"
        )
        forced = f"sum: x @ (w + p @ q), {m} rows, rank 16, adapters as inputs"
        yield Case(forced, text, expand, {"w": (768, 768)})
        text = (
            f"g (float[{m},768] x) => (float[{m},768] y) {{ a = MatMul(x, w) d = Add(a, c) "
            "l = MatMul(x, p) h = MatMul(l, q) y = Add(d, h) }"
        )
        sizes = {"w": (768, 768), "p": (768, 16), "q": (16, 768), "c": (768,)}
        yield Case(f"sum: x @ w + c + (x @ p) @ q, {m} rows, constant", text, expand, sizes)


def _gathers() -> Iterator[Case]:
    gather = "reorder-gather-matmul,fold-constant,remove-unused"
    last = {"i": np.array(-1)}
    text = (
        "g (float[1,128,384] x) => (float[1,8192] y) { p = MatMul(x, w) y = Gather<axis=1>(p, i) }"
    )
    yield Case("gather: last token of 128, 384x8192", text, gather, {"w": (384, 8192)}, last)
    text = "g (int64[1,128] i) => (float[1,128,64] y) { e = Gather(x, i) y = MatMul(e, w) }"
    sizes = {"x": (2000, 256), "w": (256, 64)}
    yield Case("gather: table 2000x256 @ 256x64, 128 tokens", text, gather, sizes)
    text = "g (float[64,512] x) => (float[64,16] y) { p = MatMul(x, w) y = Gather<axis=1>(p, i) }"
    picked = {"i": np.arange(16) * 7}
    yield Case("gather: 16 of 1024 columns, constant", text, gather, {"w": (512, 1024)}, picked)
    text = (
        "g (float[{b},1,256] x, int64[{b}] i) => (float[{b},1,256] y) "
        "{{ v = Gather(w, i) y = MatMul(x, v) }}"
    )
    for b, e in ((8, 4), (32, 4), (32, 16)):
        name = f"gather: one of {e} matrices 256x256 for each of {b}"
        yield Case(name, text.format(b=b), gather, {"w": (e, 256, 256)})


def in_qdq_form(name: str) -> ModelProto:
    """A model of models/ with QuantizeLinear and DequantizeLinear around its operators."""
    from onnxruntime import quantization as q  # heavy, and for these cases only

    path = ROOT / "models" / f"{name}.onnx"
    with np.load(path.with_suffix(".npz")) as stored:
        feeds = {k.removeprefix("in:"): stored[k] for k in stored.files if k.startswith("in:")}

    class Reader(q.CalibrationDataReader):  # type: ignore[misc]
        left = 1

        def get_next(self) -> Any:
            self.left -= 1
            return feeds if self.left >= 0 else None

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "qdq.onnx"
        types = {"activation_type": q.QuantType.QUInt8, "weight_type": q.QuantType.QInt8}
        q.quantize_static(path, target, Reader(), per_channel=True, **types)
        return onnx.load(target)


def _quantized() -> Iterator[Case]:
    for name in ("resnet18", "googlenet", "bert", "vit"):
        made = functools.partial(in_qdq_form, name)
        for exact in ("true", "false"):
            passes = f"fake-quantization-to-integer{{exact={exact}}},remove-unused"
            for on, words in ((True, ""), (False, ", onnxruntime's own rewrites off")):
                label = f"integers: {name} in QDQ form, exact={exact}{words}"
                yield Case(label, "", passes, made=made, optimize=on)


def _layouts() -> Iterator[Case]:
    """A residual network as exporters of channels-last frameworks write it, or one fetched."""
    there, back = "Transpose<perm=[0,3,1,2]>", "Transpose<perm=[0,2,3,1]>"
    lines = [f"t = {there}(x) c = Conv<pads=[1,1,1,1]>(t, w) v0 = {back}(c)"]
    for i in range(6):
        lines.append(
            f"a{i} = Add(v{i}, b) r{i} = Relu(a{i}) t{i} = {there}(r{i}) "
            f"c{i} = Conv<pads=[1,1,1,1]>(t{i}, u) d{i} = {back}(c{i}) v{i + 1} = Add(d{i}, v{i})"
        )
    text = (
        f"g (float[1,56,56,3] x) => (float[1,32] y) {{ {' '.join(lines)} "
        "y = ReduceMean<keepdims=0>(v6, axes) }"
    )
    sizes = {"w": (32, 3, 3, 3), "u": (32, 32, 3, 3), "b": (32,)}
    given = {"axes": np.array([1, 2])}
    passes = "convert-layout,remove-unused"
    fetched = cache_folder("models") / "basic_pitch.onnx"
    for on, words in ((True, ""), (False, ", onnxruntime's own rewrites off")):
        name = f"layout: 7 convolutions, channels last{words}"
        yield Case(name, text, passes, sizes, given, optimize=on)
        if fetched.is_file():
            name = f"layout: basic_pitch (tf2onnx){words}"
            made = functools.partial(onnx.load, fetched)
            yield Case(name, "", f"clean,{passes}", made=made, optimize=on)


def _batched() -> Iterator[Case]:
    """Cases that show why `auto` merges only constant weights."""
    always = "combine-parallel-matmul{merge=always},remove-unused"
    for m in (1, 128):
        x, y = f"float[8,{m},64] x", ", ".join(f"float[8,{m},64] y{i}" for i in range(3))
        body = " ".join(f"y{i} = MatMul(x, w{i})" for i in range(3))
        sizes = {f"w{i}": (8, 64, 64) for i in range(3)}
        name = f"batched: 3 of 8 products, {m} rows"
        yield Case(f"{name}, constant", f"g ({x}) => ({y}) {{ {body} }}", always, sizes)
        inputs = ", ".join([x, *(f"float[8,64,64] w{i}" for i in range(3))])
        yield Case(f"{name}, inputs", f"g ({inputs}) => ({y}) {{ {body} }}", always)


def _composites() -> Iterator[Case]:
    """The cost of a call, which onnxruntime replaces by the function body."""
    x, w, c = capture("x w c")
    linear = outline_as("bench::Linear", P.Add(P.MatMul(x, w), c))
    block = outline_as("bench::ConvRelu", P.Relu(P.Conv(x, w, c.maybe)))
    for name, composite in (("bert", linear), ("resnet18", block)):
        made = functools.partial(onnx.load, ROOT / "models" / f"{name}.onnx")
        yield Case(f"composite: {composite.name} in {name}", "", [composite], made=made)


CASES = (_orders, _sums, _gathers, _batched, _quantized, _layouts, _composites)


def _operators(model: ModelProto) -> str:
    ops = [n.op_type for n in model.graph.node]
    return " ".join(ops) if len(ops) <= 8 else f"{len(ops)} nodes"


def measured(case: Case, seconds: float, threads: int) -> str:
    """One row of the table."""
    before = case.model()
    after = optimize(before, passes=case.passes, verify=False, allow_growth=True)
    ops = [_operators(m) for m in (before, after)]
    if before.graph.node == after.graph.node:
        return f"| {case.name} | {ops[0]} | unchanged | | | |"
    report = verify(before, after, seeds=(0,), weights="rounded")
    proof = "equal" if report.ok else str(report.worst)
    models = {"before": before, "after": after}
    options = {"seconds": seconds, "threads": threads, "optimize": case.optimize}
    found = {t.name: t for t in bench(models, **options).timings}
    ratio = found["after"].cpu_ratio
    start = found["before"].cpu.median * 1e6
    return f"| {case.name} | {ops[0]} | {ops[1]} | {start:,.0f} | {ratio.median:.2f} | {proof} |"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[""], metavar="CASE")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="write scripts/results/neighbours.md")
    args = parser.parse_args()
    lines = ["| case | before | after | before, µs | after / before | proof |", "|" + "---|" * 6]
    print(*lines, sep="\n")
    for case in (c for make in CASES for c in make()):
        if case.name.startswith(tuple(args.cases)):
            lines.append(measured(case, args.seconds, args.threads))
            print(lines[-1], flush=True)
    if args.record:
        how = (
            f"`python scripts/bench_neighbours.py --seconds {args.seconds:g}`, {args.threads} "
            f"thread(s), load average {os.getloadavg()[0]:.1f}. CPU time, medians."
        )
        write_record("neighbours", [how, "", *lines])


if __name__ == "__main__":
    main()
