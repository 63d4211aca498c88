"""Random models to differentiate: hypothesis draws operators, operands and sizes; every value's shape is known here.

A shape is a tuple of sizes in which `N` stands for the batch. No constant depends on the batch's size, so the same
draw gives a model with a fixed batch and one with a symbolic batch. Functions with kinks are among the operators, and
values that tie exactly as well; jumps are not. What could overflow is bounded by Tanh. The opset is one of 13 to 25, with
what it has, or 20.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

N = "N"
BATCH = 3
OPSETS = range(13, 26)
LARGEST = 300  # elements of one value

Dim = Any  # int, or N
Shape = tuple[Dim, ...]

SMOOTH = [
    "Tanh", "Sigmoid", "Sin", "Cos", "Erf", "Softplus", "Softsign", "Gelu", "Mish", "Neg", "Identity", "Atan", "Asinh",
]  # fmt: skip
SINCE = {"HardSwish": 14, "Mish": 18, "Gelu": 20}
KINKED = ["Relu", "LeakyRelu", "Abs", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish"]
FUNCTIONS = [
    """<domain: "my", opset_import: ["" : OPSET, "my" : 1]>
    gate (a, b) => (c) { s = Sigmoid (b) t = my.bend <alpha = 0.25> (a) p = Mul (t, s) c = Add (p, a) }""",
    """<domain: "my", opset_import: ["" : OPSET]>
    bend <alpha> (a) => (c) { e = Elu <alpha : float = @alpha> (a) c = Sub (e, a) }""",
]


def concrete(shape: Shape) -> tuple[int, ...]:
    """The sizes, with the batch's."""
    return tuple(BATCH if d == N else d for d in shape)


def size(shape: Shape) -> int:
    """The number of elements."""
    return int(np.prod(concrete(shape)))


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """The shape that `a` and `b` broadcast to, or None."""
    rank = max(len(a), len(b))
    result: list[Dim] = []
    for p, q in zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b):
        if p != q and 1 not in (p, q):
            return None
        result.append(q if p == 1 else p)
    return tuple(result)


@dataclass(frozen=True)
class Drawn:
    """A model with a fixed batch and the same with a symbolic one; what is fed, and what to differentiate."""

    fixed: ModelProto
    symbolic: ModelProto
    feeds: dict[str, np.ndarray]
    wrt: list[str]  # inputs, initializers and one intermediate value
    targets: list[str]
    scalar: bool
    weights: list[str]  # every float initializer
    checkpoint: str | None

    def __repr__(self) -> str:
        asked = f"wrt {', '.join(self.wrt)}; {'scalar' if self.scalar else 'seeded'} {', '.join(self.targets)}"
        return f"{asked}\n{onnx.printer.to_text(self.symbolic)}"


class Draws(Protocol):
    """Where choices come from."""

    def integer(self, low: int, high: int) -> int:
        """One of low, ..., high."""

    def some(self, options: list[Any], least: int, most: int) -> list[Any]:
        """Some of the options, in any order, each at most once."""


@dataclass(frozen=True)
class FromHypothesis:
    """Choices that hypothesis makes, and makes smaller."""

    draw: Any

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def some(self, options: list[Any], least: int, most: int) -> list[Any]:
        if least == most == len(options):
            return list(self.draw(st.permutations(options)))
        chosen = st.lists(st.sampled_from(options), min_size=least, max_size=most, unique=True)
        return list(self.draw(chosen)) if options else []


@dataclass(frozen=True)
class FromRandom:
    """Choices of a generator: as many models as one likes, quickly."""

    rng: random.Random

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def some(self, options: list[Any], least: int, most: int) -> list[Any]:
        return self.rng.sample(
            options, self.rng.randint(min(least, len(options)), min(most, len(options)))
        )


