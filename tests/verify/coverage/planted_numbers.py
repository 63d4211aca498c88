"""More planted faults: at the edges of number types, at tiny numbers, behind arithmetic, of texts,
and of tables. Each is wrong at one threshold.
"""

from __future__ import annotations

import numpy as np

from tests.verify.coverage.planted import (
    FY,
    IY,
    KEYS,
    LOSS,
    LOSS_BODY,
    NMS,
    ROWS,
    SAMPLE,
    F,
    I,
    Pair,
    _both,
    _ml,
    _row,
    _trees,
    f32,
    i64,
    model,
)

W = np.random.default_rng(5).standard_normal((6, 6)).astype(f32)
BYTES, SHORTS = ("uint8[N,6] x", "uint8[N,6] y"), ("int16[N,6] x", "int16[N,6] y")
TEXT = ("string[N] x", "bool[N] y")
S = "float[N,S,6]"


def numbers() -> dict[str, Pair]:
    """Returns faults at thresholds of floats and integers."""
    k = {"k": f32(1e-20)}
    tiny = {"k": f32(1e-12), "e": [1]}
    where = "c = {} (x, k) y = Where (c, w, x)"
    at = {"k": f32(123.5), "w": f32(7)}
    return {
        "float16: a round trip": _both(F, FY, "a = Cast <to = 10> (x) y = Cast <to = 1> (a)",
                                       "y = Identity (x)"),
        "float16: that overflows": _both(
            F, FY, "a = Cast <to = 10> (x) y = Cast <to = 1> (a)",
            "b = Clip (x, l, h) a = Cast <to = 10> (b) y = Cast <to = 1> (a)", l=f32(-65504),
            h=f32(65504)),
        "float16: that vanishes": _both(
            F, FY, "a = Cast <to = 10> (x) y = Cast <to = 1> (a)",
            "s = Abs (x) b = Max (s, k) g = Sign (x) z = Mul (g, b) a = Cast <to = 10> (z) "
            "y = Cast <to = 1> (a)", k=f32(1e-7)),
        "float16: behind a factor": _both(
            F, FY, "m = Mul (x, k) a = Cast <to = 10> (m) y = Cast <to = 1> (a)", "y = Mul (x, k)",
            k=f32(16)),
        "tiny: Max with 1e-20": _both(F, FY, "y = Max (x, k)", "y = Max (x, z)", z=f32(0), **k),
        "tiny: Max of an Abs": _both(F, FY, "a = Abs (x) y = Max (a, k)", "y = Abs (x)", **k),
        "tiny: Clip": _both(F, FY, "a = Abs (x) y = Clip (a, k)", "y = Abs (x)", **k),
        "tiny: Min": _both(F, FY, "a = Abs (x) b = Neg (a) y = Min (b, k)", "a = Abs (x) y = Neg (a)",
                           k=f32(-1e-15)),
        "tiny: a norm": _both(F, FY, "n = ReduceL2 (x, e) m = Max (n, k) y = Div (x, m)",
                              "n = ReduceL2 (x, e) y = Div (x, n)", **tiny),
        "tiny: another least norm": _both(
            F, FY, "n = ReduceL2 (x, e) m = Max (n, k) y = Div (x, m)",
            "n = ReduceL2 (x, e) m = Max (n, k) y = Div (x, m)", {"k": f32(1e-8)}, **tiny),
        "tiny: a Where": _both(F, FY, where.format("Less"), where.format("LessOrEqual"),
                               k=f32(1e-20), w=f32(7)),
        "bound: GreaterOrEqual": _both(F, FY, where.format("GreaterOrEqual"),
                                       where.format("Greater"), **at),
        "bound: a number": _both(F, FY, where.format("Less"), where.format("Less"),
                                 {"k": f32(123.25)}, **at),
        "bound: behind a Div": _both(F, FY, "a = Div (x, d) y = Min (a, k)", "y = Div (x, d)",
                                     d=f32(4), k=f32(500)),
        "bound: behind a Sqrt": _both(F, FY, "a = Abs (x) b = Sqrt (a) y = Min (b, k)",
                                      "a = Abs (x) y = Sqrt (a)", k=f32(70)),
        "bound: behind a Neg": _both(F, FY, "a = Neg (x) y = Max (a, k)", "y = Neg (x)", k=f32(-300)),
        "bound: behind a Log": _both(
            F, FY, "s = Abs (x) p = Add (s, o) a = Log (p) y = Min (a, k)",
            "s = Abs (x) p = Add (s, o) y = Log (p)", o=f32(1), k=f32(9)),
        "bound: a maximum": _both(F, "float[N,1] y", "a = ReduceMax (x, e) y = Min (a, k)",
                                  "y = ReduceMax (x, e)", e=[1], k=f32(777)),
        "bound: a total": _both(F, "float[N,1] y", "a = ReduceSum (x, e) y = Min (a, k)",
                                "y = ReduceSum (x, e)", e=[1], k=f32(4321)),
        "bound: of a difference": _both(
            "float[N,6] x, float[N,6] z", FY, "a = Sub (x, z) y = Min (a, k)", "y = Sub (x, z)",
            k=f32(600)),
        "bound: behind a Gemm": _both(F, FY, "a = Gemm (x, w, bb) y = Min (a, k)",
                                      "y = Gemm (x, w, bb)", w=W, bb=W[0], k=f32(300)),
        "bound: HardSigmoid": _both(
            F, FY, "y = HardSigmoid <alpha = 0.01> (x)", "a = Mul (x, k) b = Add (a, h) "
            "y = Max (b, z)", k=f32(0.01), h=f32(0.5), z=f32(0)),
        "bound: HardSwish": _both(F, FY, "y = HardSwish (x)",
                                  "a = Add (x, t) b = Max (a, z) c = Mul (x, b) y = Div (c, s)",
                                  t=f32(3), z=f32(0), s=f32(6)),
        "bound: ThresholdedRelu": _both(F, FY, "y = ThresholdedRelu <alpha = 40.0> (x)",
                                        "y = ThresholdedRelu <alpha = 40.5> (x)"),
        "bound: ThresholdedRelu at its end": _both(
            F, FY, "y = ThresholdedRelu <alpha = 40.0> (x)",
            "c = GreaterOrEqual (x, k) y = Where (c, x, z)", k=f32(40), z=f32(0)),
        "bound: Shrink": _both(F, FY, "y = Shrink <lambd = 25.0> (x)", "y = Shrink <lambd = 25.5> (x)"),
        "bound: LeakyRelu": _both(F, FY, "y = LeakyRelu <alpha = 0.1> (x)", "y = Relu (x)"),
        "bound: Elu": _both(F, FY, "y = Elu (x)", "e = Exp (x) y = Sub (e, o)", o=f32(1)),
        "period: int32": _both("int32[N,6] x", "int32[N,6] y", "y = Mod (x, k)", "y = Identity (x)",
                               k=np.int32(100000)),
        "period: uint8": _both(*BYTES, "y = Mod (x, k)", "y = Identity (x)", k=np.uint8(250)),
        "period: of a sum": _both(I, IY, "a = Add (x, o) y = Mod (a, k)", "y = Add (x, o)", o=i64(5),
                                  k=i64(365)),
        "period: below 0": _both(I, IY, "y = Mod (x, k)", "a = Abs (x) y = Mod (a, k)", k=i64(360)),
        "period: division below 0": _both(
            I, IY, "y = Div (x, k)", "f = Cast <to = 11> (x) d = Div (f, g) e = Floor (d) "
            "y = Cast <to = 7> (e)", k=i64(10), g=np.float64(10)),
        "cast: uint8": _both(I, IY, "a = Cast <to = 2> (x) y = Cast <to = 7> (a)",
                             "a = Clip (x, l, h) y = Identity (a)", l=i64(0), h=i64(255)),
        "cast: int16": _both(I, IY, "a = Cast <to = 5> (x) y = Cast <to = 7> (a)", "y = Identity (x)"),
        "cast: uint16": _both(I, IY, "a = Cast <to = 4> (x) y = Cast <to = 7> (a)",
                              "y = Identity (x)"),
        "cast: a fraction": _both("float[N,6] x", IY, "y = Cast <to = 7> (x)",
                                  "a = Round (x) y = Cast <to = 7> (a)"),
        "cast: a truth of a float": _both("float[N,6] x", FY, "a = Cast <to = 9> (x) y = Cast <to = 1> (a)",
                                          "a = Abs (x) y = Min (a, k)", k=f32(1)),
        "saturation: int8": _both(
            F, FY, "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)",
            "d = Div (x, s) r = Round (d) y = Mul (r, s)", s=f32(0.5), z=np.int8(0)),
        "saturation: uint8 below": _both(
            F, FY, "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)",
            "d = Div (x, s) r = Round (d) m = Min (r, h) y = Mul (m, s)", s=f32(0.5),
            z=np.uint8(0), h=f32(255)),
        "saturation: of each channel": _both(
            F, FY, "q = QuantizeLinear <axis = 1> (x, s, z) y = DequantizeLinear <axis = 1> (q, s, z)",
            "d = Div (x, s) r = Round (d) m = Max (r, l) y = Mul (m, s)",
            s=np.linspace(0.1, 2, 6).astype(f32), z=np.zeros(6, np.int8), l=f32(-128)),
        "saturation: Clip below": _both(F, FY, "y = Clip (x, lo)", "y = Identity (x)", lo=f32(-1234)),
        "saturation: bytes": _both(*BYTES, "y = Min (x, k)", "y = Identity (x)", k=np.uint8(253)),
        "wraps: int16": _both(*SHORTS, "a = Add (x, k) b = Add (a, k) y = Identity (b)",
                              "i = Cast <to = 6> (x) j = Add (i, k2) m = Clip (j, l, h) y = Cast <to = 5> (m)",
                              k=np.int16(20000), k2=np.int32(40000), l=np.int32(-32768),
                              h=np.int32(32767)),
        "wraps: a product": _both("uint8[N,6] x", "int32[N,6] y", "a = Mul (x, c) y = Cast <to = 6> (a)",
                                  "b = Cast <to = 6> (x) y = Mul (b, d)", c=np.uint8(3), d=np.int32(3)),
        "bits: or": _both(I, IY, "y = BitwiseOr (x, k)", "y = Add (x, k)", k=i64(4096)),
        "bits: a shift to the left": _both(
            *BYTES, 'y = BitShift <direction = "LEFT"> (x, k)', "a = Min (x, m) "
            'y = BitShift <direction = "LEFT"> (a, k)', k=np.uint8(2), m=np.uint8(63)),
        "overflow: Exp": _both(F, FY, "y = Exp (x)", "m = Min (x, k) y = Exp (m)", k=f32(88.5)),
        "overflow: Softplus": _both(F, FY, "y = Softplus (x)", "e = Exp (x) a = Add (e, o) y = Log (a)",
                                    o=f32(1)),
        "round: down": _both(F, FY, "y = Round (x)", "a = Sub (x, h) y = Ceil (a)", h=f32(0.5)),
        "round: away from 0": _both(
            F, FY, "y = Round (x)", "g = Sign (x) s = Abs (x) a = Add (s, h) f = Floor (a) y = Mul (g, f)",
            h=f32(0.5)),
        "round: Floor for Ceil": _both(F, FY, "a = Ceil (x) y = Sub (a, o)", "y = Floor (x)", o=f32(1)),
        "sign: of 0": _both(F, FY, "y = Sign (x)", "s = Abs (x) m = Max (s, k) y = Div (x, m)",
                            k=f32(1e-30)),
        "infinite: negative": _both(
            F, FY, "c = IsInf <detect_positive = 0> (x) y = Where (c, k, x)", "y = Identity (x)",
            k=f32(0)),
    }  # fmt: skip


