"""New weights in an optimised model are those of optimising anew, or a rewrite that they break is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import onnxgrad
from onnxgrad import P, capture, op, rewrite
from onnxgrad.errors import InputError, NotProved
from onnxgrad.jobs.rebasing.record import PredicateFailed
from tests.helpers import MODELS_DIR, parse

Arrays = Mapping[str, Any]

# Relu(x @ w) * s: a positive scale moves in front of the Relu, into w
SCALED = """g (float[N,2] x) => (float[N,3] y)
<float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] s = {1, 2, 3}, float[3] c = {1, 2, 4}> {
  p = MatMul (x, w)  r = Relu (p)  m = Mul (r, s)  y = Add (m, c) }"""
TIED = """g (float[N,2] x) => (float[N,2] y, float[N,2] z)
<float[2,2] a = {1, 2, 3, 4}, float[2,2] b = {1, 2, 3, 4}> { p = Relu (x)  y = MatMul (p, a)  z = MatMul (x, b) }"""
PLUS = """g (float[N,3] x) => (float[N,3] y) <float b = {0}> {
  p = Sub (x, b)  y = Relu (p) }"""


def optimized(model: ModelProto, **options: Any) -> Any:
    return onnxgrad.optimize(model, rebasable=True, report=True, **options)


def with_values(model: ModelProto, values: Arrays) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        if tensor.name in values:
            array = np.asarray(values[tensor.name], numpy_helper.to_array(tensor).dtype)
            tensor.CopyFrom(numpy_helper.from_array(array.reshape(tensor.dims), tensor.name))
    return made


def redrawn(model: ModelProto, seed: int) -> ModelProto:
    """Other values for every float initializer of more than one element."""
    rng = np.random.default_rng(seed)
    old = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    floats = {n: a for n, a in old.items() if a.dtype == np.float32 and a.size > 1}
    return with_values(model, {n: rng.normal(size=a.shape) / 8 for n, a in floats.items()})


@pytest.mark.parametrize("name", ["bert_script", "lstmcell", "inception_v3", "whisper.raw"])
def test_equals_optimising_anew(name: str) -> None:
    """Folded, merged, transposed and scaled weights, to the last byte; the whole proof for one."""
    first, second = (redrawn(onnx.load(MODELS_DIR / f"{name}.onnx"), seed) for seed in (1, 2))
    done = optimized(first, verify=False)
    assert done.record.made and done.rewrites
    found = onnxgrad.rebase(done.model, second, record=done.record, verify=name == "lstmcell")
    assert found == onnxgrad.optimize(second, verify=False)
    assert found != done.model


def test_weights_keep_the_field_that_holds_them() -> None:
    """Numbers in float_data stay there, as in an export that is optimised anew."""
    first = parse("""g (float[N,2] x) => (float[N,3] y)
      <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] c = {1, 2, 4}> { p = MatMul (x, w) r = Tanh (p) y = Add (r, c) }""")
    for fields in ({"w", "c"}, {"w"}, set[str]()):
        second = redrawn(first, 1)
        for tensor in second.graph.initializer:
            numbers = numpy_helper.to_array(tensor).ravel().tolist()
            if tensor.name in fields:
                tensor.ClearField("raw_data")
                tensor.float_data.extend(numbers)
        done = optimized(first)
        found = onnxgrad.rebase(done.model, second, record=done.record)
        assert found == onnxgrad.optimize(second)
        assert {t.name for t in found.graph.initializer if t.float_data} == fields
    second.graph.initializer[0].ClearField("raw_data")
    second.graph.initializer[0].float_data.extend([1.0, 2.0])
    with pytest.raises(InputError, match="'w'"):
        onnxgrad.rebase(done.model, second, record=done.record)


def test_the_record_changes_nothing() -> None:
    model = onnx.load(MODELS_DIR / "lstmcell.onnx")
    assert optimized(model, verify=False).model == onnxgrad.optimize(model, verify=False)


@pytest.mark.parametrize("more", [{"verify": "each"}, {"verify": "only each"}, {"exact": True}])
def test_proofs_of_rewrites_leave_no_facts(more: dict[str, Any]) -> None:
    """They read constants, too, on which no rewrite relies."""
    model = parse(SCALED)
    plain = optimized(model, verify=False)
    done = optimized(model, **more)
    assert plain.record.held and done.record.to_bytes() == plain.record.to_bytes()


def test_batch_normalization() -> None:
    """Scale and shift of statistics go into a convolution; a negative variance is not finite."""
    text = """g (float[1,2,4,4] x) => (float[1,3,4,4] y) <float[3,2,1,1] w = {1, 2, 3, 4, 5, 6},
      float[3] g1 = {1, 2, 3}, float[3] b1 = {1, 0, 2}, float[3] m1 = {0.5, 1, 2}, float[3] v1 = {1, 2, 4}> {
      c = Conv (x, w)  y = BatchNormalization (c, g1, b1, m1, v1) }"""
    model = parse(text)
    done = optimized(model)
    assert [n.op_type for n in done.model.graph.node] == ["Conv"]
    values = {"w": np.arange(6) + 3.0, "g1": [-1, 0.5, 2], "b1": [3, 4, 5], "m1": [1, 2, 9], "v1": [3, 2, 1]}  # fmt: skip
    new = with_values(model, values)
    assert onnxgrad.rebase(done.model, new, record=done.record) == onnxgrad.optimize(new)
    with pytest.raises(
        PredicateFailed, match=r"batch_norm_after_product .*isfinite.*nothing was written"
    ):
        bad = with_values(model, {**values, "v1": [3, -2, 1]})
        onnxgrad.rebase(done.model, bad, record=done.record)


@pytest.mark.parametrize(
    ("text", "values", "rule", "fact"),
    [
        (SCALED, {"s": [1, -2, 3]}, "scale_of_product", r"all\(\(s > 0\)\)"),
        (TIED, {"b": [1, 2, 3, 5]}, "equal_initializers", "b = a in every element|a = b in every element"),
        (PLUS, {"b": 0.5}, "minus_zero", "b = 0.0"),
    ],
)  # fmt: skip
def test_a_broken_fact_names_the_rewrite(text: str, values: Arrays, rule: str, fact: str) -> None:
    model = parse(text)
    done = optimized(model)
    with pytest.raises(PredicateFailed, match=fact) as failed:
        onnxgrad.rebase(done.model, with_values(model, values), record=done.record)
    assert failed.value.missing[0].startswith(rule) and rule in str(failed.value)
    assert failed.value.exit_code == 1


def test_other_values_for_which_the_facts_hold() -> None:
    model = parse(SCALED)
    done = optimized(model)
    new = with_values(model, {"w": -np.arange(6.0), "s": [0.5, 0.25, 7], "c": [0.5, 0, -1]})
    assert onnxgrad.rebase(done.model, new, record=done.record) == onnxgrad.optimize(new)


x, c = capture("x c")


@rewrite(P.Mul(x, c.const))
def times_rounded(x: Any, c: Any) -> Any:
    """x c = x round(c), which is a rule that nobody prepared for new weights"""
    return op.Mul(x, op.Identity(np.rint(np.asarray(c.const))))


@rewrite(P.Add(x, c.const))
def around(x: Any, c: Any) -> Any:
    """x + c = x + c, the constant copied without a trace"""
    tensor = numpy_helper.from_array(numpy_helper.to_array(c.initializer), "copied")
    return op.Add(x, c.block.add_initializer(tensor))


def test_a_rule_of_the_user_is_never_stale() -> None:
    """The elements that it reads must stay; a copy that hides its origin is refused at once."""
    text = "g (float[N,2] x) => (float[N,2] y) <float[2] s = {1, 2}, float[2] c = {3, 4}> { p = Mul (x, s)  y = Add (p, c) }"
    model = parse(text)
    done = optimized(model, passes=[times_rounded, "fold-constant"])
    new = with_values(model, {"c": [5, 6]})
    found = onnxgrad.rebase(done.model, new, record=done.record)
    anew = onnxgrad.optimize(new, passes=[times_rounded, "fold-constant"])
    assert with_values(found, {"s": [1, 2]}) == with_values(anew, {"s": [1, 2]})
    with pytest.raises(PredicateFailed, match=r"times_rounded .* s keeps its 2 elements"):
        onnxgrad.rebase(done.model, with_values(model, {"s": [1, 3]}), record=done.record)
    with pytest.raises(NotProved, match="not rebasable: 'copied' was made by a rewrite"):
        optimized(model, passes=[around])


def test_constants_that_onnxruntime_computes() -> None:
    text = """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> {
      e = Exp (w)  t = Transpose (e)  s = Erf (t)  y = MatMul (x, s) }"""
    model = parse(text)
    done = optimized(model)
    assert [n.op_type for n in done.model.graph.node] == ["MatMul"]
    new = with_values(model, {"w": [0.1, -0.2, 0.3, 0.4]})
    assert onnxgrad.rebase(done.model, new, record=done.record) == onnxgrad.optimize(new)


def test_weights_in_constant_nodes() -> None:
    """As some exporters write them; single numbers, and those of sizes, are the graph's own."""
    text = """g (float[1,1,2,2] x, bool c) => (float[1,1,N,M] y) {
      w = Constant <value = float[2,2] {1, 2, 3, 4}> ()  k = Constant <value = float {2}> ()
      t = Transpose (w)  p = MatMul (x, t)  m = Mul (p, k)
      q = If (c) <then_branch = t1 () => (float[1,1,2,2] u) {
                    b = Constant <value = float[2] {5, 6}> ()  n = Neg (b)  u = Add (m, n) },
                  else_branch = e1 () => (float[1,1,2,2] v) { v = Relu (m) }>
      s = Constant <value = float[4] {1, 1, 2, 2}> ()  y = Resize (q, , s) }"""
    done = optimized(parse(text))
    assert done.record.weights == {"w", "b"} and list(done.record.fixed) == ["s"]
    new = parse(text.replace("{1, 2, 3, 4}", "{7, 8, 9, 1}").replace("{5, 6}", "{3, 2}"))
    assert onnxgrad.rebase(done.model, new, record=done.record) == onnxgrad.optimize(new)
    arrays = {"w": np.array([[7, 8], [9, 1]], np.float32), "b": np.array([3, 2], np.float32)}
    assert onnxgrad.rebase(done.model, arrays, record=done.record) == onnxgrad.optimize(new)
    for old, other, words in (
        ("float {2}", "float {3}", "'value' has another value"),
        ("{1, 1, 2, 2}", "{1, 1, 2, 3}", "'s' has other values: it decides sizes"),
    ):
        with pytest.raises(InputError, match=words):
            onnxgrad.rebase(done.model, parse(text.replace(old, other)), record=done.record)


