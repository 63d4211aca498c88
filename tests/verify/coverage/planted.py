"""Pairs of models for the sweep of planted faults: each is wrong at one threshold of one family of
operators, and the legal pairs over the same operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

f32, i64 = np.float32, np.int64
Pair = tuple[onnx.ModelProto, onnx.ModelProto]
_IMPORTS = '"" : 23, "com.microsoft" : 1, "ai.onnx.ml" : 3'


def model(given: str, body: str, result: str, **constants: Any) -> onnx.ModelProto:
    """Returns a model of one graph, with constants by name."""
    made = onnx.parser.parse_model(
        f"<ir_version: 10, opset_import: [{_IMPORTS}]> g ({given}) => ({result}) {{ {body} }}"
    )
    for name, value in constants.items():
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return made


def _both(given: str, result: str, a: str, b: str, other: Any = None, **constants: Any) -> Pair:
    """Returns the models of two bodies; `other`: constants of the second that differ."""
    return (
        model(given, a, result, **constants),
        model(given, b, result, **{**constants, **(other or {})}),
    )


I, F = "int64[N,6] x", "float[N,6] x"
IY, FY = "int64[N,6] y", "float[N,6] y"
ROWS = np.random.default_rng(0).standard_normal((400, 6)).astype(f32)


def _row(at: int, table: Any = ROWS) -> Any:
    other = table.copy()
    other[at] = other[at] * 3 if table.dtype.kind == "f" else -other[at]
    return other


def _trees(changed: dict[str, Any], ensemble: str = "TreeEnsembleRegressor") -> onnx.ModelProto:
    """Returns a model of two trees, with three and one inner nodes."""
    known: dict[str, Any] = {
        "nodes_treeids": [0] * 7 + [1] * 3,
        "nodes_nodeids": [*range(7), *range(3)],
        "nodes_featureids": [0, 1, 2, 0, 0, 0, 0, 3, 0, 0],
        "nodes_values": [0.5, 2.25, -7.0, 0, 0, 0, 0, 30.0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ"] * 3 + ["LEAF"] * 4 + ["BRANCH_LT", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 3, 5, 0, 0, 0, 0, 1, 0, 0],
        "nodes_falsenodeids": [2, 4, 6, 0, 0, 0, 0, 2, 0, 0],
        "nodes_missing_value_tracks_true": [0] * 10,
        "target_treeids": [0, 0, 0, 0, 1, 1],
        "target_nodeids": [3, 4, 5, 6, 1, 2],
        "target_ids": [0] * 6,
        "target_weights": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
        "n_targets": 1,
    }
    known |= changed
    node = helper.make_node(ensemble, ["x"], ["y"], domain="ai.onnx.ml", **known)
    made = model("float[N,4] x", "y = Identity (x)", "float[N,1] y")
    made.graph.node[0].CopyFrom(node)
    return made


def _ml(op: str, given: str, result: str, **attributes: Any) -> onnx.ModelProto:
    made = model(given, "y = Identity (x)", result)
    node = helper.make_node(op, ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    made.graph.node[0].CopyFrom(node)
    return made


KEYS = [f"word{i}" for i in range(40)]
NMS = ("float[1,12,4] b, float[1,2,12] s", "int64[M,3] y")
LOSS = ("float[N,5] x, int64[N] t", "float y")
LOSS_BODY = 'y = SoftmaxCrossEntropyLoss <ignore_index = %d, reduction = "sum"> (x, t)'
SAMPLE = ("float[1,2,5,5] x, float[1,3,3,2] g", "float[1,2,3,3] y")
SCALE, ZERO = f32(0.1), np.int8(0)


def faults() -> dict[str, Pair]:
    """Returns the planted faults by name; the word before the colon is the kind."""
    tree = {"nodes_modes": ["BRANCH_LT", *["BRANCH_LEQ"] * 2, *["LEAF"] * 4, "BRANCH_LT",
                            "LEAF", "LEAF"]}  # fmt: skip
    deep = {"nodes_values": [0.5, 2.25, -7.0, 0, 0, 0, 0, 30.001, 0, 0]}
    leaf = {"target_weights": [1.0, 2.0, 4.0, 8.0, 16.0, 33.0]}
    labels = list(range(40))
    swapped = [*labels[:33], 99, *labels[34:]]
    one_hot = {"ids": "int64[N,S] ids", "y": "float[N,S,6] y"}
    table = np.arange(400 * 6, dtype=np.int8).reshape(400, 6)
    scales = np.linspace(0.01, 0.02, 400).astype(f32)
    steep = scales.copy()
    steep[77] *= 2
    prefix = "p = Gather (t, i) z = Unsqueeze (p, zero) y = Add (x, z)"
    body = "s = Shape (x) n = Gather (s, one) i = Range (zero0, n, one0)" + prefix
    at_size = {"t": ROWS, "zero": [0], "one": i64(1), "zero0": i64(0), "one0": i64(1)}
    sequence = ("float[N,S,6] x", "float[N,S,6] y")
    slices = {"zero": [0], "axis": [1]}
    return {
        "period: Mod": _both(I, IY, "y = Mod (x, k)", "y = Identity (x)", k=i64(7)),
        "period: fmod": _both(F, FY, "y = Mod <fmod = 1> (x, k)", "y = Identity (x)", k=f32(7)),
        "period: another": _both(I, IY, "y = Mod (x, k)", "y = Mod (x, k)", {"k": i64(1001)},
                                 k=i64(1000)),
        "period: integer division": _both(I, IY, "y = Div (x, k)", "y = Sub (x, x)", k=i64(9)),
        "cast: int8": _both(I, IY, "a = Cast <to = 3> (x) y = Cast <to = 7> (a)",
                            "y = Identity (x)"),
        "cast: uint8 of a float": _both(F, FY, "a = Cast <to = 2> (x) y = Cast <to = 1> (a)",
                                        "a = Cast <to = 6> (x) y = Cast <to = 1> (a)"),
        "cast: truth": _both(I, IY, "a = Cast <to = 9> (x) y = Cast <to = 7> (a)",
                             "y = Identity (x)"),
        "cast: int32": _both(I, IY, "a = Cast <to = 6> (x) y = Cast <to = 7> (a)",
                             "y = Identity (x)"),
        "cast: a fraction below 0": _both("float[N,6] x", IY, "y = Cast <to = 7> (x)",
                                          "a = Floor (x) y = Cast <to = 7> (a)"),
        "saturation: QuantizeLinear": _both(
            F, FY, "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)",
            "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = Min (d, k)",
            s=SCALE, z=ZERO, k=f32(12.0)),
        "saturation: Clip": _both(F, FY, "y = Clip (x, lo, hi)", "y = Clip (x, lo, hi)",
                                  {"hi": f32(5.1)}, lo=f32(-5), hi=f32(5)),
        "saturation: Clip of integers": _both(I, IY, "y = Clip (x, lo, hi)", "y = Max (x, lo)",
                                              lo=i64(-500), hi=i64(500)),
        "saturation: narrow": _both(F, FY, "y = Clip (x, lo, hi)", "y = Clip (x, lo, hi)",
                                    {"hi": f32(0.3001)}, lo=f32(0.1), hi=f32(0.3)),
        "bound: Where of the second": _both(
            F, FY, "y = Identity (x)", "c = Greater (x, k) m = Neg (x) y = Where (c, m, x)",
            k=f32(70)),
        "bound: Less for LessOrEqual": _both(
            F, FY, "c = Less (x, k) y = Where (c, x, k2)", "c = LessOrEqual (x, k) "
            "y = Where (c, x, k2)", k=f32(3.25), k2=f32(9)),
        "bound: behind a Tanh": _both(
            F, FY, "a = Tanh (x) c = Greater (a, k) y = Where (c, k, a)", "y = Tanh (x)",
            k=f32(0.9999)),
        "bound: behind an affine": _both(
            F, FY, "a = Mul (x, m) b = Add (a, o) r = Relu (b) y = Mul (r, k)",
            "a = Mul (x, m) b = Add (a, o) y = Relu (b)", m=f32(0.001), o=f32(-77), k=f32(1.5)),
        "bound: a mean": _both(
            F, "float[N,1] y", "a = ReduceMean <keepdims = 1> (x, ax) y = Relu (a)",
            "y = ReduceMean <keepdims = 1> (x, ax)", ax=[1]),
        "overflow: Softmax": _both(F, FY, "y = Softmax (x)",
                                   "e = Exp (x) s = ReduceSum (e, ax) y = Div (e, s)", ax=[-1]),
        "overflow: Sigmoid": _both(
            F, FY, "y = Sigmoid (x)", "e = Exp (x) p = Add (e, one) y = Div (e, p)", one=f32(1)),
        "tree: LT for LEQ": (_trees({}), _trees(tree)),
        "tree: a threshold": (_trees({}), _trees(deep)),
        "tree: a leaf": (_trees({}), _trees(leaf)),
        "keys: LabelEncoder": tuple(  # type: ignore[dict-item]
            _ml("LabelEncoder", "string[N] x", "int64[N] y", keys_strings=KEYS, values_int64s=v,
                default_int64=-1) for v in (labels, swapped)),
        "keys: the default of LabelEncoder": tuple(  # type: ignore[dict-item]
            _ml("LabelEncoder", "int64[N] x", "int64[N] y", keys_int64s=labels, values_int64s=labels,
                default_int64=v) for v in (-1, -2)),
        "keys: OneHotEncoder": tuple(  # type: ignore[dict-item]
            _ml("OneHotEncoder", "int64[N] x", "float[N,K] y", cats_int64s=v, zeros=1)
            for v in ([3, 50, 700], [3, 50, 701])),
        "keys: Imputer": tuple(  # type: ignore[dict-item]
            _ml("Imputer", F, FY, imputed_value_floats=v, replaced_value_float=-999.0)
            for v in ([1.0] * 6, [1.0] * 5 + [2.0])),
        "keys: Imputer of NaN": tuple(  # type: ignore[dict-item]
            _ml("Imputer", F, FY, imputed_value_floats=[v], replaced_value_float=float("nan"))
            for v in (0.0, 1.0)),
        "keys: Binarizer": (_ml("Binarizer", F, FY, threshold=20.0),
                            _ml("Binarizer", F, FY, threshold=20.5)),
        "scores: NonMaxSuppression": _both(
            *NMS, "y = NonMaxSuppression (b, s, most, iou, least)",
            "y = NonMaxSuppression (b, s, most, iou, least)", {"least": f32(0.9)},
            most=i64(12), iou=f32(0.5), least=f32(0.97)),
        "overlaps: NonMaxSuppression": _both(
            *NMS, "y = NonMaxSuppression (b, s, most, iou)",
            "y = NonMaxSuppression (b, s, most, iou)", {"iou": f32(1)}, most=i64(12),
            iou=f32(0.5)),
        "labels: ignore_index": (model(LOSS[0], LOSS_BODY % -100, LOSS[1]),
                                 model(LOSS[0], LOSS_BODY % -1, LOSS[1])),
        "labels: another ignore_index": (model(LOSS[0], LOSS_BODY % 2, LOSS[1]),
                                         model(LOSS[0], LOSS_BODY % 9, LOSS[1])),
        "infinite: IsNaN": _both(F, FY, "c = IsNaN (x) y = Where (c, k, x)", "y = Identity (x)",
                                 k=f32(0)),
        "infinite: IsInf": _both(
            F, FY, "c = IsInf (x) y = Where (c, k, x)",
            "c = IsInf <detect_negative = 0> (x) y = Where (c, k, x)", k=f32(0)),
        "padding: GridSample": _both(*SAMPLE, 'y = GridSample <padding_mode = "zeros"> (x, g)',
                                     'y = GridSample <padding_mode = "border"> (x, g)'),
        "sizes: a comparison": _both(
            F, FY, "s = Shape <start = 0, end = 1> (x) c = Greater (s, k) y = Where (c, w, x)",
            "y = Identity (x)", k=[20], w=f32(0)),
        "sizes: a Slice": _both(
            *sequence, "y = Slice (x, zero, end, axis)", "y = Identity (x)", end=[20], **slices),
        "sizes: a longer Slice": _both(
            *sequence, "y = Slice (x, zero, end, axis)", "y = Slice (x, zero, end, axis)",
            {"end": [33]}, end=[32], **slices),
        "sizes: the last ones": _both(
            *sequence, "y = Slice (x, start, end, axis)", "y = Identity (x)", start=[-12],
            end=[2**31], axis=[1]),
        "rows: behind a Range": _both(*sequence, body, body, {"t": _row(40)}, **at_size),
        "rows: behind a Slice": _both(
            *sequence, "n = Shape <start = 1, end = 2> (x) p = Slice (t, zero, n) y = Add (x, p)",
            "n = Shape <start = 1, end = 2> (x) p = Slice (t, zero, n) y = Add (x, p)",
            {"t": _row(55)}, t=ROWS, zero=[0]),
        "rows: a Slice of positions": _both(
            *sequence,
            "n = Shape <start = 1, end = 2> (x) i = Slice (p, zero, n) " + prefix.replace(
                "Unsqueeze (p", "Unsqueeze (g").replace("p = Gather", "g = Gather"),
            "n = Shape <start = 1, end = 2> (x) i = Slice (p, zero, n) " + prefix.replace(
                "Unsqueeze (p", "Unsqueeze (g").replace("p = Gather", "g = Gather"),
            {"t": _row(55)}, t=ROWS, zero=[0], p=np.arange(400)),
        "rows: behind a Reshape": _both(
            one_hot["ids"], one_hot["y"], "v = Reshape (t, shape) y = Gather (v, ids)",
            "v = Reshape (t, shape) y = Gather (v, ids)", {"t": _row(77).reshape(-1)},
            t=ROWS.reshape(-1), shape=[400, 6]),
        "rows: behind a DequantizeLinear": _both(
            one_hot["ids"], one_hot["y"],
            "v = DequantizeLinear <axis = 0> (t, s) y = Gather (v, ids)",
            "v = DequantizeLinear <axis = 0> (t, s) y = Gather (v, ids)", {"t": _row(77, table)},
            t=table, s=scales),
        "rows: a scale": _both(
            one_hot["ids"], one_hot["y"],
            "v = DequantizeLinear <axis = 0> (t, s) y = Gather (v, ids)",
            "v = DequantizeLinear <axis = 0> (t, s) y = Gather (v, ids)", {"s": steep}, t=table,
            s=scales),
        "rows: OneHot": _both(
            one_hot["ids"], one_hot["y"], "h = OneHot (ids, depth, of) y = MatMul (h, t)",
            "h = OneHot (ids, depth, of) y = MatMul (h, t)", {"t": _row(77)}, t=ROWS,
            depth=i64(400), of=np.array([0, 1], f32)),
        "bits: a mask": _both(I, IY, "y = BitwiseAnd (x, k)", "y = Abs (x)", k=i64(255)),
        "bits: a shift": _both("uint8[N,6] x", "uint8[N,6] y",
                               'a = BitShift <direction = "RIGHT"> (x, k) '
                               'y = BitShift <direction = "LEFT"> (a, k)',
                               'y = BitwiseAnd (x, m)', k=np.uint8(5), m=np.uint8(0xC0)),
        "round: a half": _both(F, FY, "y = Round (x)", "a = Add (x, h) y = Floor (a)", h=f32(0.5)),
        "sign: 0": _both(F, FY, "a = Sign (x) y = Mul (a, k)",
                         "c = Less (x, z) y = Where (c, m, k)", k=f32(2), m=f32(-2), z=f32(0)),
    }  # fmt: skip


def deeper() -> dict[str, Pair]:
    """Returns faults at thresholds behind other operators, in bodies, and of several elements."""
    weights = np.random.default_rng(3).standard_normal((6, 5)).astype(f32)
    edges = np.array([1, 20, 300, 400, 500, 600], f32)
    moved = np.where(edges == 600, f32(601), edges)
    scaled = _classifier(
        "s", _ml_node("Scaler", ["x"], offset=[1.0, 2.0, 3.0], scale=[0.5, 2.0, 4.0])
    )
    columns = _classifier("s", helper.make_node("Concat", list("abc"), ["s"], axis=1), "abc")
    branch = """m = ReduceMean <keepdims = 0> (x) c = Greater (m, k) y = If (c) <
      then_branch = t () => (float[N,6] p) { p = %s },
      else_branch = e () => (float[N,6] q) { q = Identity (x) }>"""
    loop = """y = Loop (n, , x) <body = b (int64 i, bool on, float[N,6] s) => (bool go, float[N,6] r) {
      go = Identity (on) t = Add (s, s) r = %s (t, k) }>"""
    where = "c = Greater (x, k) y = Where (c, w, x)"
    turn = "y = RotaryEmbedding (x, c, s, p)"
    rotary = ("float[N,2,S,6] x, int64[N,S] p", "float[N,2,S,6] y")
    return {
        "bound: of each channel": _both(F, "bool[N,6] y", "y = Greater (x, k)", "y = Greater (x, k)",
                                        {"k": moved}, k=edges),
        "bound: edges of buckets": _both(
            "float[N] x", "int64[N] y",
            "u = Unsqueeze (x, e) c = Greater (u, k) d = Cast <to = 7> (c) "
            "y = ReduceSum <keepdims = 0> (d, e)",
            "u = Unsqueeze (x, e) c = GreaterOrEqual (u, k) d = Cast <to = 7> (c) "
            "y = ReduceSum <keepdims = 0> (d, e)", k=edges, e=[1]),
        "bound: behind a product": _both(F, "float[N,5] y", "a = MatMul (x, w) y = Min (a, k)",
                                         "y = MatMul (x, w)", w=weights, k=f32(40)),
        "bound: behind a square": _both(F, FY, "a = Mul (x, x) y = Min (a, k)", "y = Mul (x, x)",
                                        k=f32(1e7)),
        "bound: behind two factors": _both(
            "int64[N,6] x, int64[N,6] z", IY, "a = Mul (x, z) y = Mod (a, k)", "y = Mul (x, z)",
            k=i64(100)),
        "bound: behind a norm": _both(F, "float[N,1] y", "a = ReduceL2 (x, e) y = Min (a, k)",
                                      "y = ReduceL2 (x, e)", e=[1], k=f32(1e4)),
        "bound: one large element": _both(
            F, FY, "n = LayerNormalization (x, g) c = Greater (n, k) y = Where (c, k, n)",
            "y = LayerNormalization (x, g)", g=np.ones(6, f32), k=f32(2.1)),
        "bodies: a branch": _both(F, FY, branch % "Neg (x)", "y = Identity (x)", k=f32(50)),
        "bodies: inside a branch": _both(F, FY, branch % "Clip (x, k, h)", branch % "Max (x, k)",
                                         k=f32(-0.5), h=f32(33)),
        "bodies: a Loop": _both(F, FY, loop % "Min", loop % "Sub", {"k": f32(0)}, n=i64(3),
                                k=f32(500)),
        "tree: behind a Scaler": (scaled([100.5, -40.25]), scaled([100.5, -40.75])),
        "tree: of columns": (columns([100.5, -40.25]), columns([100.5, -40.75])),
        "saturation: QLinearAdd": _both(
            "uint8[N,6] x", "uint8[N,6] y", "y = com.microsoft.QLinearAdd (x, s, z, c, s, z, s, z)",
            "a = com.microsoft.QLinearAdd (x, s, z, c, s, z, s, z) y = Min (a, m)", s=f32(0.1),
            z=np.uint8(0), c=np.uint8(17), m=np.uint8(254)),
        "wraps: uint8": _both("uint8[N,6] x", "int32[N,6] y", "a = Add (x, c) y = Cast <to = 6> (a)",
                              "b = Cast <to = 6> (x) y = Add (b, d)", c=np.uint8(100),
                              d=np.int32(100)),
        "sizes: a total": _both("float[N,S] x", "float[N,S] y",
                                "n = Size (x) c = Greater (n, k) y = Where (c, z, x)",
                                "y = Identity (x)", k=i64(100), z=f32(0)),
        "sizes: Trilu": _both("float[N,N] x", "float[N,N] y", "y = Trilu (x, k)",
                              "y = Identity (x)", k=i64(-15)),
        "sizes: padding": _both(
            "float[N,S] x", "float[N,T] y", "s = Shape <start = 1, end = 2> (x) d = Sub (k, s) "
            "m = Max (d, z) p = Concat <axis = 0> (o, m) y = Pad (x, p)",
            "s = Shape <start = 1, end = 2> (x) m = Sub (k, s) "
            "p = Concat <axis = 0> (o, m) y = Pad (x, p)", k=[20], z=[0], o=[0, 0, 0]),
        "rows: RotaryEmbedding": _both(*rotary, turn, turn, {"c": _row(100, ROWS[:, :3])},
                                       c=ROWS[:, :3].copy(), s=ROWS[:, 3:].copy()),
        "weights: chosen by a Where": _both(F, FY, where, where, {"w": np.arange(1, 7).astype(f32)},
                                            k=f32(1000), w=np.arange(6).astype(f32)),
    }  # fmt: skip


def _ml_node(op: str, inputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, ["s"], domain="ai.onnx.ml", **attributes)


def _classifier(of: str, before: onnx.NodeProto, inputs: str = "") -> Any:
    """Returns a function that makes a classifier behind another node, by its two thresholds."""

    def made(values: list[float]) -> onnx.ModelProto:
        found = model("float[N,3] x", "y = Identity (x)", "int64[N] y, float[N,3] z")
        node = helper.make_node(
            "TreeEnsembleClassifier", [of], ["y", "z"], domain="ai.onnx.ml",
            nodes_treeids=[0] * 5, nodes_nodeids=[*range(5)], nodes_featureids=[0, 1, 0, 0, 0],
            nodes_values=[*values, 0.0, 0.0, 0.0],
            nodes_modes=["BRANCH_LEQ", "BRANCH_GT", "LEAF", "LEAF", "LEAF"],
            nodes_truenodeids=[1, 3, 0, 0, 0], nodes_falsenodeids=[2, 4, 0, 0, 0],
            nodes_missing_value_tracks_true=[0] * 5, class_treeids=[0] * 3,
            class_nodeids=[2, 3, 4], class_ids=[0, 1, 2], class_weights=[1.0, 1.0, 1.0],
            classlabels_int64s=[5, 6, 7], post_transform="NONE",
        )  # fmt: skip
        del found.graph.node[:]
        found.graph.node.extend([before, node])
        if inputs:
            del found.graph.input[:]
            found.graph.input.extend(
                helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 1])
                for name in inputs
            )
        return found

    return made


def legal() -> Iterator[tuple[str, Pair]]:
    """Yields equal pairs over the same operators, by name."""
    for name, (a, _) in {**faults(), **deeper()}.items():
        yield f"itself: {name}", (a, a)
    yield (
        "Clip as Max and Min",
        _both(
            F,
            FY,
            "y = Clip (x, lo, hi)",
            "a = Max (x, lo) y = Min (a, hi)",
            lo=f32(-900),
            hi=f32(900),
        ),
    )
    yield (
        "Relu as a Where",
        _both(F, FY, "y = Relu (x)", "c = Greater (x, z) y = Where (c, x, z)", z=f32(0)),
    )
    yield "Softmax that cannot overflow", _both(
        F, FY, "y = Softmax (x)",
        "m = ReduceMax (x, ax) d = Sub (x, m) e = Exp (d) s = ReduceSum (e, ax) y = Div (e, s)",
        ax=[-1],
    )  # fmt: skip
    yield (
        "a bound that is never reached",
        _both(F, FY, "a = Tanh (x) y = Min (a, k)", "y = Tanh (x)", k=f32(2)),
    )
    yield "an Abs of a square", _both(F, FY, "a = Mul (x, x) y = Abs (a)", "y = Mul (x, x)")
    yield "Mod twice", _both(I, IY, "a = Mod (x, k) y = Mod (a, k)", "y = Mod (x, k)", k=i64(7))
    yield "a cast and back", _both(
        "int8[N,6] x", "int8[N,6] y", "a = Cast <to = 7> (x) y = Cast <to = 3> (a)",
        "y = Identity (x)",
    )  # fmt: skip
    yield "a Slice of everything", _both(
        "float[N,6] x", FY, "y = Slice (x, zero, end, axis)", "y = Identity (x)",
        zero=[0], end=[6], axis=[1],
    )  # fmt: skip
    yield "a size that is at least 1", _both(
        F, FY, "s = Shape <start = 1, end = 2> (x) c = Greater (s, k) y = Where (c, x, w)",
        "y = Identity (x)", k=[2], w=f32(0),
    )  # fmt: skip