class Builder:
    """Grows the model; the names of values are unique over all blocks."""

    def __init__(self, draw: Draws, opset: int = 20) -> None:
        self.draw, self.opset = draw, opset
        self.rng = np.random.default_rng(draw.integer(0, 2**16))
        self.nodes: list[NodeProto] = []
        self.shapes: dict[str, Shape] = {}
        self.inputs: dict[str, Shape] = {}
        self.feeds: dict[str, np.ndarray] = {}
        self.initializers: dict[str, np.ndarray] = {}
        self.count = 0

    # ---- drawing --------------------------------------------------------------------------------------------------

    def choose(self, options: Sequence[Any]) -> Any:
        return options[self.draw.integer(0, len(options) - 1)]

    def flag(self) -> bool:
        return bool(self.draw.integer(0, 1))

    def pick(self, fits: Callable[[Shape], Any] = lambda s: True) -> str | None:
        """A value that fits; the latest ones are likelier, and the first input is picked again and again."""
        fitting = [v for v, s in self.shapes.items() if fits(s)]
        return self.choose([*fitting[-3:], *fitting]) if fitting else None

    # ---- making values --------------------------------------------------------------------------------------------

    def fresh(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def add_input(self, name: str, shape: Shape, array: np.ndarray | None = None) -> None:
        self.inputs[name] = shape
        array = (
            self.rng.standard_normal(concrete(shape)).astype(np.float32) if array is None else array
        )
        self.feeds[name] = array
        if array.dtype == np.float32:
            self.shapes[name] = shape

    def weight(self, *shape: int) -> str:
        """A new initializer, or one there is (shared weights)."""
        same = [
            n for n, a in self.initializers.items() if a.shape == shape and a.dtype == np.float32
        ]
        if same and self.flag():
            return str(self.choose(same))
        name = self.fresh("w")
        self.initializers[name] = self.rng.standard_normal(shape).astype(np.float32)
        return name

    def ints(self, *values: int) -> str:
        name = self.fresh("i")
        self.initializers[name] = np.array(values, np.int64)
        return name

    def emit(
        self,
        op: str,
        *operands: str,
        shape: Shape | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """One node with one result, of `shape` when it is to be picked up again."""
        name = self.fresh()
        self.nodes.append(helper.make_node(op, operands, [name], domain=domain, **attributes))
        if shape is not None:
            self.shapes[name] = shape
        return name

    def bounded(self, op: str, *operands: str, shape: Shape, **attributes: Any) -> str:
        """`emit`, then Tanh: for what grows."""
        return self.emit("Tanh", self.emit(op, *operands, **attributes), shape=shape)

    def at_least_one(self, x: str) -> str:
        """1 + x²: for roots, logarithms and divisors."""
        one = self.fresh("w")
        self.initializers[one] = np.array(1, np.float32)
        return self.emit("Add", self.emit("Mul", x, x), one)

    # ---- steps: each emits nodes, or nothing where no value fits ----------------------------------------------------

    def step(self) -> None:
        self.choose(STEPS)(self)

    def unary(self) -> None:
        x = self.pick()
        if x:
            known = [op for op in (*SMOOTH, *KINKED) if SINCE.get(op, 0) <= self.opset]
            self.emit(self.choose(known), x, shape=self.shapes[x])

    def composed(self) -> None:
        x = self.pick()
        if not x:
            return
        shape, kind = (
            self.shapes[x],
            self.choose(["Sqrt", "Log", "Reciprocal", "Pow", "Exp", "Cast", "Clip", "PRelu"]),
        )
        if kind == "Pow":
            exponent = self.weight()
            self.emit("Pow", self.at_least_one(x), self.emit("Tanh", exponent), shape=shape)
        elif kind == "Exp":
            self.emit("Exp", self.emit("Tanh", x), shape=shape)
        elif kind == "Cast":
            wide = self.emit("Sin", self.emit("Cast", x, to=TensorProto.DOUBLE))
            self.emit("Cast", wide, to=TensorProto.FLOAT, shape=shape)
        elif kind == "Clip":
            bounds = self.choose([("l", ""), ("", "h"), ("l", "h")])
            low, high = (self.fresh("w") if b else "" for b in bounds)
            self.initializers.update({n: np.float32(v) for n, v in ((low, -0.6), (high, 0.4)) if n})
            self.emit("Clip", x, low, high, shape=shape)
        elif kind == "PRelu":
            self.emit(
                "PRelu",
                x,
                self.weight(*concrete(shape[-1:])) if shape and shape[-1] != N else self.weight(),
                shape=shape,
            )
        else:
            self.emit(kind, self.at_least_one(x), shape=shape)

    def _pair(self) -> tuple[str, str, Shape] | None:
        a = self.pick()
        b = self.pick(lambda s: a and _small(broadcast(self.shapes[a], s)))
        if not a or not b:
            return None
        if self.flag():
            a, b = b, a
        shape = broadcast(self.shapes[a], self.shapes[b])
        return None if shape is None else (a, b, shape)

    def binary(self) -> None:
        pair = self._pair()
        if not pair:
            return
        a, b, shape = pair
        kind = self.choose(["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Where", "my"])
        if kind == "Mul":
            self.bounded("Mul", a, b, shape=shape)
        elif kind == "Div":
            self.emit("Div", a, self.at_least_one(b), shape=shape)
        elif kind == "Where":
            self.emit("Where", "mask", a, b, shape=shape)
        elif kind == "my":
            self.emit("gate", a, b, shape=shape, domain="my")
        elif kind in ("Max", "Min", "Sum", "Mean"):
            c = self.pick(lambda s: broadcast(shape, s) == shape)
            self.emit(kind, a, b, *([c] if c and self.flag() else []), shape=shape)
        else:
            self.emit(kind, a, b, shape=shape)

    def dense(self) -> None:
        x = self.pick(lambda s: len(s) >= 1 and s[-1] != N)
        if x:
            k = self.shapes[x][-1]
            m = self.choose([1, 2, 4])
            kind = self.choose(["MatMul", "Transposed", "vector", "Gemm"])
            lead = self.shapes[x][:-1]
            if kind == "vector":
                self.bounded("MatMul", x, self.weight(k), shape=lead)
            elif kind == "Transposed":
                self.bounded(
                    "MatMul",
                    x,
                    self.emit("Transpose", self.weight(m, k), perm=[1, 0]),
                    shape=(*lead, m),
                )
            elif kind == "Gemm" and len(lead) == 1:
                bias = self.choose([None, (), (1,), (m,), (1, m)])
                operands = [x, self.weight(m, k), *([] if bias is None else [self.weight(*bias)])]
                scale = {"alpha": self.choose([1.0, 0.5]), "beta": self.choose([1.0, -2.0])}
                self.bounded("Gemm", *operands, transB=1, shape=(*lead, m), **scale)
            else:
                self.bounded("MatMul", x, self.weight(k, m), shape=(*lead, m))

    def product(self) -> None:
        """Of two values, with batch axes that broadcast, rank 1 included; or Einsum."""
        a = self.pick(lambda s: len(s) >= 1)
        if not a:
            return
        left = self.shapes[a]
        b = self.pick(lambda s: _product(left, s) is not None)
        shape = _product(left, self.shapes[b]) if b else None
        if b and shape is not None:
            if len(left) == len(self.shapes[b]) == 2 and self.flag():
                self.bounded("Einsum", a, b, equation="ij,jk->ik", shape=shape)
            else:
                self.bounded("MatMul", a, b, shape=shape)

    def reduce(self) -> None:
        x = self.pick(lambda s: len(s) >= 1)
        if not x:
            return
        shape = self.shapes[x]
        kind = self.choose(
            ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp", "LogSum"]
        )
        axes = self.choose(
            [None, *[[i] for i in range(-len(shape), len(shape))], list(range(len(shape)))]
        )
        keep = int(self.flag())
        gone = set(range(len(shape))) if axes is None else {a % len(shape) for a in axes}
        left = tuple(1 if i in gone else d for i, d in enumerate(shape) if keep or i not in gone)
        operand = (
            self.emit("Sin", x)
            if kind == "Prod"
            else self.at_least_one(x)
            if kind == "LogSum"
            else x
        )
        if kind == "L2":  # no kink at 0
            operand = self.at_least_one(x)
        self.emit("Tanh", self.reduced(f"Reduce{kind}", operand, axes, keep), shape=left)

    def reduced(
        self, op: str, x: str, axes: list[int] | None, keepdims: int, shape: Shape | None = None
    ) -> str:
        """A reduction: its axes are an operand from opset 18 on, those of ReduceSum from 13 on."""
        if axes is None:
            return self.emit(op, x, keepdims=keepdims, shape=shape)
        if self.opset < 18 and op != "ReduceSum":
            return self.emit(op, x, keepdims=keepdims, axes=axes, shape=shape)
        return self.emit(op, x, self.ints(*axes), keepdims=keepdims, shape=shape)

    def move(self) -> None:
        """Layout: Transpose, Unsqueeze, Squeeze, Flatten, Reshape, Expand, Tile, Pad, Slice, Gather, ..."""
        x = self.pick(lambda s: len(s) >= 1)
        if not x:
            return
        shape = self.shapes[x]
        rank = len(shape)
        kind = self.choose(["transpose", "unsqueeze", "squeeze", "merge", "around", "expand", "tile", "pad", "slice", "gather", "elements", "cumsum", "trilu", "topk", "scatter"])  # fmt: skip
        axis = self.choose(list(range(rank)))
        d = shape[axis]
        negative = axis - rank if self.flag() else axis

        def with_axis(new: Dim) -> Shape:
            return (*shape[:axis], new, *shape[axis + 1 :])

        if kind == "transpose":
            perm = self.draw.some(list(range(rank)), rank, rank)
            self.emit("Transpose", x, perm=perm, shape=tuple(shape[p] for p in perm))
        elif kind == "unsqueeze" and rank < 4:
            self.emit("Unsqueeze", x, self.ints(axis), shape=(*shape[:axis], 1, *shape[axis:]))
        elif kind == "squeeze" and d == 1:
            self.emit("Squeeze", x, self.ints(negative), shape=(*shape[:axis], *shape[axis + 1 :]))
        elif kind == "merge" and rank >= 2 and N not in shape[-2:]:
            sizes = [0] * (rank - 2) + [-1]
            self.emit("Reshape", x, self.ints(*sizes), shape=(*shape[:-2], shape[-2] * shape[-1]))
        elif kind == "around":  # flat, something, and back to a shape known at run time
            flat = self.emit("Sin", self.emit("Reshape", x, self.ints(-1)))
            self.emit("Reshape", flat, self.emit("Shape", x), shape=shape)
        elif kind == "expand":
            y = self.pick(lambda s: _small(broadcast(shape, s)))
            if y and self.flag():
                self.emit(
                    "Expand", x, self.emit("Shape", y), shape=broadcast(shape, self.shapes[y])
                )
            elif rank < 4 and size(shape) * 2 <= LARGEST:
                self.emit("Expand", x, self.ints(2, *(1,) * rank), shape=(2, *shape))
        elif kind == "tile" and d != N and size(shape) * 2 <= LARGEST:
            self.emit(
                "Tile",
                x,
                self.ints(*(2 if i == axis else 1 for i in range(rank))),
                shape=with_axis(d * 2),
            )
        elif kind == "pad" and d != N and size(shape) * 3 <= LARGEST:
            mode = self.choose(["constant", "edge", "reflect"] if d > 1 else ["constant", "edge"])
            pads = [int(i == axis) for i in range(rank)] + [0] * rank
            self.emit("Pad", x, self.ints(*pads), mode=mode, shape=with_axis(d + 1))
        elif kind == "slice":
            if d == N or self.flag():  # backwards, all of it
                bounds = (-1, -1000, axis, -1)
                new = d
            else:
                start, step = self.choose(list(range(-d, d))), self.choose([1, 2])
                first = start % d
                bounds, new = (start, 1000, negative, step), -(-(d - first) // step)
            self.emit("Slice", x, *(self.ints(b) for b in bounds), shape=with_axis(new))
        elif kind == "gather":
            limit = BATCH if d == N else d
            count = self.choose([0, 1, 2, 3])  # 0: one index of rank 0
            places = self.rng.integers(-limit, limit, count or 1)
            name = self.ints(*places)
            self.initializers[name] = self.initializers[name].reshape(
                () if count == 0 else (count,)
            )
            result = with_axis(count) if count else (*shape[:axis], *shape[axis + 1 :])
            if size(result) <= LARGEST:
                self.emit("Gather", x, name, axis=negative, shape=result)
        elif kind == "elements" and N not in shape:
            name = self.fresh("i")
            self.initializers[name] = self.rng.integers(-d, d, concrete(with_axis(2)))
            self.emit("GatherElements", x, name, axis=negative, shape=with_axis(2))
        elif kind == "scatter" and N not in shape:
            name = self.fresh("i")
            self.initializers[name] = self.rng.permutation(d)[:1].reshape((1,) * rank)
            how = self.choose(
                [
                    "none",
                    *(["add", "mul"] if self.opset >= 16 else []),
                    *(["max"] if self.opset >= 18 else []),
                ]
            )
            extra = {} if self.opset < 16 else {"reduction": how}
            self.emit(
                "ScatterElements",
                x,
                name,
                self.weight(*(1,) * rank),
                axis=negative,
                shape=shape,
                **extra,
            )
        elif kind == "cumsum":
            flags = {"exclusive": int(self.flag()), "reverse": int(self.flag())}
            axis_name = self.ints(negative)
            self.initializers[axis_name] = np.array(negative, np.int64)
            self.bounded("CumSum", x, axis_name, shape=shape, **flags)
        elif kind == "trilu" and rank >= 2 and self.opset >= 14:
            self.emit("Trilu", x, upper=int(self.flag()), shape=shape)
        elif kind == "topk" and d != N:
            name, places = self.fresh(), self.fresh()
            self.nodes.append(
                helper.make_node("TopK", [x, self.ints(1)], [name, places], axis=negative)
            )
            self.shapes[name] = with_axis(1)

    def concat(self) -> None:
        x = self.pick(lambda s: any(d != N for d in s))
        if not x:
            return
        shape = self.shapes[x]
        axis = self.choose([i for i, d in enumerate(shape) if d != N])

        def fits(s: Shape) -> bool:
            return (
                len(s) == len(shape)
                and s[axis] != N
                and all(p == q or i == axis for i, (p, q) in enumerate(zip(s, shape)))
            )

        parts = [x, *(str(self.pick(fits)) for _ in range(self.choose([1, 1, 2])))]
        total = sum(self.shapes[p][axis] for p in parts)
        joined = (*shape[:axis], total, *shape[axis + 1 :])
        if size(joined) <= LARGEST:
            self.emit(
                "Concat", *parts, axis=axis - len(shape) if self.flag() else axis, shape=joined
            )

    def split(self) -> None:
        x = self.pick(lambda s: any(d != N and d > 1 for d in s))
        if not x:
            return
        shape = self.shapes[x]
        axis = self.choose([i for i, d in enumerate(shape) if d != N and d > 1])
        d = shape[axis]
        first = self.choose(list(range(1, d)))
        names = [self.fresh(), self.fresh()]
        if self.flag():
            self.nodes.append(
                helper.make_node("Split", [x, self.ints(first, d - first)], names, axis=axis)
            )
        else:
            first = -(-d // 2)
            if self.opset >= 18:
                self.nodes.append(helper.make_node("Split", [x], names, axis=axis, num_outputs=2))
            else:  # equal parts
                self.nodes.append(
                    helper.make_node("Split", [x, self.ints(first, d - first)], names, axis=axis)
                )
        for name, part in zip(names, (first, d - first)):
            self.shapes[name] = (*shape[:axis], part, *shape[axis + 1 :])

    def normalize(self) -> None:
        x = self.pick(lambda s: len(s) >= 1)
        if not x:
            return
        shape = self.shapes[x]
        kind = self.choose(
            ["Softmax", "LogSoftmax", "LayerNormalization", "LpNormalization", "BatchNormalization"]
        )
        axis = self.choose(list(range(-len(shape), len(shape))))
        if kind == "LayerNormalization":
            if shape[-1] not in (N, 1) and self.opset >= 17:
                scale = [self.weight(shape[-1]) for _ in range(self.choose([1, 2]))]
                self.emit(kind, x, *scale, axis=-1, epsilon=0.1, shape=shape)
        elif kind == "BatchNormalization":
            if len(shape) >= 2 and shape[1] != N:
                channels = shape[1]
                variance = self.emit(
                    "Add",
                    self.emit("Softplus", self.weight(channels)),
                    self.emit("Softplus", self.weight(channels)),
                )
                operands = (
                    self.weight(channels),
                    self.weight(channels),
                    self.weight(channels),
                    variance,
                )
                self.emit(kind, x, *operands, epsilon=0.5, shape=shape)
        elif kind == "LpNormalization":
            self.emit(kind, self.at_least_one(x), axis=axis, p=self.choose([1, 2]), shape=shape)
        else:
            self.emit(kind, x, axis=axis, shape=shape)

    def window(self) -> None:
        """Conv, ConvTranspose and pooling of (N, C, H, W)."""
        x = self.pick(
            lambda s: (
                len(s) == 4 and s[1] != N and all(isinstance(d, int) and d >= 2 for d in s[2:])
            )
        )
        if not x:
            return
        batch, channels, height, width = self.shapes[x]
        kind = self.choose(
            ["Conv", "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool"]
        )
        stride = self.choose([1, 2])
        pads = self.choose([[0, 0, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]])
        if kind == "GlobalAveragePool":
            self.emit(kind, x, shape=(batch, channels, 1, 1))
            return
        if kind == "ConvTranspose":
            sizes = [(d - 1) * stride + 2 for d in (height, width)]
            if 2 * np.prod(sizes) * BATCH <= LARGEST:
                self.bounded(
                    kind,
                    x,
                    self.weight(channels, 2, 2, 2),
                    strides=[stride, stride],
                    shape=(batch, 2, *sizes),
                )
            return
        sizes = [
            (d + pads[i] + pads[i + 2] - 2) // stride + 1 for i, d in enumerate((height, width))
        ]
        if kind == "Conv":
            depthwise = self.flag()
            kernel = self.weight(channels, 1, 2, 2) if depthwise else self.weight(2, channels, 2, 2)
            out = channels if depthwise else 2
            bias = [self.weight(out)] if self.flag() else []
            self.bounded(kind, x, kernel, *bias, group=channels if depthwise else 1, strides=[stride, stride], pads=pads, shape=(batch, out, *sizes))  # fmt: skip
        else:
            extra = {"count_include_pad": int(self.flag())} if kind == "AveragePool" else {}
            self.emit(kind, x, kernel_shape=[2, 2], strides=[stride, stride], pads=pads, shape=(batch, channels, *sizes), **extra)  # fmt: skip

    # ---- nested graphs ----------------------------------------------------------------------------------------------

    def _body(self, start: str, shape: Shape) -> tuple[list[NodeProto], str]:
        """Nodes that compute a value of `shape` from `start` and whatever is captured."""
        outer, known = self.nodes, dict(self.shapes)
        self.nodes = []
        value = start
        for _ in range(self.choose([1, 1, 2, 3])):
            other = self.pick(lambda s: broadcast(shape, s) == shape)
            kind = self.choose(["Sin", "Tanh", "Mul", "Add", "Sub", "MatMul", "Relu", "If"])
            if kind == "MatMul" and shape and shape[-1] != N:
                value = self.bounded(
                    "MatMul", value, self.weight(shape[-1], shape[-1]), shape=shape
                )
            elif kind == "my" and other:
                value = self.emit("gate", other, value, domain="my", shape=shape)
            elif kind == "If" and other:
                value = self._if(value, other, shape)
            elif kind in ("Mul", "Add", "Sub") and other:
                value = self.bounded(kind, value, other, shape=shape)
            else:
                value = self.emit(kind if kind in ("Sin", "Relu") else "Tanh", value, shape=shape)
        nodes, self.nodes, self.shapes = self.nodes, outer, known
        return nodes, value

    def _if(self, a: str, b: str, shape: Shape) -> str:
        branches = {}
        for branch, start in (("then_branch", a), ("else_branch", b)):
            outer = self.nodes
            self.nodes = []
            result = self.emit("Mul" if self.flag() else "Add", a, start)
            inner, self.nodes = self.nodes, outer
            declared = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
            branches[branch] = helper.make_graph(inner, branch, [], [declared])
        return self.bounded("If", "condition", shape=shape, **branches)

    def if_(self) -> None:
        x = self.pick()
        if not x:
            return
        shape = self.shapes[x]
        branches = {}
        for branch in ("then_branch", "else_branch"):
            nodes, value = self._body(x, shape)
            declared = helper.make_tensor_value_info(value, TensorProto.FLOAT, None)
            branches[branch] = helper.make_graph(nodes, branch, [], [declared])
        self.emit("If", "condition", shape=shape, **branches)

    def loop(self) -> None:
        """Two turns; the state is a value, the body captures what it likes; the states on the way are returned too."""
        x = self.pick(lambda s: size(s) <= 40 and len(s) < 4)
        if not x:
            return
        shape = self.shapes[x]
        state, turn, go, on, kept = (self.fresh(n) for n in ("s", "turn", "go", "on", "kept"))
        nodes, value = self._body(state, shape)
        nodes += [
            helper.make_node("Identity", [go], [on]),
            helper.make_node("Cos", [value], [kept]),
        ]
        body = helper.make_graph(
            nodes,
            "body",
            [
                helper.make_tensor_value_info(turn, TensorProto.INT64, []),
                helper.make_tensor_value_info(go, TensorProto.BOOL, []),
                helper.make_tensor_value_info(state, TensorProto.FLOAT, list(shape)),
            ],
            [
                helper.make_tensor_value_info(on, TensorProto.BOOL, []),
                helper.make_tensor_value_info(value, TensorProto.FLOAT, None),
                helper.make_tensor_value_info(kept, TensorProto.FLOAT, None),
            ],
        )
        count = self.ints(2)
        self.initializers[count] = np.array(2, np.int64)
        last, all_states = self.fresh(), self.fresh()
        self.nodes.append(helper.make_node("Loop", [count, "", x], [last, all_states], body=body))
        self.shapes[last] = shape
        self.reduced("ReduceMean", all_states, [0], 0, shape)

    def scan(self) -> None:
        """Over two slices that differ, in either direction; the state is a value, the body captures what it likes."""
        x = self.pick(lambda s: size(s) <= 40 and len(s) < 4)
        if not x:
            return
        shape = self.shapes[x]
        slices = self.emit("Concat", *(self.emit("Unsqueeze", self.emit(op, x), self.ints(0)) for op in ("Sin", "Neg")), axis=0)  # fmt: skip
        state, element, kept = (self.fresh(n) for n in ("s", "element", "kept"))
        nodes, value = self._body(state, shape)
        new = self.fresh()
        nodes += [
            helper.make_node("Mul", [value, element], [new]),
            helper.make_node("Cos", [new], [kept]),
        ]
        body = helper.make_graph(
            nodes,
            "body",
            [
                helper.make_tensor_value_info(n, TensorProto.FLOAT, list(shape))
                for n in (state, element)
            ],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(shape)) for n in (new, kept)],
        )
        last, all_states = self.fresh(), self.fresh()
        way = int(self.flag())
        self.nodes.append(helper.make_node("Scan", [x, slices], [last, all_states], body=body, num_scan_inputs=1, scan_input_directions=[way]))  # fmt: skip
        self.shapes[last] = shape
        self.reduced("ReduceMean", all_states, [0], 0, shape)

    # ---- the whole --------------------------------------------------------------------------------------------------

    def finish(self) -> Drawn:
        made = [v for n in self.nodes for v in n.output if v in self.shapes] or ["x"]
        outputs = self.draw.some(list(dict.fromkeys([*made[-4:], *made])), 1, 3)
        scalar = self.flag()
        targets = list(outputs)
        if scalar:
            parts = [self.emit("ReduceMean", self.emit("Sin", v), keepdims=0) for v in outputs]
            targets = [self.emit("Sum", *parts, shape=())]
        shown = list(dict.fromkeys([*outputs, *targets]))
        if self.flag():
            shown.append("x")  # an output that is an input
        weights = [n for n, a in self.initializers.items() if a.dtype == np.float32]
        wrt = [n for n, s in self.inputs.items() if n in self.shapes]
        wrt += self.draw.some(weights, 0, 6)
        inner = [v for v in made if v not in self.inputs]
        wrt += [self.choose(inner)] if inner else []
        models = [self._model(shown, symbolic) for symbolic in (False, True)]
        checkpoint = self.choose([None, None, "auto"])
        return Drawn(*models, self.feeds, wrt, targets, scalar, weights, checkpoint)

    def _model(self, outputs: Sequence[str], symbolic: bool) -> ModelProto:
        def info(name: str, shape: Shape, dtype: Any = np.float32) -> onnx.ValueInfoProto:
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            return helper.make_tensor_value_info(
                name, kind, list(shape) if symbolic else concrete(shape)
            )

        # the loops' states are declared inside their bodies
        nodes = [_with_batch(n, symbolic) for n in self.nodes]
        graph = helper.make_graph(
            nodes,
            "g",
            [info(n, s, self.feeds[n].dtype) for n, s in self.inputs.items()],
            [info(n, self.shapes[n]) for n in outputs],
            [numpy_helper.from_array(np.asarray(a), n) for n, a in self.initializers.items()],
        )
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("my", 1)]
        functions = [
            onnx.parser.parse_function(f.replace("OPSET", str(self.opset))) for f in FUNCTIONS
        ]
        return helper.make_model(graph, ir_version=10, opset_imports=imports, functions=functions)


def _small(shape: Shape | None) -> bool:
    return shape is not None and size(shape) <= LARGEST


def _product(a: Shape, b: Shape) -> Shape | None:
    """The shape of a @ b, or None."""
    if not a or not b:
        return None
    left, right = ((1, *a) if len(a) == 1 else a), ((*b, 1) if len(b) == 1 else b)
    lead = broadcast(left[:-2], right[:-2])
    if left[-1] != right[-2] or lead is None:
        return None
    shape = (*lead, *(left[-2:-1] if len(a) > 1 else ()), *(right[-1:] if len(b) > 1 else ()))
    return shape if _small(shape) else None


def _with_batch(node: NodeProto, symbolic: bool) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    if not symbolic:
        for attribute in copy.attribute:
            for v in (*attribute.g.input, *attribute.g.output):
                for d in v.type.tensor_type.shape.dim:
                    if d.dim_param == N:
                        d.dim_value = BATCH
    return copy


STEPS: list[Callable[[Builder], None]] = [
    *[Builder.unary] * 3, Builder.composed, *[Builder.binary] * 4, *[Builder.dense] * 2, Builder.product, *[Builder.reduce] * 2,
    *[Builder.move] * 4, Builder.concat, Builder.split, *[Builder.normalize] * 2, *[Builder.window] * 2, Builder.if_, Builder.loop, Builder.scan,
]  # fmt: skip


@st.composite
def models(draw: Any, most: int = 12) -> Drawn:
    """`model` of opset 20 by hypothesis."""
    return model(FromHypothesis(draw), most=most)


def model(draw: Draws, *, opset: int = 20, most: int = 12) -> Drawn:
    """Up to `most` steps over a matrix with a batch, a vector, an image, a number, a matrix without batch; some unused."""
    builder = Builder(draw, opset)
    builder.add_input("x", (N, 4))
    builder.add_input("z", (2, 4))
    builder.add_input("image", (N, 2, 4, 3 + 2))
    builder.add_input("number", ())
    builder.add_input("unused", (2,))
    del builder.shapes["unused"]
    builder.shapes[builder.weight(4)] = (4,)
    builder.add_input("mask", (), np.array(builder.flag()))
    builder.add_input("condition", (), np.array(builder.flag()))
    for _ in range(draw.integer(2, most)):
        builder.step()
    builder.shapes["unused"] = (2,)
    return builder.finish()