HALF = """g (float[N,3] x) => (float[N,3] y)
<float[3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3] b = {1, 2, 4}, float[3] mask = {0, -1e30, 0}, float[3] s = {2, 4, 8}> {
  t = Transpose (w)  p = MatMul (x, t)  q = Add (p, b)  r = Relu (q)  m = Mul (r, s)  n = Add (m, mask)  y = Softmax (n) }"""


@pytest.mark.parametrize("how", ["recipe", "pass", "inputs too"])
def test_float16(how: str, tmp_path: Path) -> None:
    """Of folded and scaled weights; the proof allows the bound of float16. A constant that float16
    cannot hold is named, and so is a new number that would mean infinity."""
    table = {"recipe": "float16 = true", "inputs too": "float16 = { io = true }"}
    (tmp_path / "r.toml").write_text(table.get(how, "passes = ['default', 'float16']") + "\n")
    model, options = parse(HALF), {"recipe": tmp_path / "r.toml"}
    done = optimized(model, **options)
    assert done.model == onnxgrad.optimize(model, **options) and done.record.halved
    values = {"w": np.arange(9) - 3.03, "b": [1e-3, 2, 0], "mask": [-1e30, 0, 0.5], "s": [1, 7, 2]}
    new = with_values(model, values)
    found = onnxgrad.rebase(done.model, new, record=done.record)
    assert found == onnxgrad.optimize(new, **options)
    halves = [t.data_type == onnx.TensorProto.FLOAT16 for t in found.graph.initializer]
    assert halves and all(halves)
    for name, value in (("w", 1e5), ("b", 1e30)):
        broken = with_values(new, {name: np.full(np.shape(values[name]), value)})
        with pytest.raises(PredicateFailed, match=rf"in_float16 .*fits_float16\(.*{name}"):
            onnxgrad.rebase(done.model, broken, record=done.record)


