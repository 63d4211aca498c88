"""Times of every form of a convolution's gradients over a grid of sizes, in onnxruntime. The choice
of form in `onnxgrad/grad/rules/convolution` is based on these times.

`python scripts/bench_conv_gradient.py [--rounds 9] [--write]`: CPU time of one thread, forms in
turns, medians, relative to the first column. The form that the rules choose is in bold.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from onnxgrad.grad.rules._geometry import Geometry, onto_long
from onnxgrad.grad.rules.convolution import _input_gradient as by_input
from onnxgrad.grad.rules.convolution import _weight_gradient as forms
from onnxgrad.grad.rules.convolution._correlation import Correlation
from onnxgrad.grad.rules.convolution._weight_gradient import weight_gradient
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.var import Var
from scripts.records import write_record
from scripts.sessions import session

Emit = Callable[[Var, Var, Var], Var]


@dataclass(frozen=True)
class Case:
    """A convolution of N images of equal sides from C to M channels, with kernel size k."""

    n: int
    c: int
    m: int
    size: int
    k: int = 3
    stride: int = 1
    group: int = 1
    axes: int = 2

    def __str__(self) -> str:
        """`N8 64 -> 128, 16x16, k3 s2`."""
        text = (
            f"N{self.n} {self.c} -> {self.m}, {'x'.join([str(self.size)] * self.axes)}, k{self.k}"
        )
        text += f" s{self.stride}" if self.stride > 1 else ""
        depthwise = self.group == self.c == self.m
        return text + (" depthwise" if depthwise else f" g{self.group}" if self.group > 1 else "")

    @property
    def pad(self) -> int:
        """Half the kernel size, or 0 for patches."""
        return 0 if self.k == self.stride else self.k // 2

    @property
    def geometry(self) -> Geometry:
        """The convolution as the rules describe it."""
        n = self.axes
        pads = (self.pad,) * n
        return Geometry((self.k,) * n, (self.stride,) * n, (1,) * n, pads, pads)

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of x, of the adjoint of y, and of w."""
        out = (self.size + 2 * self.pad - self.k) // self.stride + 1
        weight = (self.m, self.c // self.group, *(self.k,) * self.axes)
        return (
            (self.n, self.c, *(self.size,) * self.axes),
            (self.n, self.m, *(out,) * self.axes),
            weight,
        )


WEIGHT = [
    *(Case(8, c, c, s) for c, s in ((16, 64), (32, 32), (64, 16), (128, 8), (256, 4), (512, 2))),
    *(Case(4, c, c, s) for c, s in ((64, 56), (128, 28), (256, 14), (512, 7))),
    *(Case(1, c, c, s) for c, s in ((64, 128), (256, 14), (512, 7))),
    *(Case(8, c, 2 * c, s, stride=2) for c, s in ((64, 16), (128, 8), (256, 4))),
    *(Case(8, c, 32, 32) for c in (1, 3, 4, 8, 16)),
    *(Case(8, 64, m, 32) for m in (1, 3, 16)),
    Case(8, 3, 64, 64, 7, 2),
    Case(8, 32, 32, 32, 5),
    Case(2, 32, 32, 32, 7),
    Case(4, 96, 192, 16, 2, 2),
    Case(4, 384, 768, 4, 2, 2),
    Case(8, 3, 192, 64, 8, 8),
    Case(8, 64, 64, 256, axes=1),
    Case(4, 256, 256, 64, 5, axes=1),
    Case(2, 16, 16, 12, axes=3),
    Case(2, 64, 64, 6, axes=3),
    *(Case(8, 64, 64, 16, group=g) for g in (2, 4, 8, 16)),
    *(Case(8, c, m, s, 1) for c, m, s in ((16, 96, 32), (96, 24, 32), (64, 384, 4), (960, 320, 2))),
    Case(1, 64, 256, 28, 1),
    *(Case(8, c, 2 * c, s, 1, 2) for c, s in ((64, 16), (256, 4))),
    *(Case(8, c, c, s, group=c) for c, s in ((32, 32), (144, 16), (192, 8), (384, 4), (960, 2))),
    *(Case(8, c, c, s, stride=2, group=c) for c, s in ((96, 32), (144, 16), (576, 4))),
    *(Case(8, c, c, s, 7, group=c) for c, s in ((96, 16), (192, 8), (384, 4), (768, 2))),
]
INPUT = [case for case in WEIGHT if case.c > 1]


def weight_forms(case: Case) -> dict[str, Emit]:
    """Returns the function that emits each form, by name. The first form is the baseline."""
    geo, group = case.geometry, case.group

    def of(form: Callable[[Correlation], Var]) -> Emit:
        def emit(long: Var, short: Var, w: Var) -> Var:
            return form(
                Correlation(long, short, geo, group, case.m, case.c // group, (case.k,) * case.axes)
            )

        return emit

    found = {
        "Conv": partial(forms.by_swapped_conv, geo=geo, group=group),
        "offsets": of(forms.by_offsets),
    }
    if group == 1:
        found |= {"rows": of(forms.by_gathered_rows), "unfolded": of(forms.by_unfolding)}
        if case.k == 1:
            found |= {"images": of(forms.by_images), "joined": of(forms.by_joined_images)}
        elif case.axes == 2:
            found["lines"] = of(forms.by_lines)
            if case.stride == 1:
                found["crossing"] = of(forms.by_crossing)
    if group == case.c == case.m:
        found |= {"elements": of(forms.by_elements), "line pairs": of(forms.by_line_pairs)}
        if (case.size**case.axes) ** 2 * case.k**case.axes <= 1 << 18:
            found["pairs"] = of(forms.by_pairs)
    found["chosen"] = partial(weight_gradient, geo=geo, group=group)
    return found


def input_forms(case: Case) -> dict[str, Emit]:
    """The same of the gradient by the input."""
    geo, group = case.geometry, case.group

    def of(form: Callable[..., Var]) -> Emit:
        def emit(x: Var, g: Var, w: Var) -> Var:
            sizes = by_input._sizes(g, w, x, geo, group)
            assert sizes is not None
            return form(g, w, sizes, geo)

        return emit

    found: dict[str, Emit] = {"ConvTranspose": lambda x, g, w: onto_long(g, w, x, geo, group)}
    if case.stride == 1 and case.k > 1:
        found["flipped"] = of(by_input._by_flipped_conv)
    if group == 1 and case.axes == 2:
        found["products"] = of(by_input._by_products)
    found["chosen"] = lambda x, g, w: by_input.input_gradient(g, w, x, geo, group)
    return found


def graph(case: Case, emit: Emit, weight: np.ndarray[Any, Any] | None) -> onnx.ModelProto:
    """Returns the graph of one form; the weight is a constant or an input."""
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in zip(("x", "g", "w"), case.shapes(), strict=True)
    ]
    empty = onnx.helper.make_graph([], "form", values, [])
    opset = onnx.helper.make_opsetid("", 18)
    program = load(onnx.helper.make_model(empty, opset_imports=[opset], ir_version=10))
    block: BindingBlock = program.main
    x, g, w = block.inputs
    if weight is not None:
        w = block.add_initializer(onnx.numpy_helper.from_array(weight, "weight"))
    with emitting(block, share=True):
        found = emit(x, g, w)
    block.add_output(found)
    return to_proto(program, weights=True)


def line(
    case: Case, every: Mapping[str, Emit], columns: list[str], rounds: int, *, constant: bool
) -> str:
    """Returns one row of a table. Raises ValueError if the results of forms differ."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in case.shapes()]
    feeds = dict(zip(("x", "g", "w"), arrays, strict=True))
    models = {n: graph(case, e, feeds["w"] if constant else None) for n, e in every.items()}
    written = {n: [(b.op_type, len(b.input)) for b in m.graph.node] for n, m in models.items()}
    chosen = next(n for n in every if written[n] == written["chosen"])
    runs = {n: session(m) for n, m in models.items() if n != "chosen"}
    want = next(iter(runs.values())).run(None, feeds)[0]
    for name, run in runs.items():
        difference = np.abs(run.run(None, feeds)[0] - want).max() / np.abs(want).max()
        if not difference < 1e-4:
            raise ValueError(f"{case}: {name} differs by {difference:.1e}")
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            begin = time.process_time()
            run.run(None, feeds)
            times[name].append(time.process_time() - begin)
    middle = {name: statistics.median(t) for name, t in times.items()}
    first = next(iter(middle.values()))
    cells = [f"{middle[n] / first:.2f}" if n in middle else "" for n in columns]
    marked = [f"**{c}**" if n == chosen else c for n, c in zip(columns, cells, strict=True)]
    return f"| {case} | {1000 * first:.2f} | {' | '.join(marked)} |"


def tables(rounds: int) -> Iterator[str]:
    """Returns three tables: by the weight, and by the input with a constant and a fed weight."""
    columns = ["Conv", "offsets", "lines", "crossing", "rows", "unfolded"]
    columns += ["images", "joined", "elements", "pairs", "line pairs"]
    yield from head("By the weight, relative to a Conv with swapped axes.", columns)
    for case in WEIGHT:
        yield line(case, weight_forms(case), columns, rounds, constant=False)
    columns = ["ConvTranspose", "flipped", "products"]
    for constant in (True, False):
        kind = "a constant" if constant else "fed, as in a training step"
        yield from head(f"By the input, the weight {kind}, relative to ConvTranspose.", columns)
        for case in INPUT:
            yield line(case, input_forms(case), columns, rounds, constant=constant)


def head(title: str, columns: list[str]) -> list[str]:
    """Returns the head of a table."""
    return [
        "",
        title,
        "",
        f"| | ms | {' | '.join(columns)} |",
        "|---" * (len(columns) + 2) + "|",
    ]


def main() -> None:
    """Prints the tables; with --write, records them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="record the result in scripts/results")
    arguments = parser.parse_args()
    conditions = "CPU time, one thread, medians of forms in turns; bold is what the rules choose. "
    lines = [conditions + f"Load {os.getloadavg()[0]:.0f} at the start."]
    for made in tables(arguments.rounds):
        print(made, flush=True)
        lines.append(made)
    if arguments.write:
        write_record("conv_gradient", lines)


if __name__ == "__main__":
    main()
