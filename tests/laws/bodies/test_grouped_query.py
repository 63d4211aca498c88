"""onnxgrad/laws/bodies/grouped_query.py: quantised caches, windowed ones, padded chunks of queries.

The oracle's kernel is compared with onnxruntime's, the gradient with the oracle's differences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_model, normal
from tests.helpers import onnxruntime_version
from tests.laws.bodies.test_table import HEADS, KEYS, Case, grouped

pytestmark = pytest.mark.skipif(
    onnxruntime_version() < (1, 32), reason="onnxruntime 1.32 added these caches"
)
SIZE = 32  # the kernel's windows of four bits need a multiple of 32

KINDS = ("", "PER_TENSOR", "PER_CHANNEL")
# kind, bits, window and slots beyond it (0: no windowed cache), queries, past positions, chunk
CALLS = [
    (kind, bits, window, queries, past, chunk)
    for kind in KINDS
    for bits in ((8, 4) if kind else (0,))
    for window in (None, (3, 0), (2, 3))
    for queries, past, chunk in ((1, [4], False), (1, [7, 2], False), (5, [6], False), (3, [0], False), (3, [5, 1], True))
    if kind or window
]  # fmt: skip


def quantising(
    kind: str, bits: int, window: tuple[int, int] | None, queries: int, past: list[int], chunk: bool
) -> tuple[Case, dict[str, list[int]]]:
    """Returns a call, and the specified rows of results and slots of caches of each batch entry."""
    rows, draw = len(past), np.random.default_rng(len(past))
    added = [queries - i for i in range(rows)] if chunk else [queries] * rows
    ends = [a + b for a, b in zip(past, added)]
    total = max(ends) + chunk
    slots = sum(window) if window else total + queries
    half = 1 << bits - 1 if bits else 0
    width = SIZE // 2 if bits == 4 else SIZE
    dtype = np.uint8 if bits == 4 else np.int8
    operands: dict[str, np.ndarray | None] = {
        "query": normal(rows, queries, HEADS * SIZE),
        "key": normal(rows, queries, KEYS * SIZE, seed=1),
        "value": normal(rows, queries, KEYS * SIZE, seed=2),
        "pk": normal(rows, KEYS, slots, SIZE, seed=3),
        "pv": normal(rows, KEYS, slots, SIZE, seed=4),
        "seqlens": np.array(ends, np.int32) - 1,
        "total": np.array(total, np.int32),
        **dict.fromkeys(("cos", "sin", "at", "bias", "sink", "ks", "vs", "qn", "kn")),
    }
    attributes: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": KEYS}
    if kind:
        attributes |= {
            "k_quant_type": kind,
            "v_quant_type": kind,
            "kv_cache_bit_width": bits,
            "softcap": 2.0,
        }
        for new, cache, scale in (("key", "pk", "ks"), ("value", "pv", "vs")):
            shape = (1,) if kind == "PER_TENSOR" else (1, KEYS, 1, SIZE)
            by = (draw.uniform(0.5, 1.0, shape) * 2 / half).astype(np.float32)
            # multiples of the scale: far from the places where the rounding jumps
            steps = draw.integers(-half, half, (rows, queries, KEYS * SIZE))
            low, high = (0, 256) if bits == 4 else (-half, half)
            operands |= {
                new: (steps * by.reshape(-1)).astype(np.float32),
                cache: draw.integers(low, high, (rows, KEYS, slots, width)).astype(dtype),
                scale: by,
            }
    kept = ends
    if window:
        attributes |= {"sliding_window_cache": 1, "local_window_size": window[0]}
        kept = [
            end - (window[1] + 1) * (max(end - window[0], 0) // (window[1] + 1)) for end in ends
        ]
    if chunk:
        operands["lengths"] = np.array(added, np.int32)
    case = Case("GroupQueryAttention", operands, attributes, ("y", "k", "v"))
    return case, {"y": added, "k": kept, "v": kept}


@pytest.mark.covering
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_quantised_and_windowed_caches(call: Any) -> None:
    case, valid = quantising(*call)
    (feeds, _), model = case.given, case.model()
    wanted, got = run(model, feeds), reference(model, feeds)
    for name, counts in valid.items():
        for b, count in enumerate(counts):
            of = np.s_[b, :count] if name == "y" else np.s_[b, :, :count]
            np.testing.assert_allclose(got[name][of], wanted[name][of], atol=2e-5)
    floats = [n for n, v in feeds.items() if v.dtype == np.float32]
    # rounding: the derivative by what is quantised is zero, that by the scales is not
    wrt = [n for n in floats if not (call[0] and n in ("key", "value"))]
    check_model(model, feeds, wrt, target="y", seeds=(0,))


@pytest.mark.covering
@pytest.mark.parametrize("attributes", [{}, {"do_rotary": 1, "local_window_size": 2}])
def test_a_padded_chunk_of_queries(attributes: dict[str, int]) -> None:
    """Rows behind the valid ones are padding, whose results are not specified."""
    rows, queries, size, ends, valid = 3, 3, 16, [3, 6, 4], np.array([3, 2, 1], np.int32)
    given = grouped(0, 0, size).operands | {
        "query": normal(rows, queries, HEADS * size),
        "key": normal(rows, queries, KEYS * size, seed=1),
        "value": normal(rows, queries, KEYS * size, seed=2),
        "pk": normal(rows, KEYS, 8, size, seed=3),
        "pv": normal(rows, KEYS, 8, size, seed=4),
        "seqlens": np.array(ends, np.int32) - 1,
        "total": np.array(8, np.int32),
        "lengths": valid,
    }
    if attributes:
        angles = normal(16, size // 2)
        given |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    heads = {"num_heads": HEADS, "kv_num_heads": KEYS}
    case = Case("GroupQueryAttention", given, heads | attributes, ("y", "k", "v"))
    (feeds, _), model = case.given, case.model()
    wanted, got = run(model, feeds), reference(model, feeds)
    for b, (count, end) in enumerate(zip(valid, ends)):
        np.testing.assert_allclose(got["y"][b, :count], wanted["y"][b, :count], atol=1e-5)
        for name in ("k", "v"):
            np.testing.assert_allclose(got[name][b, :, :end], wanted[name][b, :, :end], atol=1e-5)
    check_model(model, feeds, ["query", "key", "value", "pk", "pv"], seeds=(0,))


@pytest.mark.covering
@pytest.mark.parametrize("call", [c for c in CALLS if c[0] and c[2] is None], ids=str)
def test_straight_through_a_quantised_cache(call: Any) -> None:
    """At multiples of the scale, keys and values receive what they receive without quantisation."""
    case, _ = quantising(*call)
    feeds, _ = case.given
    seeds = {"y_grad": normal(*feeds["query"].shape, seed=7)}
    wrt = ["query", "key", "value"]
    found = reference(gradient(case.model(), wrt, "y", adjoint="input", ste=True), feeds | seeds)
    floats = dict(case.operands)
    for cache, scale in (("pk", "ks"), ("pv", "vs")):
        q = feeds[cache]
        if call[1] == 4:
            q = np.stack([q & 15, q >> 4], axis=-1).reshape(*q.shape[:-1], -1).astype(np.int8) - 8
        by = feeds[scale] if call[0] == "PER_TENSOR" else feeds[scale].reshape(1, KEYS, 1, SIZE)
        floats |= {cache: (q * by).astype(np.float32), scale: None}
    attributes = {k: v for k, v in case.attributes.items() if "quant" not in k and "bit" not in k}
    plain = Case(case.op, floats, attributes, case.outputs)
    wanted = reference(gradient(plain.model(), wrt, "y", adjoint="input"), plain.given[0] | seeds)
    for name in wrt:
        np.testing.assert_allclose(
            found[f"{name}_grad"], wanted[f"{name}_grad"], atol=1e-5, err_msg=name
        )
