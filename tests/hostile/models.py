"""Hostile models by name: shapes and sizes that lie, bombs, deep nesting, names, external data, terminal escapes.

A model here may be legal, and then has to work; or not, and then is refused in one line. None may hurt.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.hostile.build import INT64, external, function, graph, model, node, raw, tensor, value

SECRET = b"The secret of the house that no model may read."
ESCAPE = "\x1b]0;owned\x07\x1b[31mred\x9b2J\r\x08name"
_HUGE = (2**31, 2**40, 2**62, 2**63 - 1)


def relu(**changes: object) -> ModelProto:
    return model([node("Relu", "x", "y")], **changes)  # type: ignore[arg-type]


def cases() -> Iterator[tuple[str, ModelProto | bytes]]:
    """(name, model) of every case."""
    for family in (
        dtypes, lying_shapes, lying_weights, attributes_out_of_range, ranks, size_bombs, reference_bombs, nested,
        functions, names, external_data, text_in_names, protobuf, constants, sparse, control_flow, quantized, opsets,
    ):  # fmt: skip
        for name, made in family():
            yield f"{family.__name__}: {name}", made


def dtypes() -> Iterator[tuple[str, ModelProto]]:
    for code in (0, 24, 27, 999, -1, 2**31 - 1):
        yield f"input of dtype {code}", _typed(code)
        weight = TensorProto(name="w", data_type=code, dims=[3], raw_data=bytes(12))
        yield f"weight of dtype {code}", model([node("Add", "x w", "y")], [weight])
        yield f"Cast to {code}", model([node("Cast", "x", "y", to=code)])
        yield (
            f"Constant of dtype {code}",
            model([node("Constant", "", "c", value=weight), node("Add", "x c", "y")]),
        )
        yield f"output of dtype {code}", relu(y=value("y", (2, 3), code))
        yield f"EyeLike of dtype {code}", model([node("EyeLike", "x", "y", dtype=code)])


def _typed(code: int) -> ModelProto:
    made = relu()
    made.graph.input[0].type.tensor_type.elem_type = code
    return made


def lying_shapes() -> Iterator[tuple[str, ModelProto]]:
    for shape in (
        (),
        (0,),
        (-1, 3),
        (2**62, 2**62),
        (2**40,),
        (2, 3, 4),
        (2**31, 1),
        ("N", "N", "N"),
        ("", 3),
        ("x", 3),
    ):
        yield f"input of shape {shape}", relu(x=value("x", shape))
        yield f"output of shape {shape}", relu(y=value("y", shape))
        made = model([node("Relu", "x", "h"), node("Add", "h h", "y")])
        made.graph.value_info.append(value("h", shape))
        yield f"between of shape {shape}", made
    yield (
        "int64 input of 2^40 sizes",
        model(
            [node("Add", "x x", "h"), node("ConstantOfShape", "h", "y")],
            x=value("x", (2**40,), INT64),
        ),
    )
    yield (
        "sizes computed from a long vector",
        model(
            [node("Mul", "x x", "h"), node("Reshape", "h h", "y")],
            x=value("x", (50_000_000,), INT64),
        ),
    )


def lying_weights() -> Iterator[tuple[str, ModelProto]]:
    add = [node("Add", "x w", "y")]
    for dims in ((2, 3), (-1,), (2**62,), (2**40, 2**40), (2**63 - 1, 2), (0,), (7,), (1,) * 300):
        for data in (b"", bytes(4), bytes(13)):
            yield (
                f"weight {dims if len(dims) < 9 else 'of rank 300'} in {len(data)} bytes",
                model(add, [raw("w", dims, data)]),
            )
    short = TensorProto(name="w", data_type=1, dims=[2, 3], float_data=[1.0])
    yield "short float_data", model(add, [short])
    both = TensorProto(name="w", data_type=1, dims=[2, 3], float_data=[1.0] * 6, raw_data=bytes(24))
    yield "float_data and raw_data", model(add, [both])
    wrong = TensorProto(name="w", data_type=1, dims=[2, 3], int64_data=[1] * 6)
    yield "floats in int64_data", model(add, [wrong])
    text = TensorProto(name="w", data_type=8, dims=[2], string_data=[b"\xff\xfe", b"a"])
    yield "strings that are no text", model([node("Identity", "w", "y")], [text])
    segment = TensorProto(name="w", data_type=1, dims=[2, 3], raw_data=bytes(24))
    segment.segment.begin, segment.segment.end = 0, 2**40
    yield "a segment of a weight", model(add, [segment])


def attributes_out_of_range() -> Iterator[tuple[str, ModelProto]]:
    image, kernel = value("x", (1, 2, 8, 8)), raw("w", (2, 2, 3, 3), bytes(144))
    conv = "Conv"
    for what, attributes in {
        "stride 0": {"strides": [0, 0]}, "stride -1": {"strides": [-1, 1]}, "stride 2^40": {"strides": [2**40, 1]},
        "dilation 0": {"dilations": [0, 1]}, "dilation 2^40": {"dilations": [2**40, 1]}, "group 0": {"group": 0},
        "group -1": {"group": -1}, "group 2^40": {"group": 2**40}, "pads 2^40": {"pads": [2**40] * 4},
        "pads -9": {"pads": [-9] * 4}, "one pad": {"pads": [1]}, "kernel 0": {"kernel_shape": [0, 0]},
        "kernel of rank 3": {"kernel_shape": [3, 3, 3]}, "auto_pad of nonsense": {"auto_pad": "MAYBE"},
    }.items():  # fmt: skip
        yield f"Conv with {what}", model([node(conv, "x w", "y", **attributes)], [kernel], x=image)  # type: ignore[arg-type]
    for op in ("MaxPool", "AveragePool", "LpPool"):
        for size in (0, -1, 2**31, 2**40, 2**62):
            yield (
                f"{op} of kernel {size}",
                model([node(op, "x", "y", kernel_shape=[size, size])], x=image),
            )
            attributes = {"kernel_shape": [2, 2], "strides": [size, size]}
            yield f"{op} of stride {size}", model([node(op, "x", "y", **attributes)], x=image)  # type: ignore[arg-type]
        yield (
            f"{op} of pads",
            model([node(op, "x", "y", kernel_shape=[2, 2], pads=[2**40] * 4)], x=image),
        )
    for axis in (2, -3, 5, 2**31, 2**62, -(2**63)):
        for op in (
            "Concat",
            "Softmax",
            "Flatten",
            "ArgMax",
            "LayerNormalization",
            "Hardmax",
            "Split",
            "CumSum",
        ):
            inputs, weights = {
                "LayerNormalization": ("x s", [tensor("s", [1, 1, 1], np.float32)])
            }.get(op, ("x", []))
            attributes = {"axis": axis} if op != "CumSum" else {}
            if op == "CumSum":
                inputs, weights = "x a", [tensor("a", axis, np.int64)]
            yield f"{op} along axis {axis}", model([node(op, inputs, "y", **attributes)], weights)  # type: ignore[arg-type]
    for axes in ([9], [-9], [0, 0], [2**62], list(range(100))):
        for op in ("Squeeze", "Unsqueeze", "ReduceSum"):
            yield (
                f"{op} of axes {axes[:2]}",
                model([node(op, "x a", "y")], [tensor("a", axes, np.int64)]),
            )
        yield f"ReduceMax of axes {axes[:2]}", model([node("ReduceMax", "x", "y", axes=axes)])
    for perm in ([0], [0, 0], [1, 2], [-1, 0], [2**62, 0], list(range(50))):
        yield f"Transpose by {perm[:3]}", model([node("Transpose", "x", "y", perm=perm)])
    for block in (0, -1, 2**31, 3):
        yield (
            f"DepthToSpace by {block}",
            model([node("DepthToSpace", "x", "y", blocksize=block)], x=image),
        )
        yield (
            f"SpaceToDepth by {block}",
            model([node("SpaceToDepth", "x", "y", blocksize=block)], x=image),
        )
    yield "Gemm of nan", model([node("Gemm", "x x", "y", alpha=float("nan"), transB=2**40)])
    yield "TopK of 2^62", model([node("TopK", "x k", "y i")], [tensor("k", [2**62])])
    yield "Split into 2^31", model([node("Split", "x", "y z", num_outputs=2**31)], opset=18)
    yield (
        "OneHot of depth 2^62",
        model(
            [node("Cast", "x", "i", to=7), node("OneHot", "i d v", "y")],
            [tensor("d", 2**62), tensor("v", [0.0, 1.0])],
        ),
    )
    yield "attribute of another type", model([node("Concat", "x x", "y", axis=1.5)])
    yield "attribute given twice", _twice()
    yield "attribute without a type", _untyped()
    yield "Einsum of nonsense", model([node("Einsum", "x x", "y", equation="ij,jk" * 2000 + "->")])
    yield (
        "perm by reference outside a function",
        _reference(node("Transpose", "x", "y", perm=[1, 0])),
    )
    yield "axis by reference outside a function", _reference(node("Concat", "x x", "y", axis=1))
    yield (
        "Constant by reference outside a function",
        _reference(node("Constant", "", "y", value_float=1.0)),
    )


def _twice() -> ModelProto:
    made = model([node("Concat", "x x", "y", axis=0)])
    made.graph.node[0].attribute.append(helper.make_attribute("axis", 1))
    return made


def _untyped() -> ModelProto:
    made = model([node("Concat", "x x", "y", axis=0)])
    made.graph.node[0].attribute[0].ClearField("type")
    return made


def _reference(what: NodeProto) -> ModelProto:
    attribute = what.attribute[0]
    kind = attribute.type
    name = attribute.name
    attribute.Clear()
    attribute.name, attribute.type, attribute.ref_attr_name = name, kind, "outer"
    return model([what])


def ranks() -> Iterator[tuple[str, ModelProto]]:
    for rank in (9, 33, 65, 300):
        shape = (1,) * rank
        yield f"input of rank {rank}", relu(x=value("x", shape))
        yield (
            f"weight of rank {rank}",
            model([node("Add", "x w", "y")], [raw("w", shape, bytes(4))]),
        )
        target = tensor("s", [1] * (rank - 2) + [2, 3])
        yield (
            f"Reshape to rank {rank}",
            model([node("Reshape", "x s", "h"), node("Relu", "h", "y")], [target]),
        )
        yield (
            f"Expand to rank {rank}",
            model([node("Expand", "x s", "h"), node("Relu", "h", "y")], [target]),
        )
        axes = tensor("a", list(range(rank - 2)))
        yield (
            f"Unsqueeze to rank {rank}",
            model([node("Unsqueeze", "x a", "h"), node("Exp", "h", "y")], [axes]),
        )


def size_bombs() -> Iterator[tuple[str, ModelProto]]:
    """Small files that ask folding, inference or a run for huge values."""
    for n in (2**28, *_HUGE):
        tail = [
            node("ReduceMax", "h", "m", keepdims=0),
            node("Cast", "m", "f", to=1),
            node("Add", "x f", "y"),
        ]
        size, two = tensor("n", [n]), tensor("t", [n, n])
        yield (
            f"Range of {n}",
            model(
                [node("Range", "a n b", "h"), *tail],
                [tensor("a", 0), tensor("n", n), tensor("b", 1)],
            ),
        )
        yield f"ConstantOfShape of {n}", model([node("ConstantOfShape", "n", "h"), *tail], [size])
        yield (
            f"ConstantOfShape of {n} squared",
            model([node("ConstantOfShape", "t", "h"), *tail], [two]),
        )
        yield (
            f"Expand to {n}",
            model([node("Expand", "o n", "h"), *tail], [size, tensor("o", [1.0], np.float32)]),
        )
        yield (
            f"Tile by {n}",
            model([node("Tile", "o n", "h"), *tail], [size, tensor("o", [1.0], np.float32)]),
        )
        yield (
            f"Pad by {n}",
            model(
                [node("Pad", "o p", "h"), *tail],
                [tensor("p", [n, n]), tensor("o", [1.0], np.float32)],
            ),
        )
        yield (
            f"Resize to {n}",
            model(
                [node("Resize", "o  r", "h"), *tail],
                [tensor("r", [n], np.float32), tensor("o", [1.0], np.float32)],
            ),
        )
        yield (
            f"ConstantOfShape of a run-time {n}",
            model(
                [
                    node("Shape", "x", "s"),
                    node("Mul", "s n", "k"),
                    node("ConstantOfShape", "k", "h"),
                    *tail,
                ],
                [size],
            ),
        )
        yield (
            f"Upsampled Concat of Range {n}",
            model(
                [node("Range", "a n b", "r"), node("Concat", "r r", "h", axis=0), *tail],
                [tensor("a", 0), tensor("n", n), tensor("b", 1)],
            ),
        )
    chain = [node("Concat", f"h{i} h{i}", f"h{i + 1}", axis=0) for i in range(60)]
    yield (
        "doubled sixty times",
        model([node("Relu", "x", "h0"), *chain, node("ReduceMax", "h60", "y")]),
    )
    ones = tensor("h0", np.ones(64), np.float32)
    yield (
        "a constant doubled sixty times",
        model([*chain, node("ReduceMax", "h60", "m"), node("Add", "x m", "y")], [ones]),
    )
    powers = [node("Mul", f"p{i} p{i}", f"p{i + 1}") for i in range(70)]
    yield (
        "shape arithmetic past int64",
        model(
            [
                node("Shape", "x", "p0"),
                *powers,
                node("ConstantOfShape", "p70", "c"),
                node("ReduceMax", "c", "y"),
            ]
        ),
    )
    outer = [node("MatMul", f"c{i} d", f"c{i + 1}") for i in range(30)]
    big = [tensor("s", [3000, 3000])]
    yield "slow constants", model(
        [node("ConstantOfShape", "s", "c0"), node("ConstantOfShape", "s", "d"), *outer, node("ReduceMax", "c30", "m"),
         node("Add", "x m", "y")], big,
    )  # fmt: skip
    yield (
        "INT64_MIN / -1",
        model(
            [node("Div", "a b", "c"), node("Cast", "c", "f", to=1), node("Add", "x f", "y")],
            [tensor("a", [-(2**63)]), tensor("b", [-1])],
        ),
    )
    yield (
        "Mod by 0",
        model(
            [node("Mod", "a b", "c"), node("Cast", "c", "f", to=1), node("Add", "x f", "y")],
            [tensor("a", [5]), tensor("b", [0])],
        ),
    )
    yield (
        "Div by 0",
        model(
            [node("Div", "a b", "c"), node("Cast", "c", "f", to=1), node("Add", "x f", "y")],
            [tensor("a", [5]), tensor("b", [0])],
        ),
    )


def reference_bombs() -> Iterator[tuple[str, ModelProto]]:
    """Quick in onnxruntime, slow or large in numpy."""
    weights = [
        tensor("w", np.ones((1, 1, 1)), np.float32),
        tensor("r", np.ones((1, 1, 1)), np.float32),
    ]
    for n in (10**5, 3 * 10**6):
        shape = tensor("s", [n, 1, 1])
        body = [node("Expand", "x s", "h"), node("RNN", "h w r", "all last", hidden_size=1)]
        yield (
            f"RNN of {n} steps",
            model(
                [*body, node("ReduceMax", "last", "y", keepdims=0)],
                [shape, *weights],
                x=value("x", (1, 1, 1)),
            ),
        )
        yield (
            f"NonZero of {n}",
            model(
                [node("Expand", "x s", "h"), node("NonZero", "h", "z"), node("Shape", "z", "y")],
                [shape],
                x=value("x", (1, 1, 1)),
            ),
        )
    byte = raw("v", [1], b"\1", TensorProto.UINT8)
    for n in (10**7, 2 * 10**8):
        yield f"{n} bytes that become floats", model(
            [node("Shape", "x", "o"), node("ReduceProd", "o", "p", keepdims=1), node("Mul", "p n", "s"),
             node("ConstantOfShape", "s", "c", value=byte), node("Cast", "c", "f", to=10),
             node("ReduceMax", "f", "m", keepdims=0), node("Cast", "m", "g", to=1), node("Add", "x g", "y")],
            [tensor("n", [n])],
        )  # fmt: skip


def nested() -> Iterator[tuple[str, ModelProto]]:
    # protobuf reads a hundred levels, three of which are one If
    for depth in (8, 16, 24, 30):
        inner = graph([node("Relu", "x", "y0")], outputs=[value("y0", None)])
        for i in range(depth):
            other = inner if i < 3 else _leaf(i)
            choice = helper.make_node(
                "If", ["c"], [f"y{i + 1}"], then_branch=inner, else_branch=other
            )
            inner = graph([choice], outputs=[value(f"y{i + 1}", None)])
        body = [node("ReduceMax", "x", "m", keepdims=0), node("Cast", "m", "c", to=9), *inner.node]
        yield f"If nested {depth} deep", model([*body, node("Identity", f"y{depth}", "y")])
    for depth in (20, 60):
        kind = onnx.TypeProto()
        kind.tensor_type.elem_type = 1
        for _ in range(depth):
            outer = onnx.TypeProto()
            outer.sequence_type.elem_type.CopyFrom(kind)
            kind = outer
        made = relu()
        made.graph.input.add(name="s").type.CopyFrom(kind)
        yield f"a sequence of sequences, {depth} deep", made
    yield (
        "chain of 20 000",
        model(
            [node("Relu", f"h{i}" if i else "x", f"h{i + 1}") for i in range(20_000)],
            y=value("h20000", None),
        ),
    )


def _leaf(i: int) -> onnx.GraphProto:
    return graph([node("Neg", "x", f"n{i}")], outputs=[value(f"n{i}", None)])


def functions() -> Iterator[tuple[str, ModelProto]]:
    f, imports = "f", [("f", 1)]
    for depth in (20, 60, 2000):
        bomb = [function("f0", [node("Relu", "a", "b")])]
        line = [function("f0", [node("Relu", "a", "b")])]
        for i in range(depth):
            call = {"domain": f}
            bomb.append(
                function(
                    f"f{i + 1}", [node(f"f{i}", "a", "h", **call), node(f"f{i}", "h", "b", **call)]
                )
            )
            line.append(function(f"f{i + 1}", [node(f"f{i}", "a", "b", **call)]))
        last = [node(f"f{depth}", "x", "y", domain=f)]
        yield f"calls doubled {depth} times", model(last, functions=bomb, imports=imports)
        yield f"calls {depth} deep", model(last, functions=line, imports=imports)
    yield (
        "calls itself",
        model(
            [node("r", "x", "y", domain=f)],
            functions=[function("r", [node("r", "a", "b", domain=f)])],
            imports=imports,
        ),
    )
    two = [
        function("p", [node("q", "a", "b", domain=f)]),
        function("q", [node("p", "a", "b", domain=f)]),
    ]
    yield "call each other", model([node("p", "x", "y", domain=f)], functions=two, imports=imports)
    same = [function("p", [node("Relu", "a", "b")])] * 2
    yield "defined twice", model([node("p", "x", "y", domain=f)], functions=same, imports=imports)
    yield (
        "of no nodes",
        model([node("p", "x", "y", domain=f)], functions=[function("p", [])], imports=imports),
    )
    yield (
        "called with too many operands",
        model(
            [node("p", "x x x", "y z", domain=f)],
            functions=[function("p", [node("Relu", "a", "b")])],
            imports=imports,
        ),
    )
    yield (
        "domain that is not imported",
        model(
            [node("p", "x", "y", domain="g")],
            functions=[function("p", [node("Relu", "a", "b")], domain="g")],
        ),
    )
    unset = node("Concat", "a a", "b", axis=0)
    unset.attribute[0].Clear()
    unset.attribute[0].name, unset.attribute[0].type, unset.attribute[0].ref_attr_name = (
        "axis",
        2,
        "missing",
    )
    yield (
        "attribute that no call gives",
        model(
            [node("p", "x", "y", domain=f)],
            functions=[function("p", [unset], ["missing"])],
            imports=imports,
        ),
    )
    yield (
        "named as an operator",
        model(
            [node("Relu", "x", "y")],
            functions=[function("Relu", [node("Neg", "a", "b")], domain="")],
        ),
    )


def names() -> Iterator[tuple[str, ModelProto]]:
    for name in (
        "",
        " ",
        "\0",
        "a\0b",
        "\n\n",
        "../../etc/passwd",
        "/",
        "%s%n",
        "{0}",
        "{}",
        "x" * 3_000_000,
        "\u202egnp",
        "\ud7ff",
    ):
        label = name[:12].encode("unicode_escape").decode() + ("..." if len(name) > 12 else "")
        made = relu()
        made.graph.input[0].name = name
        made.graph.node[0].input[0] = name
        yield f"input called {label!r}", made
        made = relu()
        made.graph.output[0].name = name
        made.graph.node[0].output[0] = name
        yield f"output called {label!r}", made
        made = model([node("Relu", "x", "h"), node("Neg", "h", "y")])
        made.graph.node[0].output[0] = made.graph.node[1].input[0] = name
        made.graph.node[0].name = made.graph.node[1].name = name
        yield f"value and nodes called {label!r}", made
    yield "a result named as the input", model([node("Relu", "x", "x"), node("Neg", "x", "y")])
    yield (
        "a result named as a weight",
        model([node("Add", "x w", "w"), node("Neg", "w", "y")], [tensor("w", [1.0], np.float32)]),
    )
    yield "one result twice", model([node("Split", "x s", "y y")], [tensor("s", [1, 1])])
    yield (
        "a weight twice",
        model(
            [node("Add", "x w", "y")],
            [tensor("w", [1.0], np.float32), tensor("w", [2.0], np.float32)],
        ),
    )
    yield "an output twice", _output_twice()
    yield "an input twice", _input_twice()
    yield "reads itself", model([node("Add", "x y", "y")])
    yield "reads what comes later", model([node("Neg", "h", "y"), node("Relu", "x", "h")])
    yield (
        "a circle",
        model([node("Add", "x b", "a"), node("Relu", "a", "b"), node("Neg", "b", "y")]),
    )
    yield "nothing returned", _nothing()
    yield "only an output, no nodes", model([])
    yield (
        "a gradient's own name",
        model([node("Relu", "x", "x_grad"), node("ReduceSum", "x_grad", "y", keepdims=0)]),
    )
    yield (
        "a name of onnx's making",
        model(
            [node("NonZero", "x", "unk__0"), node("Cast", "unk__0", "y", to=1)],
            y=value("y", ("unk__0", "unk__1")),
        ),
    )


def _output_twice() -> ModelProto:
    made = relu()
    made.graph.output.append(made.graph.output[0])
    return made


def _input_twice() -> ModelProto:
    made = relu()
    made.graph.input.append(made.graph.input[0])
    return made


def _nothing() -> ModelProto:
    made = relu()
    del made.graph.output[:]
    return made


def external_data() -> Iterator[tuple[str, ModelProto]]:
    """Of a folder with `good.bin` (24 bytes), `link` to the secret outside, `hard`, `loop`, `folder`, `fifo`."""
    add = [node("Add", "x w", "y")]
    places = (
        "good.bin", "missing.bin", "", ".", "..", "folder", "../secret.bin", "/etc/passwd", "{secret}", "link", "loop",
        "hard", "fifo", "folder/../../secret.bin", "folder/inner.bin", "./good.bin", "good.bin\0.txt", "a" * 5000,
        "/dev/zero", "/dev/stdin", "file:///etc/passwd", "model.onnx", "C:\\secret.bin", "\\\\host\\share", "linkdir/secret.bin",
    )  # fmt: skip
    for place in places:
        yield f"at {place[:30]!r}", model(add, [external("w", (2, 3), location=place)])
    for key, text in itertools.product(
        ("offset", "length"),
        ("-1", "0", "1", "23", "25", "9" * 19, "9" * 5000, "1e3", "", " 8", "٣", "0x10"),
    ):
        yield (
            f"{key} {text[:20]!r}",
            model(add, [external("w", (2, 3), location="good.bin", **{key: text})]),
        )
    yield "without a location", model(add, [external("w", (2, 3))])
    yield (
        "16 GiB in a sparse file",
        model(
            [node("ReduceMax", "w", "m"), node("Add", "x m", "y")],
            [external("w", (2**32,), location="sparse.bin")],
        ),
    )
    yield "2^62 elements", model(add, [external("w", (2**62,), location="good.bin")])
    yield "checksum", model(add, [external("w", (2, 3), location="good.bin", checksum="0" * 5000)])
    yield (
        "unknown keys",
        model(add, [external("w", (2, 3), location="good.bin", basepath="/etc", key="x" * 5000)]),
    )
    both = external("w", (2, 3), location="good.bin")
    both.raw_data = bytes(24)
    yield "data inside and outside", model(add, [both])
    inside = node("Constant", "", "w", value=external("c", (2, 3), location="../secret.bin"))
    yield "a Constant outside", model([inside, *add])
    many = [external(f"w{i}", (2, 3), location="good.bin") for i in range(50)]
    yield (
        "fifty in one place",
        model([node("Sum", " ".join(["x", *(f"w{i}" for i in range(50))]), "y")], many),
    )
    yield (
        "text outside",
        model(
            [node("Identity", "w", "y")],
            [external("w", (2,), TensorProto.STRING, location="good.bin")],
        ),
    )
    yield (
        "int4 outside",
        model(
            [node("Cast", "w", "y", to=1)],
            [external("w", (3,), TensorProto.INT4, location="good.bin")],
            opset=21,
        ),
    )


def text_in_names() -> Iterator[tuple[str, ModelProto]]:
    made = model([node("Relu", "x", "h"), node("Neg", "h", "y")])
    made.graph.node[0].name = made.graph.name = ESCAPE
    made.graph.node[0].output[0] = made.graph.node[1].input[0] = ESCAPE
    yield "in values and nodes", made
    made = relu()
    made.graph.input[0].name = made.graph.node[0].input[0] = ESCAPE
    made.graph.output[0].name = made.graph.node[0].output[0] = ESCAPE + "y"
    yield "in inputs and outputs", made
    yield "in an operator", model([node(ESCAPE, "x", "y")])
    yield (
        "in an operator of a domain",
        model([node(ESCAPE, "x", "y", domain=ESCAPE)], imports=[(ESCAPE, 1)]),
    )
    yield "in a function", model(
        [node(ESCAPE, "x", "y", domain=ESCAPE)], functions=[function(ESCAPE, [node("Relu", "a", "b")], domain=ESCAPE)],
        imports=[(ESCAPE, 1)],
    )  # fmt: skip
    yield "in a symbol", relu(x=value("x", (ESCAPE, 3)))
    made = relu()
    made.producer_name = made.producer_version = made.doc_string = made.domain = ESCAPE
    made.metadata_props.add(key=ESCAPE, value=ESCAPE)
    yield "in metadata", made
    yield (
        "in a weight",
        model(
            [node("MatMul", f"x {ESCAPE}w", "y")],
            [tensor(ESCAPE + "w", np.ones((3, 3)), np.float32)],
        ),
    )
    yield "in an operand that is missing", model([node("Relu", ESCAPE, "y")])
    yield (
        "in a location",
        model([node("Add", "x w", "y")], [external("w", (2, 3), location=ESCAPE)]),
    )
    yield "in an attribute", model([node("Relu", "x", "y", **{ESCAPE: ESCAPE})])
    made = relu()
    made.graph.node[0].metadata_props.add(key=ESCAPE, value=ESCAPE)
    made.graph.node[0].doc_string = ESCAPE
    yield "in a node's metadata", made
    made = model([node("Relu", "x", "y")])
    configuration = made.configuration.add()
    configuration.name, configuration.num_devices = ESCAPE, 1
    yield "in a device", made


def protobuf() -> Iterator[tuple[str, bytes]]:
    good = relu().SerializeToString()
    yield "empty", b""
    yield "one byte", b"\x08"
    yield "a huge varint", b"\x08" + b"\xff" * 9 + b"\x01" + good
    yield "a field that claims 2^40 bytes", good + b"\x3a\xff\xff\xff\xff\xff\x1f"
    yield "zeros", bytes(1000)
    yield "groups opened and never closed", good + b"\x0b" * 5000
    yield "graphs in graphs", _deep(5000)
    yield "twice behind itself", good + good
    yield "unknown fields", good + b"\xfa\x7f\x05hello" * 100
    yield "not UTF-8 everywhere", good.replace(b"Relu", b"\xff\xfe\xfd\xfc")
    yield (
        "a name that is not UTF-8",
        model([node("Relu", "x", "hh"), node("Neg", "hh", "y")])
        .SerializeToString()
        .replace(b"hh", b"\xff\xfe"),
    )
    yield (
        "a function name that is not UTF-8",
        model(
            [node("ff", "x", "y", domain="f")],
            functions=[function("ff", [node("Relu", "a", "b")])],
            imports=[("f", 1)],
        )
        .SerializeToString()
        .replace(b"ff", b"\xff\xfe"),
    )
    yield (
        "a symbol that is not UTF-8",
        relu(x=value("x", ("NN", 3))).SerializeToString().replace(b"NN", b"\xff\xfe"),
    )
    yield "a zip bomb's name", b"PK\x03\x04" + bytes(100)
    yield "text", b"ir_version: 8\n" * 100
    yield "a hundred thousand metadata entries", _metadata(100_000)
    yield "no graph", ModelProto(ir_version=8).SerializeToString()


def _deep(depth: int) -> bytes:
    body = b""
    for _ in range(depth):
        body = b"\x32" + _varint(len(body)) + body  # AttributeProto.g
        body = b"\x2a" + _varint(len(body)) + body  # NodeProto.attribute
        body = b"\x0a" + _varint(len(body)) + body  # GraphProto.node
    return b"\x08\x08" + b"\x3a" + _varint(len(body)) + body + b"\x42\x02\x10\x11"


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def _metadata(count: int) -> bytes:
    made = relu()
    for i in range(count):
        made.metadata_props.add(key=f"k{i}", value="v")
    return made.SerializeToString()


def constants() -> Iterator[tuple[str, ModelProto]]:
    for count in (0, 2, 3):
        kinds = dict(
            itertools.islice(
                {"value_float": 1.0, "value_int": 1, "value_string": "a"}.items(), count
            )
        )
        yield (
            f"Constant with {count} values",
            model([node("Constant", "", "c", **kinds), node("Add", "x c", "y")]),
        )  # type: ignore[arg-type]
    yield "Constant with operands", model([node("Constant", "x", "y", value_float=1.0)])
    yield (
        "Constant of 10^6 strings",
        model([node("Constant", "", "y", value_strings=["a"] * 10**6)]),
    )
    yield "Concat of 20 000", model([node("Concat", " ".join(["x"] * 20_000), "y", axis=0)])
    yield "Sum of 20 000", model([node("Sum", " ".join(["x"] * 20_000), "y")])
    yield "no operands", model([node("Relu", "", "y")])
    yield "too many operands", model([node("Relu", "x x x", "y")])
    yield "too many results", model([node("Relu", "x", "y z v")])
    yield "empty operands", model([node("Add", " x", "y")])
    yield "no results", _no_results()


def _no_results() -> ModelProto:
    made = model([node("Relu", "x", "y"), node("Relu", "x", "z")])
    del made.graph.node[1].output[:]
    return made


def sparse() -> Iterator[tuple[str, ModelProto]]:
    for what, dims, values, indices in (
        ("16 GiB", (2**32,), [1.0], [0]), ("2^62", (2**31, 2**31), [1.0], [0]), ("outside", (2, 3), [1.0], [99]),
        ("negative", (2, 3), [1.0], [-1]), ("lengths differ", (2, 3), [1.0, 2.0], [0]), ("no dims", (), [1.0], [0]),
        ("good", (2, 3), [1.0], [4]), ("unsorted", (2, 3), [1.0, 2.0], [4, 1]),
    ):  # fmt: skip
        made = model([node("Add", "x w", "y")])
        one = made.graph.sparse_initializer.add(dims=list(dims))
        one.values.CopyFrom(tensor("w", values, np.float32))
        one.indices.CopyFrom(tensor("", indices, np.int64))
        yield f"weight: {what}", made
        constant = helper.make_node("Constant", [], ["w"])
        attribute = constant.attribute.add(
            name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR
        )
        attribute.sparse_tensor.CopyFrom(one)
        yield f"Constant: {what}", model([constant, node("Add", "x w", "y")])


def control_flow() -> Iterator[tuple[str, ModelProto]]:
    body = graph(
        [node("Identity", "c", "d"), node("Add", "s s", "t")],
        [value("i", (), INT64), value("c", (), 9), value("s", (2, 3))], [value("d", (), 9), value("t", (2, 3))],
    )  # fmt: skip
    for count in (0, -1, 10**9, 2**62):
        weights = [tensor("n", count), tensor("go", True)]
        yield f"Loop of {count}", model([node("Loop", "n go x", "y", body=body)], weights)
    growing = graph(
        [node("Identity", "c", "d"), node("Concat", "s s", "t", axis=0)],
        [value("i", (), INT64), value("c", (), 9), value("s", None)], [value("d", (), 9), value("t", None)],
    )  # fmt: skip
    yield (
        "Loop that doubles its state",
        model([node("Loop", "n go x", "y", body=growing)], [tensor("n", 60), tensor("go", True)]),
    )
    yield (
        "Loop of an empty body",
        model([node("Loop", "n go x", "y", body=graph([]))], [tensor("n", 3), tensor("go", True)]),
    )
    yield "If of no branches", model([node("Cast", "x", "c", to=9), node("If", "c", "y")])
    yield (
        "If on a matrix",
        model(
            [
                node("Cast", "x", "c", to=9),
                node("If", "c", "y", then_branch=_leaf(0), else_branch=_leaf(1)),
            ]
        ),
    )
    yield (
        "Scan of more inputs than there are",
        model([node("Scan", "x x", "y", body=body, num_scan_inputs=2**31)]),
    )
    yield "Scan of -1 inputs", model([node("Scan", "x x", "y", body=body, num_scan_inputs=-1)])
    yield (
        "SequenceAt of an empty sequence",
        model([node("SequenceEmpty", "", "s"), node("SequenceAt", "s i", "y")], [tensor("i", 0)]),
    )
    yield (
        "SplitToSequence by 0",
        model(
            [node("SplitToSequence", "x k", "s"), node("ConcatFromSequence", "s", "y", axis=0)],
            [tensor("k", 0)],
        ),
    )


def quantized() -> Iterator[tuple[str, ModelProto]]:
    for scale in (0.0, float("nan"), float("inf"), -1.0, 1e-45):
        weights = [tensor("s", scale, np.float32), tensor("z", 3, np.int8)]
        yield (
            f"scale {scale}",
            model(
                [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")],
                weights,
            ),
        )
    weights = [tensor("s", [1.0] * 7, np.float32), tensor("z", [0] * 5, np.int8)]
    yield (
        "scales of another length",
        model(
            [
                node("QuantizeLinear", "x s z", "q", axis=9),
                node("DequantizeLinear", "q s z", "y", axis=-9),
            ],
            weights,
        ),
    )


def opsets() -> Iterator[tuple[str, ModelProto]]:
    for version in (0, -1, 1, 2**31 - 1, 2**62, -(2**63)):
        made = relu()
        made.opset_import[0].version = version
        yield f"opset {version}", made
    for ir in (0, -1, 1, 2, 99, 2**62):
        made = relu()
        made.ir_version = ir
        yield f"IR {ir}", made
    made = relu()
    made.opset_import.append(made.opset_import[0])
    yield "imported twice", made
    made = relu()
    made.opset_import.add(domain="", version=9)
    yield "imported twice, differently", made
    made = relu()
    made.opset_import[0].domain = "ai.onnx"
    yield "the default domain by its name", made
    for domain in (
        "com.microsoft",
        "ai.onnx.ml",
        "ai.onnx.preview.training",
        "com.ms.internal.nhwc",
    ):
        yield (
            f"nonsense of {domain}",
            model([node("Nonsense", "x", "y", domain=domain)], imports=[(domain, 1)]),
        )
        yield f"unimported {domain}", model([node("Gelu", "x", "y", domain=domain)])


def recipes() -> Iterator[tuple[str, bytes]]:
    """Hostile files for `--config`."""
    yield "passes of a number", b"passes = [1]"
    yield "passes of lists", b'passes = [["a"]]'
    yield "arrays 5000 deep", b"passes = " + b"[" * 5000 + b"]" * 5000
    yield "tables 5000 deep", b"a = " + b"{a=" * 5000 + b"1" + b"}" * 5000
    yield "dotted 5000 deep", b".".join([b"a"] * 5000) + b" = 1"
    yield "a number of 5000 digits", b"verify.threads = " + b"9" * 5000
    yield "a dim of 5000 digits", b"verify.dims = {N = " + b"9" * 5000 + b"}"
    yield "a timeout of 5000 digits", b"verify.timeout = " + b"9" * 5000
    yield "a requirement of 5000 digits", b'require = {nodes = "<=' + b"9" * 5000 + b'"}'
    yield "a requirement that is a list", b"require = {nodes = [1]}"
    yield "a date", b"preset = 2020-01-01"
    yield "a table for a preset", b"preset = {a = 1}"
    yield "infinity", b"verify.timeout = inf"
    yield "not a number", b"verify.tolerance = nan"
    yield "memory of nothing", b'verify.max_memory = ""'
    yield "memory of a list", b"verify.max_memory = [1]"
    yield "threads true", b"verify.threads = true"
    yield "threads 10^9", b"verify.threads = 1000000000"
    yield "seeds of text", b'verify.seeds = ["a"]'
    yield "seeds of -1", b"verify.seeds = [-1]"
    yield "seeds of 2^70", b"verify.seeds = [1180591620717411303424]"
    yield "inputs of numbers", b"verify.inputs = [1]"
    yield "dims of text", b'verify.dims = {N = "a"}'
    yield "dims of lists", b"verify.dims = {N = [1]}"
    yield "merge of nonsense", b'merge = "sometimes"'
    yield "provider of nonsense", b'verify.provider = "tpu"'
    yield "models of numbers", b"models = 1"
    yield "models of a list", b"[[models]]\na = 1"
    yield "an escape in a key", b'"\\u001b[31m" = 1'
    yield "an escape in a value", b'preset = "\\u001b[31mred"'
    yield "not UTF-8", b"\xff\xfe"
    yield "zeros", bytes(100)
    yield "a megabyte of keys", b"".join(b"k%d = 1\n" % i for i in range(60_000))
    yield (
        "a pass with an option of 5000 digits",
        b'passes = "fold-constant{max_growth=' + b"9" * 5000 + b'}"',
    )
    yield "a pass with an option of nothing", b'passes = "fold-constant{max_growth=}"'
    yield "a glob of stars", b'[models."' + b"*" * 3000 + b'x"]\npreset = "default"'


def words() -> Iterator[tuple[str, list[str]]]:
    """Hostile options of `optimize model.onnx --dry-run --no-verify` and `grad`."""
    long = "9" * 5000
    for option in ("--dim=N=" + long, "--timeout=" + long, "--max-memory=" + long, "--threads=" + long, "--seed=" + long,
                   "--max-rewrites=" + long, "--passes=" + "a," * 5000, "--passes=" + "{" * 5000, "--inline=" + "*" * 5000,
                   "--input=" + "x" * 5000, "--timeout=nan", "--timeout=inf", "--timeout=-1", "--max-memory=-1",
                   "--max-memory=1e99", "--preset=" + ESCAPE, "--config=" + "x" * 5000, "--json=", "--json=/",
                   "--json=/dev/full", "--dim=" + ESCAPE + "=1", "--threads=100000", "--threads=0"):  # fmt: skip
        yield option[:40], ["optimize", "model.onnx", "--dry-run", option]
    for option in ("--target=" + long, "--wrt=" + "[" * 5000, "--checkpoint=" + long, "--checkpoint=" + long + "MB",
                   "--checkpoint=start:@", "--names=" + "{}" * 5000, "--names={0}", "--target=" + ESCAPE, "--wrt=" + ESCAPE,
                   "--plugin=/dev/null", "--plugin=" + "x" * 5000, "--seed=" + long, "--wrt=", "--target=-1",
                   "--target=99999999999999999999", "--target=1e5"):  # fmt: skip
        yield option[:40], ["grad", "model.onnx", "-o", "out.onnx", "--no-verify", option]