def test_defaults_in_float16() -> None:
    """A number that callers may override becomes float16 with its input."""
    model = parse(
        "g (float[N,2] x, float[2] s) => (float[N,2] y) <float[2] s = {1, 2}> { y = Mul (x, s) }"
    )
    passes = ["float16{io=true}"]
    done = optimized(model, passes=passes, verify=False)
    new = with_values(model, {"s": [3, 0.1]})
    found = onnxgrad.rebase(done.model, new, record=done.record)
    assert found == onnxgrad.optimize(new, passes=passes, verify=False) != done.model


@pytest.mark.parametrize("ir_version", [3, 10])
def test_nested_graphs_and_constant_nodes(ir_version: int) -> None:
    """Below IR 4 computed constants are Constant nodes; from 4 on a branch has weights of its own."""
    k, c = ("", "w") if ir_version < 4 else ("<float[2] k = {1, 2}>", "k")
    text = f"""<ir_version: {ir_version}, opset_import: ["" : 13]>
    g (bool b, float[N,2] x{", float[2,2] w" if ir_version < 4 else ""}) => (float[N,2] y)
    <float[2,2] w = {{1, 2, 3, 4}}> {{
      t = Transpose (w)  p = MatMul (x, t)
      y = If (b) <then_branch = t1 () => (float[N,2] u) {k} {{ n = Neg ({c})  u = Add (p, n) }},
                  else_branch = e1 () => (float[N,2] v) {{ v = Relu (p) }}> }}"""
    model = parse(text)
    done = optimized(model)
    new = with_values(model, {"w": [5, 6, 7, 9]})
    for tensor in next(n for n in new.graph.node if n.op_type == "If").attribute[0].g.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.array([7, 8], np.float32), "k"))
    assert onnxgrad.rebase(done.model, new, record=done.record) == onnxgrad.optimize(new)


