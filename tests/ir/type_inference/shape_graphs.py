"""Random graphs of shape arithmetic: vectors of sizes, and tensors of the shapes that they give."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

# the axes of the inputs; y's last axis has no name in one of five graphs
INPUTS: dict[str, list[str | int]] = {"x": ["N", "M"], "y": ["N", 4, "M"], "p": ["B", 4, "L"]}
SIZES = [
    {"N": 2, "M": 3, "B": 2, "L": 5}, {"N": 1, "M": 1, "B": 1, "L": 4}, {"N": 0, "M": 3, "B": 2, "L": 7},
    {"N": 3, "M": 0, "B": 1, "L": 3}, {"N": 2, "M": 2, "B": 2, "L": 2}, {"N": 1, "M": 2, "B": 3, "L": 1},
    {"N": 5, "M": 3, "B": 1, "L": 6}, {"N": 4, "M": 4, "B": 4, "L": 0},
]  # fmt: skip
_FAR = (1 << 63) - 1


class Graph:
    """Grows by one to four nodes at a time; most of them run at most sizes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.ranks = {name: len(shape) for name, shape in INPUTS.items()}
        self.pictures = ["p"]  # (batch, 4, length)
        self.vectors: dict[str, int] = {}  # their lengths
        self.scalars: list[str] = []
        self.conditions: dict[str, int] = {}
        self.names_all = self.rng.random() > 0.2
        steps = [self.arithmetic] * 3 + [self.moved] * 4 + [self.compared] * 2 + [self.reshaped] * 3
        steps += [self.tensor] * 4 + [self.windows] * 2
        for _ in range(self.rng.randint(3, 14)):
            self.rng.choice(steps)()

    def model(
        self, count: int | None = None, outputs: Sequence[str] | None = None
    ) -> onnx.ModelProto:
        """Its first nodes; all of their results are outputs, or those named."""
        nodes = self.nodes[:count]
        names = [o for n in nodes for o in n.output] if outputs is None else outputs
        inputs = [
            helper.make_tensor_value_info(
                name,
                TensorProto.FLOAT,
                shape if self.names_all or name != "y" else [*shape[:-1], None],
            )
            for name, shape in INPUTS.items()
        ]
        graph = helper.make_graph(
            nodes,
            "g",
            inputs,
            [helper.make_empty_tensor_value_info(n) for n in names],
            self.constants,
        )
        opsets = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    @property
    def ends(self) -> list[str]:
        """Results that no node reads."""
        read = {name for n in self.nodes for name in n.input}
        return [o for n in self.nodes for o in n.output if o not in read]

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def emit(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        names = [f"{op.lower()}{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names[0]

    def vector(self) -> str:
        """A vector of sizes: a new one of some tensor's, or an earlier one."""
        if self.vectors and self.rng.random() > 0.25:
            return self.rng.choice([*self.vectors])
        name, rank = self.rng.choice([*self.ranks.items()])
        start = self.rng.randint(0, rank - 1)
        end = self.rng.randint(start + 1, rank)
        made = self.emit("Shape", name, start=start, end=end)
        self.vectors[made] = end - start
        return made

    def scalar(self) -> str:
        if self.scalars and self.rng.random() > 0.4:
            return self.rng.choice(self.scalars)
        v = self.vector()
        index = self.constant(self.rng.randint(-self.vectors[v], self.vectors[v] - 1))
        self.scalars.append(self.emit("Gather", v, index))
        return self.scalars[-1]

    def one(self) -> str:
        """A vector of one element."""
        return self.emit("Unsqueeze", self.scalar(), self.constant([0]))

    def beside(self, length: int) -> str:
        """An operand that broadcasts with a vector of this length."""
        known = [v for v, n in self.vectors.items() if n in (length, 1)] + self.scalars
        if known and self.rng.random() < 0.7:
            return self.rng.choice(known)
        return self.constant([self.rng.randint(-3, 6) for _ in range(length)])

    # ---- steps -----------------------------------------------------------------------------------

    def arithmetic(self) -> None:
        v, rng = self.vector(), self.rng
        length = self.vectors[v]
        op = rng.choice(
            [
                "Add",
                "Sub",
                "Mul",
                "Max",
                "Min",
                "Div",
                "Mod",
                "Neg",
                "Abs",
                "Cast",
                "Size",
                "ReduceProd",
                "ReduceSum",
                "ReduceMax",
                "ReduceMin",
            ]
        )
        if op == "Size":
            self.scalars.append(self.emit(op, rng.choice([*self.ranks])))
            return
        if op.startswith("Reduce"):
            axes = [self.constant([0])] if rng.random() < 0.5 and op == "ReduceSum" else []
            made = self.emit(op, v, *axes, keepdims=rng.randint(0, 1))
            if self.nodes[-1].attribute[0].i:
                self.vectors[made] = 1
            else:
                self.scalars.append(made)
            return
        if op in ("Div", "Mod"):
            made = self.emit(op, v, self.constant([rng.randint(1, 4) for _ in range(length)]))
        elif op == "Cast":
            made = self.emit(op, self.emit(op, v, to=TensorProto.INT32), to=TensorProto.INT64)
        elif op in ("Neg", "Abs"):
            made = self.emit(op, v)
        else:
            operands = [v, self.beside(length)]
            rng.shuffle(operands)
            made = self.emit(op, *operands)
        self.vectors[made] = length

    def moved(self) -> None:
        v, rng = self.vector(), self.rng
        n = self.vectors[v]
        op = rng.choice(
            [
                "Gather",
                "Slice",
                "Back",
                "Concat",
                "Squeeze",
                "ConstantOfShape",
                "Expand",
                "Tile",
                "Split",
                "Pads",
                "Identity",
                "Where",
            ]
        )
        made, length = "", n
        if op == "Gather":
            length = rng.randint(1, 3)
            made = self.emit(op, v, self.constant([rng.randint(-n, n - 1) for _ in range(length)]))
        elif op == "Slice" and n > 1:
            start, length = rng.choice([0, -n]), rng.randint(1, n - 1)
            bounds = map(self.constant, ([start], [start + length or _FAR], [0]))
            made = self.emit(op, v, *bounds)
        elif op == "Back":  # in reverse order
            bounds = map(self.constant, ([-1], [-_FAR - 1], [0], [-1]))
            made = self.emit("Slice", v, *bounds)
        elif op == "Concat":
            w = self.vector()
            length += self.vectors[w]
            made = self.emit(op, v, w, axis=0)
        elif op == "Squeeze" and n == 1:
            self.scalars.append(self.emit(op, v))
        elif op == "ConstantOfShape":
            length = rng.randint(1, 3)
            value = numpy_helper.from_array(np.array([rng.randint(-1, 3)]))
            made = self.emit(op, self.constant([length]), value=value)
        elif op == "Expand" and n == 1:
            length = rng.randint(1, 3)
            made = self.emit(op, v, self.constant([length]))
        elif op == "Tile":
            length = 2 * n
            made = self.emit(op, v, self.constant([2]))
        elif op == "Split" and n > 1:
            made = self.emit(op, v, self.constant([1, n - 1]), outputs=2, axis=0)
            self.vectors[self.nodes[-1].output[1]], length = n - 1, 1
        elif op == "Pads" and n % 2 == 0:  # as exporters interleave them
            pairs = self.emit("Reshape", v, self.constant([-1, 2]))
            turned = self.emit("Transpose", pairs, perm=[1, 0])
            made = self.emit("Reshape", turned, self.constant([-1]))
        elif op == "Identity":
            made = self.emit(op, v)
        elif op == "Where":  # as they expand
            open_ = self.emit("Equal", v, self.constant([-1] * n))
            made = self.emit(op, open_, self.constant([1] * n), v)
        if made:
            self.vectors[made] = length

    def compared(self) -> None:
        v, rng = self.vector(), self.rng
        n = self.vectors[v]
        op = rng.choice(["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
        operands = [v, self.beside(n)]
        rng.shuffle(operands)
        made = self.emit(op, *operands)
        if rng.random() < 0.3:
            made = self.emit("Not", made)
        others = [c for c, length in self.conditions.items() if length == n]
        if others and rng.random() < 0.5:
            made = self.emit(rng.choice(["And", "Or"]), made, rng.choice(others))
        self.conditions[made] = n
        if rng.random() < 0.6:
            self.vectors[self.emit("Where", made, v, self.beside(n))] = n
        elif rng.random() < 0.4:
            self.vectors[self.emit("Cast", made, to=TensorProto.INT64)] = n

    def reshaped(self) -> None:
        """Reshape to sizes of its own operand, merged, copied and open, or to any."""
        rng = self.rng
        x, rank = rng.choice([*self.ranks.items()])
        shape, parts, axis, free = self.emit("Shape", x), list[str](), 0, True
        if rng.random() < 0.3:
            count = rng.randint(1, 3)
            parts = [
                self.one() if rng.random() < 0.5 else self.constant([rng.choice([-1, 0, 1, 2, 4])])
                for _ in range(count)
            ]
            axis = rank
        while axis < rank:
            kind = rng.choice(["merge", "new", "open", "copy", "same", "same"])
            if kind == "open" and free:
                parts.append(self.constant([-1]))
                free = False
            elif kind == "new":
                parts.append(self.constant([1]))
                axis -= 1
            elif kind == "copy":
                parts.append(self.constant([0]))
            else:
                size = self.emit("Gather", shape, self.constant([axis]))
                if kind == "merge" and axis + 1 < rank:
                    axis += 1
                    size = self.emit("Mul", size, self.emit("Gather", shape, self.constant([axis])))
                parts.append(size)
            axis += 1
        if 0 < len(parts) < 6:
            target = self.emit("Concat", *parts, axis=0)
            self.vectors[target] = len(parts)
            self.ranks[self.emit("Reshape", x, target)] = len(parts)

    def tensor(self) -> None:
        rng = self.rng
        x, rank = rng.choice([*self.ranks.items()])
        op = rng.choice(
            [
                "Expand",
                "Slice",
                "Concat",
                "Tile",
                "Pad",
                "Transpose",
                "Relu",
                "Flatten",
                "ConstantOfShape",
                "Range",
                "Split",
                "Unsqueeze",
                "Add",
                "Where",
                "MatMul",
            ]
        )
        other, its_rank = rng.choice([*self.ranks.items()])
        made, found = "", rank
        if op == "Expand":
            found = rng.randint(1, 3)
            made = self.emit(op, x, self._some(found, [1, 2, 4]))
            found = max(rank, found)
        elif op == "Slice":
            start = self.one() if rng.random() < 0.5 else self.constant([rng.choice([0, 1, -2])])
            end = (
                self.one() if rng.random() < 0.5 else self.constant([rng.choice([1, 3, -1, _FAR])])
            )
            rest = map(self.constant, ([rng.randint(0, rank - 1)], [rng.choice([1, 1, 2])]))
            made = self.emit(op, x, start, end, *rest)
        elif op == "Concat":
            made = self.emit(op, x, x, axis=rng.randint(-rank, rank - 1))
        elif op == "Tile":
            repeats = self.emit("Min", self._some(rank, [1, 2]), self.constant([3]))
            made = self.emit(op, x, repeats)
        elif op == "Pad" and rng.random() < 0.5:
            made = self.emit(op, x, self.constant([rng.randint(-1, 2) for _ in range(2 * rank)]))
        elif op == "Pad":
            pads = self.emit("Concat", self.constant([0]), self.one(), axis=0)
            made = self.emit(op, x, pads, "", self.constant([rng.randint(-rank, rank - 1)]))
        elif op == "Transpose":
            made = self.emit(op, x, perm=rng.sample(range(rank), rank))
        elif op == "Relu":
            made = self.emit(op, x)
        elif op == "Flatten":
            made, found = self.emit(op, x, axis=rng.randint(0, rank)), 2
        elif op == "ConstantOfShape":
            found = rng.randint(1, 3)
            made = self.emit(op, self.emit("Min", self._some(found, [0, 2]), self.constant([5])))
        elif op == "Range":
            start = self.scalar() if rng.random() < 0.3 else self.constant(rng.choice([0, 1]))
            made = self.emit(op, start, self.scalar(), self.constant(rng.choice([1, 1, 2, 3])))
            made, found = self.emit("Cast", made, to=TensorProto.FLOAT), 1
        elif op == "Split":
            made = self.emit(op, x, outputs=2, axis=rng.randint(0, rank - 1), num_outputs=2)
            self.ranks[self.nodes[-1].output[1]] = rank
        elif op == "Unsqueeze" and rank < 4:
            made, found = self.emit(op, x, self.constant([rng.randint(-rank - 1, rank)])), rank + 1
        elif op == "Add":
            made, found = self.emit(op, x, other), max(rank, its_rank)
        elif op == "Where":
            made, found = self.emit(op, self.emit("Equal", x, x), x, other), max(rank, its_rank)
        elif op == "MatMul" and min(rank, its_rank) > 1:
            made, found = self.emit(op, x, other), max(rank, its_rank)
        if made:
            self.ranks[made] = found

    def _some(self, count: int, numbers: list[int]) -> str:
        """A vector of sizes and these numbers."""
        parts = [
            self.one() if self.rng.random() < 0.5 else self.constant([self.rng.choice(numbers)])
            for _ in range(count)
        ]
        made = self.emit("Concat", *parts, axis=0)
        self.vectors[made] = count
        return made

    def windows(self) -> None:
        rng = self.rng
        x, stride, width = rng.choice(self.pictures), rng.randint(1, 3), rng.randint(1, 3)
        strides, pads = [stride], [min(width - 1, rng.randint(0, 1)) for _ in range(2)]
        op = rng.choice(["Conv", "ConvTranspose", "MaxPool", "AveragePool", "Resize", "Resize"])
        weight = self.constant(np.ones((4, 4, width)), np.float32) if "Conv" in op else ""
        if op == "Conv" and rng.random() < 0.4:
            auto = rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
            made = self.emit(op, x, weight, strides=strides, auto_pad=auto)
        elif op == "Conv":
            made = self.emit(
                op, x, weight, strides=strides, pads=pads, dilations=[rng.randint(1, 2)]
            )
        elif op == "ConvTranspose":
            extra = [rng.randint(0, stride - 1)]
            made = self.emit(op, x, weight, strides=strides, pads=pads, output_padding=extra)
        elif op != "Resize":
            made = self.emit(op, x, kernel_shape=[width], strides=strides, pads=pads)
        elif rng.random() < 0.5:
            factor = rng.choice([2, 0.5, 0.25, 3])
            scales = self.constant([1, 1, factor], np.float32)
            if rng.random() < 0.5:  # as TorchScript's exporter writes them
                front, last = (self.constant(v, np.float32) for v in ([1, 1], [factor]))
                scales = self.emit("Concat", front, last, axis=0)
            made = self.emit(op, x, "", scales, mode="nearest")
        else:
            lead = self.emit("Shape", x, start=0, end=2)
            made = self.emit(
                op, x, "", "", self.emit("Concat", lead, self.one(), axis=0), mode="nearest"
            )
        self.ranks[made] = 3
        self.pictures.append(made)