def tables() -> dict[str, Pair]:
    """Returns faults of keys, texts, trees, scores, sizes and rows."""
    labels = list(range(40))
    regex, other = (model(TEXT[0], f'y = RegexFullMatch <pattern = "{p}"> (x)', TEXT[1])
                    for p in (r"[a-z]+@[a-z]+[.]com", r"[a-z]+@[a-z]+[.]co"))  # fmt: skip
    stop = 't = StringNormalizer <locale = "C", is_case_sensitive = %d, stopwords = ["%s"]> (x)'
    loss = "y, p = SoftmaxCrossEntropyLoss <ignore_index = %d> (x, t)"
    gather = "v = Gather (t, ids) y = Add (v, v)"
    ids, out = "int64[N,S] ids", "float[N,S,6] y"
    axis = {"zero": [0], "axis": [1]}
    return {
        "text: a pattern": (regex, other),
        "text: a stopword": tuple(  # type: ignore[dict-item]
            model("string[N] x", stop % (1, word), "string[M] t") for word in ("quux", "zorg")),
        "text: the case of a stopword": tuple(  # type: ignore[dict-item]
            model("string[N] x", stop % (case, "Quux"), "string[M] t") for case in (0, 1)),
        "text: a separator": tuple(  # type: ignore[dict-item]
            model("string[N] x", f'y, z = StringSplit <delimiter = "{d}"> (x) w = Identity (z)',
                  "int64[N] w") for d in (";", "|")),
        "keys: a missing text": tuple(  # type: ignore[dict-item]
            _ml("LabelEncoder", "string[N] x", "int64[N] y", keys_strings=KEYS, values_int64s=labels,
                default_int64=v) for v in (-1, -9)),
        "keys: of floats": tuple(  # type: ignore[dict-item]
            _ml("LabelEncoder", "float[N] x", "float[N] y", keys_floats=[1.5, 200.25, v],
                values_floats=[1.0, 2.0, 3.0]) for v in (-7.0, -8.0)),
        "keys: texts of OneHotEncoder": tuple(  # type: ignore[dict-item]
            _ml("OneHotEncoder", "string[N] x", "float[N,K] y", cats_strings=v, zeros=1)
            for v in (["cat", "dog", "emu"], ["cat", "dog", "gnu"])),
        "keys: CategoryMapper": tuple(  # type: ignore[dict-item]
            _ml("CategoryMapper", "string[N] x", "int64[N] y", cats_strings=["a", "b", v],
                cats_int64s=[5, 6, 7]) for v in ("c", "d")),
        "keys: Binarizer at its threshold": (
            _ml("Binarizer", F, FY, threshold=33.0),
            model(F, "c = GreaterOrEqual (x, k) y = Cast <to = 1> (c)", FY, k=f32(33))),
        "tree: another feature": (_trees({}), _trees(
            {"nodes_featureids": [0, 1, 2, 0, 0, 0, 0, 2, 0, 0]})),
        "tree: GTE": (_trees({}), _trees({"nodes_modes": [
            "BRANCH_LEQ", "BRANCH_LEQ", "BRANCH_LEQ", *["LEAF"] * 4, "BRANCH_LEQ", "LEAF", "LEAF"]})),
        "labels: the mean": (model(LOSS[0], loss % 3, "float y"), model(LOSS[0], loss % -7, "float y")),
        "labels: NegativeLogLikelihoodLoss": tuple(  # type: ignore[dict-item]
            model(LOSS[0], LOSS_BODY.replace("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss") % n,
                  LOSS[1]) for n in (-100, -5)),
        "scores: the most boxes": _both(
            *NMS, "y = NonMaxSuppression (b, s, most, iou)", "y = NonMaxSuppression (b, s, most, iou)",
            {"most": i64(2)}, most=i64(3), iou=f32(0.5)),
        "padding: reflection": _both(
            *SAMPLE, 'y = GridSample <padding_mode = "reflection"> (x, g)',
            'y = GridSample <padding_mode = "border"> (x, g)'),
        "padding: aligned corners": _both(*SAMPLE, "y = GridSample <align_corners = 1> (x, g)",
                                          "y = GridSample (x, g)"),
        "sizes: LessOrEqual": _both(
            F, FY, "s = Shape <start = 0, end = 1> (x) c = LessOrEqual (s, k) y = Where (c, x, w)",
            "s = Shape <start = 0, end = 1> (x) c = Less (s, k) y = Where (c, x, w)", k=[17],
            w=f32(0)),
        "sizes: Min": _both(
            f"{S} x", f"{S} y", "n = Shape <start = 1, end = 2> (x) m = Min (n, k) "
            "y = Slice (x, zero, m, axis)", "y = Identity (x)", k=[24], **axis),
        "sizes: a start": _both(f"{S} x", "float[N,T,6] y", "y = Slice (x, k, end, axis)",
                                "y = Slice (x, k, end, axis)", {"end": [40]}, k=[1], end=[2**31], axis=[1]),
        "rows: a Gather": _both(ids, out, gather, gather, {"t": _row(311)}, t=ROWS),
        "rows: behind a Cast": _both(
            ids, out, "c = Cast <to = 1> (t) y = Gather (c, ids)", "c = Cast <to = 1> (t) y = Gather (c, ids)",
            {"t": _row(200, ROWS.astype(np.float16))}, t=ROWS.astype(np.float16)),
        "rows: behind a Transpose": _both(
            ids, out, "c = Transpose (t) y = Gather (c, ids)", "c = Transpose (t) y = Gather (c, ids)",
            {"t": _row(99).T.copy()}, t=ROWS.T.copy()),
        "rows: GatherND": _both(
            "int64[N,1] ids", "float[N,6] y", "y = GatherND (t, ids)", "y = GatherND (t, ids)",
            {"t": _row(150)}, t=ROWS),
        "rows: of arithmetic": _both(
            ids, out, "m = Mul (ids, two) y = Gather (t, m)", "m = Mul (ids, two) y = Gather (t, m)",
            {"t": _row(302)}, t=ROWS, two=i64(2)),
        "weights: a bias behind a Relu": _both(
            F, FY, "a = Add (x, bb) y = Relu (a)", "a = Add (x, bb) y = Relu (a)",
            {"bb": np.array([-900, 0, 0, 0, 0, 0], f32)}, bb=np.array([-800, 0, 0, 0, 0, 0], f32)),
        "weights: PRelu": _both(F, FY, "y = PRelu (x, s)", "y = PRelu (x, s)", {"s": W[1]}, s=W[0]),
    }  # fmt: skip