def test_files_with_external_data(tmp_path: Path) -> None:
    """Weights outside of all three files; without onnxgrad the result runs as any model does."""
    first, second = (redrawn(onnx.load(MODELS_DIR / "bert_script.onnx"), seed) for seed in (1, 2))
    for name, model in (("first", first), ("second", second)):
        (tmp_path / name).mkdir()
        copy = ModelProto()
        copy.CopyFrom(model)
        onnx.save(copy, tmp_path / name / "m.onnx", save_as_external_data=True, size_threshold=0)
    program = onnxgrad.load(tmp_path / "first" / "m.onnx")
    done = optimized(program, verify=False)
    onnxgrad.save(done.model, tmp_path / "small.onnx")
    (tmp_path / "small.onnx.rebase").write_bytes(done.record.to_bytes())
    found = onnxgrad.rebase(tmp_path / "small.onnx", tmp_path / "second" / "m.onnx", verify=False)
    assert found == onnxgrad.optimize(second, verify=False)


def test_the_type_of_the_model_comes_back() -> None:
    model = parse(SCALED)
    done = optimized(onnxgrad.load(model))
    found = onnxgrad.rebase(done.model, model, record=done.record)
    assert isinstance(found, onnxgrad.load(model).__class__)
    assert [b.op for b in found.main.bindings] == [b.op for b in done.model.main.bindings]


def test_refusals(tmp_path: Path) -> None:
    model = parse(SCALED)
    done = optimized(model)
    path = tmp_path / "small.onnx"
    onnx.save(done.model, path)
    with pytest.raises(
        InputError, match=r"small.onnx: has no record small.onnx.rebase .*rebasable"
    ):
        onnxgrad.rebase(path, model)
    with pytest.raises(InputError, match="a model in memory has no record beside it"):
        onnxgrad.rebase(done.model, model)
    with pytest.raises(InputError, match="its record belongs to another optimised model"):
        onnxgrad.rebase(model, model, record=done.record)
    (tmp_path / "small.onnx.rebase").write_bytes(b"no record")
    with pytest.raises(InputError, match="not a record of `onnxgrad optimize --rebasable`"):
        onnxgrad.rebase(path, model)
    (tmp_path / "small.onnx.rebase").write_bytes(done.record.to_bytes()[:-9])
    with pytest.raises(InputError, match="a damaged record"):
        onnxgrad.rebase(path, model)
