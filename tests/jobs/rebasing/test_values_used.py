"""A derivative by a weight of an optimised file is that of the original, or refused."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.ir.origins import VALUES_USED as KEY
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.rebasing import values_used
from onnxgrad.jobs.rewriting import optimize_program
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.verify import original_runs
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


def test_weights_are_looked_at_beside_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that runs its proof ahead does so in a thread; the file is the same."""
    model, pipeline = network([READERS[0], READERS[1], READERS[5]]), Pipeline.of("default", None)
    threads, recorded = list[threading.Thread](), values_used.record
    monkeypatch.setattr(original_runs, "cores", lambda: 2)
    monkeypatch.setattr(
        values_used,
        "record",
        lambda p: (threads.append(threading.current_thread()), recorded(p))[1],
    )
    done = [optimize_program(model, pipeline, ahead=ahead) for ahead in (False, True)]
    assert [t is threading.main_thread() for t in threads] == [True, False]
    assert used_in(to_proto(done[1].program)) == "w"
    assert to_proto(done[0].program) == to_proto(done[1].program)

    def fails(_: object) -> None:
        raise InputError("recorded no more")

    monkeypatch.setattr(values_used, "record", fails)
    with pytest.raises(InputError, match="recorded no more"):
        optimize_program(model, pipeline, ahead=True)
    assert not any(t.is_alive() for t in threads[1:])


def test_weights_in_constant_nodes() -> None:
    """As some exporters write them, and PyTorch's with optimize=False."""
    model = network([READERS[0], READERS[1]])
    for tensor in [t for t in model.graph.initializer if t.name == "w"]:
        model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w"], value=tensor))
        model.graph.initializer.remove(tensor)
    done = onnxgrad.optimize(model, verify=False)
    assert used_in(done) == "w" and "Constant" in {n.op_type for n in done.graph.node}
    with pytest.raises(InputError, match=r"'w' would be wrong: .*training-safe"):
        onnxgrad.gradient(done, "w", "u")


def test_equal_nodes_are_no_second_life() -> None:
    """One of two equal products goes; the weight is read less often, and is the same."""
    model = parse("""g (float[2,4] x) => (float u) { a = MatMul (x, w) b = MatMul (x, w) c = Tanh (a) d = Mul (b, c)
      u = ReduceSum <keepdims = 0> (d) }""")
    model.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32) * 3, "w"))
    done = onnxgrad.optimize(model, verify=False)
    assert [n.op_type for n in done.graph.node].count("MatMul") == 1
    assert not used_in(done)


x, w = onnxgrad.capture("x"), onnxgrad.capture("w")


@onnxgrad.rewrite(onnxgrad.P.Pow(onnxgrad.P.Add(x, w), 2.0))
def square(x: Any, w: Any) -> Any:
    """(x + w)^2 = (x + w) (w + x)"""
    return onnxgrad.op.Add(x, w) * onnxgrad.op.Add(w, x)


SQUARE = "{y}e = Constant <value_float = 2.0> () {y}s = Add ({x}, b) {y} = Pow ({y}s, {y}e)"


@pytest.mark.parametrize("rebasable", [False, True])
def test_a_weight_that_is_read_as_often_as_before(rebasable: bool) -> None:
    """One reader is folded, and a rewrite reads the weight twice."""
    model = network([SQUARE, READERS[9]])
    passes = ["fold-constant", square]
    done = onnxgrad.optimize(model, passes=passes, verify=False, rebasable=rebasable)
    assert [sum(n.input[:].count("b") for n in m.graph.node) for m in (model, done)] == [2, 2]
    assert used_in(done) == "b"
    alone = network([SQUARE, READERS[10]])
    done = onnxgrad.optimize(alone, passes=passes, verify=False, rebasable=rebasable)
    assert not used_in(done)


def test_a_number_that_decided_a_rewrite() -> None:
    """An exponent of 2 made a square, and stays the exponent of another value."""
    square_of = "{y}s = Add ({x}, b) {y} = Pow ({y}s, n)"
    model = network([square_of, "{y}t = Tanh ({x}) {y} = Pow ({y}t, n)"])
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "n"))
    done = onnxgrad.optimize(model, passes=["remove-noops", square], verify=False)
    assert used_in(done) == "n"


def test_a_weight_copied_out_of_branches() -> None:
    """The weight of a branch that is taken becomes one of the main graph, which another folds."""
    inner = "b () => (float[2,4] {n}) <float[4] r = {{1, 2, 3, 4}}> {{ {n}t = Add (b, r) {n} = Add (v0, {n}t) }}"
    model = parse(f"""g (float[2,4] v0) => (float u) <float[4] b = {{5, 6, 7, 9}}, bool yes = {{1}}> {{
      v1 = If (yes) <then_branch = {inner.format(n="p")}, else_branch = {inner.format(n="q")}>
      v2 = Mul (v1, b) u = ReduceSum <keepdims = 0> (v2) }}""")
    done = onnxgrad.optimize(model, verify=False)
    assert next(t.name for t in done.graph.initializer) == "b"
    assert used_in(done) == "b"


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
