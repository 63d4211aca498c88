"""What the tests of laws share: a pass on a graph given as text, and results compared bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto

from onnxgrad.verify import run
from tests.helpers import parse
from tests.passes.common import Done, apply, model_of

SPECIAL = [np.nan, -0.0, 0.0, np.inf, -np.inf, 1e-7, -1e-7, 1.5, -1.5, 7.0, -7.0, 6.0, 1.0, 60000.0]
NUMPY = {"float": np.float32, "double": np.float64, "float16": np.float16}


def special(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    """NaN, infinities, zeros of both signs and numbers, as many as onnxruntime has ways to work on them."""
    return np.random.default_rng(seed).choice(np.array(SPECIAL, dtype), shape)


def after(text: str, passes: str, constants: dict[str, Any] | None = None, **options: Any) -> Done:
    """What passes make of a graph."""
    return apply(model_of(text, constants, **options), f"{passes},remove-unused")


def ops(done: Done) -> list[str]:
    """The operators of the main graph, Constants left out."""
    return [b.op for b in done.block.bindings if b.op != "Constant"]


def bits(model: ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """Results without onnxruntime's own optimisations, as bytes."""
    found = run(model, feeds, optimize=False)
    return {name: (v.dtype, v.shape, v.tobytes()) for name, v in found.items() if isinstance(v, np.ndarray)}


def assert_same_bits(done: Done, **feeds: Any) -> None:
    """The same results before and after, whatever the bits are."""
    assert bits(done.before, feeds) == bits(done.after, feeds)


__all__ = ["NUMPY", "after", "assert_same_bits", "ops", "parse", "special"]
