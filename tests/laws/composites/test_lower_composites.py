"""onnxgrad/laws/composites/lower_composites.py: operators as the chains that are faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rewriting import Done, apply, assert_same_results, model_of


def lowered(text: str, constants: Any = None, *, opset: int = 23, provider: str = "cpu") -> Done:
    passes = f"lower-composites{{provider={provider}}}"
    return apply(model_of(text, constants, opset=opset), passes, "remove-unused", "fold-constant")


GROUPS = "g (float[{0}] x, float[6] s, float[6] b) => (float[{0}] y) {{ y = GroupNormalization <num_groups = 3, epsilon = 0.01> (x, s, b) }}"


@pytest.mark.parametrize("shape", ["2,6,4,5", "N,6,H,W", "2,6,7", "2,6,2,3,2"])
@pytest.mark.parametrize("opset", [21, 22, 24])
def test_group_normalization(shape: str, opset: int) -> None:
    done = lowered(GROUPS.format(shape), opset=opset)
    assert done.count("InstanceNormalization") == 1 and not done.count("GroupNormalization")
    done.prove()


@pytest.mark.parametrize("alpha", ["", "<alpha = 0.5>"])
def test_swish(alpha: str) -> None:
    done = lowered(f"g (float[2,S] x) => (float[2,S] y) {{ y = Swish {alpha} (x) }}", opset=24)
    assert done.ops[-2:] == ["Sigmoid", "Mul"]
    done.prove()


SKIP = "g (float[2,S,8] x, float[2,S,8] r, float[8] g, float[8] b, float[8] c) => (float[2,S,8] y{0}) {{ {1} }}"
SKIPS = {
    "all": ("", "y = com.microsoft.SkipLayerNormalization <epsilon = 0.001> (x, r, g, b, c)"),
    "without bias": ("", "y = com.microsoft.SkipLayerNormalization <epsilon = 0.001> (x, r, g, b)"),
    "without beta": ("", "y = com.microsoft.SkipLayerNormalization <epsilon = 0.001> (x, r, g)"),
    "default epsilon": ("", "y = com.microsoft.SkipLayerNormalization (x, r, g, b)"),
    "with its sum": (", float[2,S,8] z", "y, , , z = com.microsoft.SkipLayerNormalization <epsilon = 0.001> (x, r, g, b, c)"),
    "simplified": ("", "y = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.001> (x, r, g)"),
    "simplified, default epsilon": ("", "y = com.microsoft.SkipSimplifiedLayerNormalization (x, r, g)"),
    "simplified, bias and sum": (", float[2,S,8] z", "y, , , z = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.001> (x, r, g, c)"),
}  # fmt: skip


@pytest.mark.parametrize(("more", "body"), SKIPS.values(), ids=SKIPS)
def test_skip_layer_normalization(more: str, body: str) -> None:
    done = lowered(SKIP.format(more, body))
    assert not any("Skip" in name for name in done.ops) and "Sum" in done.ops
    done.prove()


def test_a_sum_that_nothing_fuses() -> None:
    """onnxruntime makes an Add in front of a LayerNormalization its SkipLayerNormalization, seven times as slow."""
    text = "g (float[2,S,8] x, float[2,S,8] r, float[8] g, float[8] b{0}) => (float[2,S,8] y{1}) {{ a = Add(x, {2}) y = LayerNormalization(a, g, b) }}"
    done = lowered(text.format("", "", "r"))
    assert done.ops == ["Sum", "LayerNormalization"]
    done.prove()
    assert lowered(text.format("", ", float[2,S,8] a", "r")).ops == ["Add", "LayerNormalization"]
    wider = lowered(text.format(", float[8] c", "", "c"))
    assert wider.ops == ["Add", "LayerNormalization"] and "one shape" in wider.declined


@pytest.mark.parametrize("operands", ["x, t", "t, x"])
def test_a_sum_with_a_constant_of_its_shape(operands: str) -> None:
    """Embeddings plus a table of positions, at fixed sizes: fused as any other sum."""
    text = f"g (float[1,3,8] x, float[8] g, float[8] b) => (float[1,3,8] y) {{ a = Add({operands}) y = LayerNormalization(a, g, b) }}"
    table = np.linspace(-1, 1, 24, dtype=np.float32).reshape(1, 3, 8)
    done = lowered(text, {"t": table})
    assert done.ops == ["Sum", "LayerNormalization"]
    done.prove()
    row = lowered(text, {"t": table[:, :1]})
    assert row.ops == ["Add", "LayerNormalization"] and "one shape" in row.declined


@pytest.mark.parametrize("operator", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_the_default_epsilon_of_tiny_values(operator: str) -> None:
    """onnxruntime's default is 1e-12 for both: 1e-5 makes values of 1e-3 smaller by a third."""
    done = lowered(SKIP.format("", f"y = com.microsoft.{operator} (x, r, g)"))
    rng = np.random.default_rng(0)
    shapes = {
        v.name: [d.dim_value or 3 for d in v.type.tensor_type.shape.dim]
        for v in done.before.graph.input
    }
    feeds = {
        name: (rng.standard_normal(shape) * 1e-3).astype(np.float32)
        for name, shape in shapes.items()
    }
    assert_same_results(done, feeds=feeds)


STAY = {
    "of 20, by group": (GROUPS.replace("[6]", "[3]").format("2,6,4"), 20, "one scale for each group"),
    "half precision": (GROUPS.replace("float", "float16").format("2,6,4"), 21, "another dtype"),
    "an older opset": (SKIP.format("", SKIPS["all"][1]), 16, "needs opset 17"),
    "an older opset, simplified": (SKIP.format("", SKIPS["simplified"][1]), 22, "needs opset 23"),
    "a bias that is a matrix": (SKIP.replace("float[8] c", "float[2,8] c").format("", SKIPS["all"][1]), 23, "not a vector"),
    "a wider skip": (SKIP.replace("float[2,S,8] r", "float[3,2,S,8] r").format("", SKIPS["all"][1]), 23, "the addend and the input differ in size"),
    "its mean": (SKIP.format(", float[2,S,1] m", "y, m = com.microsoft.SkipLayerNormalization (x, r, g, b)"), 23, "its mean or its deviation is read"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "opset", "reason"), STAY.values(), ids=STAY)
def test_what_stays(text: str, opset: int, reason: str) -> None:
    done = lowered(text, opset=opset)
    assert not done.trace.rewrites and reason in done.declined


def test_elsewhere_nothing_is_known() -> None:
    assert not lowered(GROUPS.format("2,6,4"), provider="cuda").trace.rewrites
