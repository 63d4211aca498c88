"""Convolutions of any size, the gradients of each written out in numpy, and graphs that compute
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st

from onnxgrad.grad.rules._geometry import Geometry
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.var import Var
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.grad.numeric import normal
from tests.helpers import parse

SYMBOLS = "xyz"


class Case:
    """Sizes of one convolution, and the graph of any of its weight gradient's forms."""

    def __init__(
        self,
        batch: int,
        group: int,
        channels: int,
        maps: int,
        axes: list[tuple[int, ...]],
        *,
        symbolic: str = "",
        dtype: str = "float",
        opset: int = 18,
    ) -> None:
        """axes: (size, kernel, stride, dilation, zeros before, zeros after); channels and maps
        per group; symbolic: "n" the batch, "d" the images.
        """
        self.batch, self.group, self.channels, self.maps = batch, group, channels, maps * group
        self.sizes, self.kernel, self.strides, self.dilations, self.begin, self.end = zip(*axes)
        self.out = tuple((d + b + e - (k - 1) * i - 1) // s + 1 for d, k, s, i, b, e in axes)
        long = [str(d) for d in (batch, channels * group, *self.sizes)]
        short = [str(d) for d in (batch, self.maps, *self.out)]
        if "n" in symbolic:
            long[0] = short[0] = "N"
        if "d" in symbolic:
            long[2:] = SYMBOLS[: len(axes)]
            short[2:] = [f"{s}_out" for s in SYMBOLS[: len(axes)]]
        weight = ",".join(map(str, (self.maps, channels, *self.kernel)))
        self.program = load(
            parse(
                f"g ({dtype}[{','.join(long)}] long, {dtype}[{','.join(short)}] short, "
                f"{dtype}[{weight}] w) => () {{ }}",
                opset=opset,
            )
        )
        self.geo = Geometry(self.kernel, self.strides, self.dilations, self.begin, self.end)

    def graph(self, emit: Callable[[Var, Var, Var], Var]) -> onnx.ModelProto:
        """The graph of what `emit` makes of long, short and w."""
        block = self.program.main
        long, short, w = block.inputs
        with emitting(block, share=True):
            found = emit(long, short, w)
        block.add_output(found)
        block.check()
        return to_proto(self.program)

    def feeds(self, dtype: Any = np.float32) -> dict[str, Any]:
        return {
            "long": normal(self.batch, self.channels * self.group, *self.sizes).astype(dtype),
            "short": normal(self.batch, self.maps, *self.out).astype(dtype),
            "w": normal(self.maps, self.channels, *self.kernel).astype(dtype),
        }

    def by_weight(self) -> Any:
        """The gradient by w, offset by offset, of a batch that may be empty."""
        given = self.feeds(np.float64)
        width = [(0, 0), (0, 0), *zip(self.begin, self.end)]
        long = self._grouped(np.pad(given["long"], width), self.channels)
        short = self._grouped(given["short"], self.maps // self.group)
        result = np.zeros((self.group, self.maps // self.group, self.channels, *self.kernel))
        for place, at in self._windows():
            equation = f"ngm{self._letters},ngc{self._letters}->gmc"
            result[(slice(None),) * 3 + place] = np.einsum(equation, short, long[at])
        return result.reshape(self.maps, self.channels, *self.kernel)

    def by_long(self) -> Any:
        """The gradient by long, where short is the adjoint."""
        given = self.feeds(np.float64)
        sizes = [d + b + e for d, b, e in zip(self.sizes, self.begin, self.end)]
        short = self._grouped(given["short"], self.maps // self.group)
        weight = given["w"].reshape(self.group, -1, self.channels, *self.kernel)
        result = np.zeros((self.batch, self.group, self.channels, *sizes))
        for place, at in self._windows():
            equation = f"ngm{self._letters},gmc->ngc{self._letters}"
            result[at] += np.einsum(equation, short, weight[(slice(None),) * 3 + place])
        inside = tuple(slice(b, b + d) for b, d in zip(self.begin, self.sizes))
        found = result[(slice(None),) * 3 + inside]
        return found.reshape(self.batch, self.group * self.channels, *self.sizes)

    @property
    def _letters(self) -> str:
        return SYMBOLS[: len(self.kernel)]

    def _grouped(self, v: Any, channels: int) -> Any:
        return v.reshape(self.batch, self.group, channels, *v.shape[2:])

    def _windows(self) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Each of the kernel's pixels with what it meets of the padded and grouped long."""
        for place in product(*map(range, self.kernel)):
            at = (
                slice(p * i, p * i + (o - 1) * s + 1, s)
                for p, i, o, s in zip(place, self.dilations, self.out, self.strides)
            )
            yield place, (slice(None),) * 3 + tuple(at)


@st.composite
def cases(draw: st.DrawFn) -> Callable[[], Case]:
    """Any rank, stride, dilation, padding, grouping, and sizes known or not."""
    rank = draw(st.integers(1, 3))
    axes = []
    for _ in range(rank):
        kernel, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        begin, end = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        extent = (kernel - 1) * dilation + 1
        size = draw(st.integers(max(1, extent - begin - end), extent + 4))
        axes.append((size, kernel, draw(st.integers(1, 3)), dilation, begin, end))
    group, channels = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    maps, batch = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    symbolic = draw(st.sampled_from(["", "n", "d", "nd"]))
    return lambda: Case(batch, group, channels, maps, axes, symbolic=symbolic)


def check(case: Case, graph: onnx.ModelProto, want: Any) -> None:
    """In the float64 reference and in onnxruntime, with its optimisations and without."""
    (name,) = (v.name for v in graph.graph.output)
    scale = max(1.0, float(np.abs(want).max(initial=0.0)))
    feeds = {v.name: case.feeds()[v.name] for v in graph.graph.input}
    checks = {"float64": reference(graph, feeds)[name]}
    for optimize in (True, False):
        checks[f"optimize={optimize}"] = run(graph, feeds, optimize=optimize)[name]
    for check, found in checks.items():
        assert found.shape == want.shape, check
        close = (1e-10 if check == "float64" else 1e-5) * scale
        np.testing.assert_allclose(found, want, rtol=0, atol=close, err_msg=check)


def axis(size: int, kernel: int = 3, stride: int = 1, around: int = 1) -> tuple[int, ...]:
    """One axis of a Case, undilated and padded alike on both sides."""
    return (size, kernel, stride, 1, around, around)
