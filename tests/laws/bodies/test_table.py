"""onnxgrad/laws/bodies/table.py and grad/rules/onnxruntime.py: operators by their tables of cases, one case of each in the default run.

Each case is judged twice: the oracle's kernel against onnxruntime's (where its CPU has one; the operators of diffusion
models have none, so theirs is the formula of the schema in numpy), and the gradient against the oracle's differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxgrad import gradient
from onnxgrad.errors import InputError
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_model, check_op, normal, op_model, positive

DOMAINS = {"com.microsoft": 1}


@dataclass
class Case:
    """One call: operands in order (None: left out), those that are `fixed` as initializers."""

    op: str
    operands: dict[str, np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)
    fixed: str = ""
    kernel: bool = True

    @property
    def node(self) -> onnx.NodeProto:
        names = ["" if v is None else n for n, v in self.operands.items()]
        while not names[-1]:
            names.pop()
        return helper.make_node(
            self.op, names, self.outputs, domain="com.microsoft", **self.attributes
        )

    @property
    def given(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        present = {n: v for n, v in self.operands.items() if v is not None}
        return {n: v for n, v in present.items() if n not in self.fixed}, {
            n: v for n, v in present.items() if n in self.fixed
        }

    def model(self, opset: int = 21) -> onnx.ModelProto:
        feeds, constants = self.given
        outputs = [name for name in self.outputs if name]
        return op_model(
            self.node, feeds, constants=constants, outputs=outputs, domains=DOMAINS, opset=opset
        )

    def __str__(self) -> str:
        shapes = "-".join(
            "" if v is None else "x".join(map(str, v.shape)) for v in self.operands.values()
        )
        return f"{self.op}-{shapes}-{self.attributes}"


# ---- attention with a cache ----------------------------------------------------------------------

# B, S, slots of the cache, keys of each row
STEPS: list[tuple[int, int, int | None, list[int]]] = [
    (1, 3, 2, [5]),
    (2, 4, None, [4, 4]),
    (2, 4, 0, [4, 4]),
    (2, 1, 6, [4, 6]),
    (1, 3, 8, [6]),
    (2, 4, 4, [4, 2]),
]
HEADS, KEYS = 4, 2
KINDS: list[dict[str, Any]] = [
    {},
    {"scale": 0.3},
    {"softcap": 2.0},
    {"local_window_size": 2},
    {"smooth_softmax": 1},
    {"causal": 0},
    {"softcap": 1.5, "local_window_size": 3, "smooth_softmax": 1},
]


def grouped(step: int, kind: int, size: int, extra: str = "") -> Case:
    """GroupQueryAttention; size 16 for onnxruntime's rotary kernel."""
    (rows, queries, slots, ends), attributes = STEPS[step], {**KINDS[kind]}
    ends = ends if "causal" in attributes or max(ends) > queries else [max(ends)] * rows
    new = {
        "query": normal(rows, queries, HEADS * size),
        "key": normal(rows, queries, KEYS * size, seed=1),
        "value": normal(rows, queries, KEYS * size, seed=2),
    }
    if extra == "packed":
        new = {"query": np.concatenate([*new.values()], axis=2), "key": None, "value": None}
    cache = None if slots is None else normal(rows, KEYS, slots, size, seed=3)
    operands: dict[str, np.ndarray | None] = {
        **new,
        "pk": cache,
        "pv": None if cache is None else cache[..., ::-1].copy(),
        "seqlens": np.array(ends, np.int32) - 1,
        "total": np.array(max(ends), np.int32),
        **dict.fromkeys(("cos", "sin", "at", "bias", "sink", "ks", "vs", "qn", "kn")),
    }
    if "turned" in extra or "placed" in extra:
        angles = normal(16, size // 2)
        operands |= {"cos": np.cos(angles), "sin": np.sin(angles)}
        attributes |= {"do_rotary": 1, "rotary_interleaved": kind % 2}
    if extra == "placed":
        operands["at"] = np.arange(rows * queries).reshape(rows, queries) + 2
    if extra == "bias":
        operands["bias"] = normal(1, HEADS, queries, max(ends))
    if extra == "sink":
        operands["sink"] = normal(HEADS)
    if extra == "normed":
        operands |= {"qn": positive(size), "kn": positive(size, seed=2)}
        attributes["k_norm_epsilon"] = 0.01
    shown = {"scores": 1, "weights": 2}.get(extra)
    outputs = ("y", "k", "v", *(["qk"] if shown else []))
    attributes |= {
        "num_heads": HEADS,
        "kv_num_heads": KEYS,
        **({"qk_output": shown} if shown else {}),
    }
    # the CPU's kernel refuses scales of queries and keys
    return Case("GroupQueryAttention", operands, attributes, outputs, kernel=extra != "normed")


EXTRAS = ["", "packed", "turned", "placed", "bias", "sink", "normed", "scores", "weights"]


def attention() -> Iterator[Case]:
    mask = np.array([[1] * 8, [0] * 3 + [1] * 5], np.int32)
    for later in (1, 0):
        for seen in (mask, None):
            yield Case(
                "MultiHeadAttention",
                {
                    "q": normal(2, 3, 8), "k": normal(2, 3, 8, seed=1), "v": normal(2, 3, 8, seed=2),
                    "b": normal(24), "mask": seen, "added": normal(1, 2, 3, 8),
                    "pk": normal(2, 2, 5, 4), "pv": normal(2, 2, 5, 4, seed=9),
                },
                {"num_heads": 2, "unidirectional": later},
                ("y", "k2", "v2", "qk"),
            )  # fmt: skip
            yield Case(
                "Attention",
                {
                    "x": normal(2, 3, 5), "w": normal(5, 24), "b": normal(24), "mask": seen,
                    "past": normal(2, 2, 2, 5, 4),
                },
                {"num_heads": 2, "unidirectional": later},
                ("y", "present"),
            )  # fmt: skip


def rotary() -> Iterator[Case]:
    for at in (np.array([[1, 3, 0], [5, 5, 2]]), np.array([2])):
        for interleaved in (0, 1):
            for shape, part in (
                ((2, 3, 8), 0),
                ((2, 2, 3, 4), 0),
                ((2, 3, 12), 4),
                ((2, 2, 3, 6), 4),
            ):
                cosines = np.cos(normal(9, 2))
                yield Case(
                    "RotaryEmbedding",
                    {"x": normal(*shape), "at": at, "cos": cosines, "sin": np.sqrt(1 - cosines**2)},
                    {"interleaved": interleaved, **({"num_heads": 2, "rotary_embedding_dim": part} if part else {})},
                )  # fmt: skip


# ---- quantised operands --------------------------------------------------------------------------


def integers(high: int, *shape: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.random.default_rng([high, *shape]).integers(0, high, shape).astype(dtype)


def quantised() -> Iterator[Case]:
    for kind in (1, 0):
        for n, k in ((3, 7), (3, 16), (2, 24)):
            operands = {
                "x": normal(2, 5, k),
                "q": integers(256, (n * k + 1) // 2),
                "s": positive(-(-n * k // 16)),
            }
            yield Case(
                "MatMulBnb4",
                operands,
                {"N": n, "K": k, "block_size": 16, "quant_type": kind},
                fixed="q",
            )
    rows = np.array([[1, 0, 7], [3, -1, 1]])
    for bits in (4, 2, 8):
        for zeros in (integers(256, 5, -(-2 * bits // 8)), None):
            operands = {"d": integers(256, 5, 4 * bits), "i": rows, "s": positive(5, 2), "z": zeros}
            attributes = {"block_size": 16, "bits": bits, "quantize_axis": 1, "gather_axis": 0}
            yield Case("GatherBlockQuantized", operands, attributes, fixed="dz")
    for dtype in (ml_dtypes.int4, ml_dtypes.uint4):
        for shape, axis, by in (
            ((3, 2, 32), -1, 1),
            ((3, 32, 2), 1, 0),
            ((32, 4), 0, 1),
            ((32, 4), 0, 0),
        ):
            scales = [-(-n // 16) if a == axis % len(shape) else n for a, n in enumerate(shape)]
            for zeros in (None, integers(7, *scales, dtype=dtype)):
                operands = {
                    "d": integers(7, *shape, dtype=dtype), "i": rows.astype(np.int32), "s": positive(*scales),
                    "z": zeros,
                }  # fmt: skip
                attributes = {"block_size": 16, "quantize_axis": axis, "gather_axis": by}
                yield Case("GatherBlockQuantized", operands, attributes, fixed="dz")
    for dtype in (np.int8, np.uint8, np.int16, np.uint16):
        q, z = integers(100, 3, 4, 2, dtype=dtype), integers(9, 4, dtype=dtype)
        for scale, zero, attributes in (
            (positive(4), z, {"axis": 1}), (positive(), z[0], {}), (positive(2), None, {"axis": -1}),
        ):  # fmt: skip
            operands = {"q": q, "s": np.float32(scale), "z": zero}
            yield Case("DequantizeLinear", operands, attributes, fixed="qz")


# ---- diffusion models: no kernels on the CPU -----------------------------------------------------


def diffusion() -> Iterator[Case]:
    for activation, last in ((1, 1), (0, 1), (1, 0), (0, 0)):
        attributes = {"activation": activation, "channels_last": last}
        x = normal(2, 3, 4, 6) if last else normal(2, 6, 3, 4)
        each = {"x": x, "g": positive(6), "b": normal(6)}
        yield Case("GroupNorm", each, {"groups": 3, **attributes})
        one = normal(2, 1, 1, 6) if last else normal(2, 6, 1, 1)
        for skip in (normal(*x.shape, seed=3), normal(2, 6), one):
            for bias in (normal(6, seed=2), None):
                yield Case(
                    "SkipGroupNorm", {**each, "s": skip, "c": bias}, {"groups": 2, "epsilon": 1e-3, **attributes},
                    ("y", "t"),
                )  # fmt: skip
    image, line = normal(1, 5, 4, 4), normal(2, 3, 8)
    window = {"group": 2, "pads": [1, 0, 1, 0], "strides": [2, 1], "kernel_shape": [3, 2]}
    yield Case("NhwcConv", {"x": image, "w": normal(6, 3, 2, 2), "b": normal(6)}, window)
    yield Case("NhwcConv", {"x": image, "w": normal(6, 3, 2, 4)})
    yield Case("BiasSplitGelu", {"x": line, "b": normal(8)})
    yield Case("BiasAdd", {"x": line, "b": normal(8), "s": normal(2, 3, 8, seed=1)})
    for axis, inner, shape in ((3, 1, (2, 1, 1, 5)), (-1, 0, (4, 5)), (2, 1, (2, 1, 4, 5))):
        operands = {"x": normal(2, 3, 4, 5), "b": normal(*shape)}
        yield Case("BiasSoftmax", operands, {"axis": axis, "is_inner_broadcast": inner})
    for bias in (normal(5), None):
        yield Case("GemmFastGelu", {"x": normal(2, 3, 4), "w": normal(4, 5), "b": bias})


# ---- what ONNX has too ---------------------------------------------------------------------------


def tensor_operators() -> Iterator[Case]:
    for k in (np.array(1), np.array(-1), None):
        for upper in ({"upper": 0}, {}):
            yield Case("Trilu", {"x": normal(2, 3, 4), "k": k}, upper)
    for pads in (np.array([[0, 1, -1, 0]]), np.array([0, 1, 2, 0])):
        for value in (np.array([0.5], np.float32), None):
            yield Case("Pad", {"x": normal(3, 4), "p": pads, "v": value}, fixed="p")
        for mode in ("edge", "reflect"):
            yield Case("Pad", {"x": normal(3, 4), "p": abs(pads)}, {"mode": mode}, fixed="p")
    yield Case("GatherND", {"x": normal(3, 4, 2), "i": np.array([[0, 1], [2, 2]], np.int32)})
    yield Case("GatherND", {"x": normal(3, 4, 2), "i": np.array([[0], [2]])})
    for axis in (1, 0, -1):
        yield Case("ExpandDims", {"x": normal(3, 4), "a": np.array(axis, np.int32)}, fixed="a")
    grid = {"x": normal(1, 2, 4, 5), "g": normal(1, 3, 2, 2) * 0.6}
    yield Case("GridSample", grid)
    for mode in ("bilinear", "nearest", "bicubic"):
        for outside in ("zeros", "border", "reflection"):
            for aligned in (0, 1):
                attributes = {"mode": mode, "padding_mode": outside, "align_corners": aligned}
                yield Case("GridSample", grid, attributes)
    yield Case("Inverse", {"x": normal(2, 3, 3) + 3 * np.eye(3, dtype=np.float32)})
    yield Case("Inverse", {"x": normal(3, 3) + 3 * np.eye(3, dtype=np.float32)})
    for metric in ({"metric": "euclidean"}, {}, {"metric": "sqeuclidean"}):
        yield Case("CDist", {"a": normal(3, 4), "b": normal(5, 4, seed=1)}, metric)


def every() -> Iterator[Case]:
    yield from (
        grouped(i, j, 4, e) for e in EXTRAS for i in range(len(STEPS)) for j in range(len(KINDS))
    )
    for family in (attention, rotary, quantised, diffusion, tensor_operators):
        yield from family()


EVERY = list(every())
FOR_GPUS = {case.op for case in diffusion()}
FIRST = list({c.op: c for c in reversed(EVERY)}.values())


@pytest.mark.parametrize("case", FIRST, ids=lambda c: c.op)
def test_one_of_each(case: Case) -> None:
    feeds, constants = case.given
    outputs = [name for name in case.outputs if name]
    check_op(
        case.node, feeds, constants=constants, outputs=outputs, domains=DOMAINS, symbolic=True, seeds=(0,)
    )  # fmt: skip


# every eighth of GroupQueryAttention's 378 cases, every case of the others
CHECKED = [c for i, c in enumerate(EVERY) if c.op != "GroupQueryAttention" or i % 8 == 0]


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(CHECKED)), ids=[str(c) for c in CHECKED])
def test_gradients(place: int) -> None:
    case = CHECKED[place]
    feeds, constants = case.given
    outputs = [name for name in case.outputs if name]
    check_op(
        case.node,
        feeds,
        constants=constants,
        outputs=outputs,
        domains=DOMAINS,
        opset=(18, 21)[place % 2],
        seeds=(0,),
    )


@pytest.mark.slow
def test_the_oracle_computes_what_onnxruntime_does() -> None:
    compared = 0
    grouped_cases = (
        grouped(i, j, 16, e) for e in EXTRAS for i in range(len(STEPS)) for j in range(len(KINDS))
    )  # fmt: skip
    for case in [*(c for c in EVERY if c.op != "GroupQueryAttention"), *grouped_cases]:
        if not case.kernel or case.op in FOR_GPUS:
            continue
        feeds, _ = case.given
        model = case.model()
        wanted, got = run(model, feeds), reference(model, feeds)
        for name in wanted:
            np.testing.assert_allclose(
                got[name], wanted[name], atol=2e-5, rtol=2e-5, err_msg=f"{case}: {name}"
            )
        compared += 1
    assert compared > 400


LINEAR = {
    "BiasAdd",
    "DequantizeLinear",
    "ExpandDims",
    "GatherBlockQuantized",
    "GatherND",
    "Pad",
    "Trilu",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in FIRST if c.op not in LINEAR], ids=lambda c: c.op)
def test_second_derivatives(case: Case) -> None:
    feeds, _ = case.given
    model = case.model()
    wrt = [n for n, v in feeds.items() if v.dtype == np.float32]
    once = gradient(model, wrt, case.outputs[0], adjoint="input")
    shape = reference(model, feeds)[case.outputs[0]].shape
    seeds = {f"{case.outputs[0]}_grad": normal(*shape, seed=5)}
    check_model(once, {**feeds, **seeds}, wrt, target=f"{wrt[0]}_grad", seeds=(0,))


PLAIN = grouped(0, 0, 4)
BY_OP = {case.op: case for case in FIRST}


@pytest.mark.parametrize(
    ("case", "attributes", "operands", "reason"),
    [
        (PLAIN, {"k_quant_type": "PER_TENSOR"}, {"ks": positive(1)}, "k_quant_type PER_TENSOR of"),
        (
            grouped(1, 0, 4),
            {"sliding_window_cache": 1, "local_window_size": 2},
            {},
            "sliding_window_cache without a cache",
        ),
        (BY_OP["RotaryEmbedding"], {"is_packed_batching": 1}, {}, "is_packed_batching"),
        (BY_OP["MatMulBnb4"], {"transB": 0}, {}, "transB = 0"),
        (BY_OP["GroupNorm"], {"activation": 2}, {}, "activation 2"),
        (BY_OP["CDist"], {"metric": "cosine"}, {}, "its metric 'cosine'"),
        (BY_OP["GatherBlockQuantized"], {}, {"d": normal(5, 16)}, "data of type"),
    ],
)
def test_what_is_declined(
    case: Case, attributes: dict[str, Any], operands: dict[str, np.ndarray], reason: str
) -> None:
    case = Case(
        case.op,
        case.operands | operands,
        case.attributes | attributes,
        case.outputs[:1],
        case.fixed,
    )
    feeds, constants = case.given
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in feeds.items()
    ]
    graph = helper.make_graph(
        [case.node],
        "g",
        values,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(v, n) for n, v in constants.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    wrt = next(n for n, v in feeds.items() if v.dtype == np.float32)
    # a body decides without the types of results, which CDist's rule reads
    start = "" if case.op == "CDist" else "^"
    with pytest.raises(
        InputError, match=f"{start}no gradient (or lowering )?of .*{case.op} at .*{reason}"
    ):
        gradient(
            helper.make_model(graph, opset_imports=imports, ir_version=10), wrt, adjoint="input"
        )
