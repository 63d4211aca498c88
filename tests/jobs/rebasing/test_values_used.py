"""A derivative by a weight of an optimised file is that of the original, or refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.ir.origins import VALUES_USED as KEY
from onnxgrad.vocabulary import PRESETS
from tests.helpers import parse

# what reads a weight of a network, or is another weight with equal elements
READERS = (
    "{y} = MatMul ({x}, w)",
    "{y}t = Transpose (w) {y} = MatMul ({x}, {y}t)",
    "{y}a = Constant <value_ints = [1]> () {y}b = Constant <value_ints = [2]> () {y}s = Slice (w, {y}a, {y}b) {y} = Add ({x}, {y}s)",
    "{y}c = Constant <value_float = 0.3> () {y}m = Mul (w, {y}c) {y} = MatMul ({x}, {y}m)",
    "{y}n = ReduceL2 <axes = [1], keepdims = 0> (w) {y} = Mul ({x}, {y}n)",
    "{y}q = MatMul ({x}, w) {y} = Add ({y}q, b)",
    "{y} = LayerNormalization ({x}, g)",
    "{y} = LayerNormalization ({x}, h)",
    "{y} = Mul ({x}, h)",
    "{y}d = Add (b, g) {y} = Add ({x}, {y}d)",
    "{y} = Tanh ({x})",
)


def network(readers: list[str], seed: int = 0) -> onnx.ModelProto:
    """A chain of readers beside a large product, which leaves room for folded constants."""
    chain = " ".join(r.format(x=f"v{i}", y=f"v{i + 1}") for i, r in enumerate(readers))
    model = parse(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] v0, float[2,64] k) => (float u, float[2,64] z) {{ {chain} '
        f"u = ReduceSum <keepdims = 0> (v{len(readers)}) z = MatMul (k, large) }}"
    )
    rng = np.random.default_rng(seed)
    gains = rng.uniform(0.5, 1.5, 4)
    for name, array in {
        "w": rng.normal(size=(4, 4)), "b": rng.normal(size=4), "g": gains, "h": gains,
        "large": rng.normal(size=(64, 64)),
    }.items():  # fmt: skip
        if any(name in n.input for n in model.graph.node):
            tensor = numpy_helper.from_array(np.asarray(array, np.float32), name)
            model.graph.initializer.append(tensor)
    return model


def derivative(model: onnx.ModelProto, name: str, feeds: dict[str, Any]) -> Any:
    found = onnxgrad.gradient(model, name, "u").SerializeToString()
    session = onnxruntime.InferenceSession(found, providers=["CPUExecutionProvider"])
    known = {i.name for i in session.get_inputs()}
    return session.run([f"{name}_grad"], {n: a for n, a in feeds.items() if n in known})[0]


def used_in(model: onnx.ModelProto) -> str:
    return {p.key: p.value for p in model.metadata_props}.get(KEY, "")


@pytest.mark.parametrize(
    ("readers", "used"),
    [
        ((READERS[0], READERS[1]), "w"),
        ((READERS[0], READERS[2]), "w"),
        ((READERS[0], READERS[10], READERS[4]), "w"),
        ((READERS[6], READERS[7]), "g"),
        ((READERS[5], READERS[10], READERS[9]), "b"),
        ((READERS[0], READERS[0]), ""),
        ((READERS[0], READERS[10]), ""),
    ],
)
def test_the_file_names_weights_with_two_lives(readers: tuple[str, ...], used: str) -> None:
    done = onnxgrad.optimize(network(list(readers)), verify=False)
    assert used_in(done) == used
    if used:
        for call in (
            lambda: onnxgrad.gradient(done, used, "u"),
            lambda: onnxgrad.vmap(done, used),
        ):
            with pytest.raises(InputError, match=f"'{used}' would be wrong: .*training-safe"):
                call()
        with pytest.warns(UserWarning, match=f"the values of '{used}' are in other constants"):
            onnxgrad.gradient(done, "params", "u")


def test_equal_nodes_are_no_second_life() -> None:
    """One of two equal products goes; the weight is read less often, and is the same."""
    model = parse("""g (float[2,4] x) => (float u) { a = MatMul (x, w) b = MatMul (x, w) c = Tanh (a) d = Mul (b, c)
      u = ReduceSum <keepdims = 0> (d) }""")
    model.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32) * 3, "w"))
    done = onnxgrad.optimize(model, verify=False)
    assert [n.op_type for n in done.graph.node].count("MatMul") == 1
    assert not used_in(done)


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_random_readers(preset: str) -> None:
    """Networks whose weights are read two to five times."""
    rng, agreed, refused = random.Random(preset), 0, 0
    for seed in range(100):
        model = network(rng.choices(READERS, k=rng.randint(2, 5)), seed)
        done = onnxgrad.optimize(model, preset=preset, verify=False)
        draw = np.random.default_rng(seed).normal
        feeds = {n: draw(size=(2, s)).astype(np.float32) for n, s in (("v0", 4), ("k", 64))}
        names = {t.name for t in model.graph.initializer} & {t.name for t in done.graph.initializer}
        for name in sorted(names - {"large"}):
            wanted = derivative(model, name, feeds)
            try:
                found = derivative(done, name, feeds)
            except InputError as error:
                assert "would be wrong" in str(error)
                refused += 1
                continue
            scale = max(1.0, float(np.abs(wanted).max()))
            assert np.abs(found - wanted).max() < 1e-4 * scale, (seed, name)
            agreed += 1
    assert agreed > 20
    assert (refused == 0) == (preset == "training-safe")
