"""What depends on weights alone runs once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError, NotProved
from onnxgrad.jobs.surgery import lift as job
from onnxgrad.verify.running.session import run
from tests.helpers import parse, signature
from tests.rewriting import model_of

# (inputs, outputs, operators) of both parts
Parts = tuple[tuple[list[str], list[str], list[str]], tuple[list[str], list[str], list[str]]]
LORA = """g (float[N,3] x, float[2,3] w, float[2,1] a, float[1,3] b) => (float[N,2] y) <float k = {0.5}> {
  ab = MatMul (a, b)  s = Mul (ab, k)  ws = Add (w, s)  t = Transpose (ws)  y = MatMul (x, t) }"""
HELD = """g (float[N,3] x) => (float[N,2] y) <int8[3,2] q = {1, 2, 3, 4, 5, 6}, float s = {0.1}, float[2] c = {1, 2}> {
  d = DequantizeLinear (q, s)  m = MatMul (x, d)  y = Add (m, c) }"""
JOINED = """g (float[N,2] x, float[2,2] p, float[2,1] q) => (float[N,3] y) {
  w = Concat <axis = 1> (p, q)  y = MatMul (x, w) }"""
NESTED = """g (float[2] x, bool c, float[2] w) => (float[2] y, float[2] v) { h = Exp (w)  v = Neg (h)
  y = If (c) <then_branch = t () => (float[2] a) { a = Add (h, x) },
              else_branch = e () => (float[2] b) { b = Mul (h, w) }> }"""
BOTH = (
    "g (float[N,2] x, float[2] w) => (float[N,2] y) { e = Exp (w)  m = Mul (x, e)  y = Add (m, w) }"
)


@pytest.mark.parametrize(
    ("text", "weights", "wanted"),
    [
        (LORA, ["w", "a", "b"], ((["w", "a", "b"], ["t"], ["MatMul", "Mul", "Add", "Transpose"]), (["x", "t"], ["y"], ["MatMul"]))),
        (LORA, "[ab]", ((["a", "b"], ["s"], ["MatMul", "Mul"]), (["x", "w", "s"], ["y"], ["Add", "Transpose", "MatMul"]))),
        (HELD, (), (([], ["d"], ["DequantizeLinear"]), (["x", "d"], ["y"], ["MatMul", "Add"]))),
        (HELD, ["q", "s"], ((["q", "s"], ["d"], ["DequantizeLinear"]), (["x", "d"], ["y"], ["MatMul", "Add"]))),
        (HELD, ["q", "c"], ((["q"], ["d"], ["DequantizeLinear"]), (["x", "c", "d"], ["y"], ["MatMul", "Add"]))),
        (JOINED, ["p", "q"], ((["p", "q"], ["w"], ["Concat"]), (["x", "w"], ["y"], ["MatMul"]))),
        (NESTED, "w", ((["w"], ["h"], ["Exp"]), (["x", "c", "w", "h"], ["y", "v"], ["Neg", "If"]))),
        (BOTH, "w", ((["w"], ["e"], ["Exp"]), (["x", "w", "e"], ["y"], ["Mul", "Add"]))),
    ],
)  # fmt: skip
def test_parts(text: str, weights: Any, wanted: Parts) -> None:
    """Another evaluator than that of the proof computes the same of both in a row."""
    model = parse(text)
    prepare, rest = onnxgrad.lift(model, weights)
    for made in (prepare, rest):
        onnx.checker.check_model(made, full_check=True)
    assert (signature(prepare), signature(rest)) == wanted
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for v in model.graph.input:
        kind = v.type.tensor_type
        shape = [d.dim_value or 4 for d in kind.shape.dim]
        feeds[v.name] = np.array(True) if kind.elem_type == 9 else rng.random(shape, np.float32)
    given = {**{t.name: numpy_helper.to_array(t) for t in model.graph.initializer}, **feeds}
    for made in (prepare, rest):
        mine = {v.name: given[v.name] for v in made.graph.input}
        given |= run(made, mine)
    names = [v.name for v in model.graph.output]
    for name, value in zip(names, ReferenceEvaluator(model).run(None, feeds), strict=True):
        assert np.allclose(given[name], value, atol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[N] x, float[2] w) => (float[N] y, float[2] z) { y = Exp (x)  z = Neg (w) }",  # an output
        "g (float[2] x, float[2] w) => (float[2] y) { r = RandomNormalLike (w)  y = Add (x, r) }",
        "g (float[2] x, float[2] w) => (float[2] y) { y = Add (x, w) }",
        """g (float[2] x, float[2] w, bool c) => (float[2] y) { z = Not (c)
           h = If (z) <then_branch = t () => (float[2] a) { a = Exp (w) }, else_branch = e () => (float[2] b) { b = Neg (w) }>
           y = Add (h, x) }""",
        "g (float[2] x, float[2] w) => (float[2] y) { k = Constant <value_float = 2.0> ()  y = Mul (x, k) }",
    ],
)  # fmt: skip
def test_nothing_to_lift(text: str) -> None:
    with pytest.raises(InputError, match="no computed value depends on w and constants alone"):
        onnxgrad.lift(parse(text), "w", verify=False)


def test_sizes_stay_with_what_they_shape() -> None:
    """As an input, the target of a Reshape would hide the shapes behind it."""
    text = """g (float[N,4] x, int64[1] k) => (float[M,2] y, float[A,B] z) <int64[1] a = {-1}, int64[1] b = {2}, float[4] w = {1, 2, 3, 4}> {
      s = Concat <axis = 0> (a, b)  v = Reshape (w, s)  t = Transpose (v)  r = Reshape (x, s)
      y = MatMul (r, t)  q = Concat <axis = 0> (k, a)  z = Reshape (x, q) }"""
    prepare, rest = onnxgrad.lift(parse(text))
    assert signature(prepare)[:2] == ([], ["t"])
    assert signature(rest)[0] == ["x", "k", "t"] and "s" in [n.output[0] for n in rest.graph.node]
    prepare, rest = onnxgrad.lift(parse(text), "k", verify=False)
    assert signature(prepare)[:2] == (["k"], ["t", "q"])  # a weight that is named decides


def test_calls_stay() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20, "d" : 1]>
      g (float[N,2] x, float[2] w) => (float[N,2] y) { f = d.f (w)  e = Exp (w)  a = Mul (x, f)  y = Add (a, e) }
      <domain: "d", opset_import: ["" : 20]> f (a) => (b) { b = Neg (a) }""")
    prepare, rest = onnxgrad.lift(model, "w")
    assert signature(prepare)[2] == ["Exp"] and not prepare.functions
    assert signature(rest)[2] == ["f", "Mul", "Add"] and len(rest.functions) == 1


def test_a_default_that_callers_may_override() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
      g (float[N,3] x, float[2,3] w) => (float[N,2] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}> { t = Transpose (w)  y = MatMul (x, t) }""")
    with pytest.raises(InputError, match="nothing depends"):
        onnxgrad.lift(model)  # it is no constant
    prepare, rest = onnxgrad.lift(model, "w")
    assert (signature(prepare)[0], signature(rest)[0]) == (
        ["w"],
        ["x", "t"],
    ) and not prepare.graph.initializer


def test_a_name_that_means_nothing() -> None:
    with pytest.raises(
        InputError, match="weights='q': the model has no input or initializer of this name"
    ):
        onnxgrad.lift(parse(LORA), "q")


FACTORS = """g (float[N,64] x, float[64,64] w, float[64] s{}) => (float[N,64] y) {{
  t = Transpose (w)  a = MatMul (x, t)  n = Mul ({}, {})  v = Unsqueeze (s, i)  b = Mul (a, v)  y = Add (b, n) }}"""


@pytest.mark.parametrize(
    ("inputs", "factors", "ends"),
    [
        ("", ("s", "s"), []),  # a node of 64 elements takes less than one more input
        (", float[256,64] k, float[256,64] l", ("k", "l"), ["n"]),  # one input for two
    ],
)
def test_optimize_lifts_what_pays(inputs: str, factors: tuple[str, str], ends: list[str]) -> None:
    """A view and the Transpose of a factor take no time; `lift` itself lifts all."""
    text = FACTORS.format(inputs, *factors).replace("[N,64]", f"[{256 if ends else 'N'},64]")
    model = model_of(text, {"i": np.zeros(1, np.int64)})
    weights = ["w", "s", "k", "l"][: 4 if ends else 2]
    prepare, _ = onnxgrad.lift(model, weights)
    assert sorted(signature(prepare)[1]) == ["n", "t", "v"]
    if ends:
        prepare, rest = onnxgrad.optimize(model, lift=weights)
        assert signature(prepare)[1] == ends and "Mul" in signature(rest)[2]
    else:
        with pytest.raises(InputError, match="computed as fast as inputs are passed"):
            onnxgrad.optimize(model, lift=weights)


def test_a_wrong_part_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(program: Any, ends: Any) -> None:
        right(program, ends)
        next(b for b in program.main.bindings if b.op == "MatMul").rename_operator("Gemm")

    right = job._cut
    monkeypatch.setattr(job, "_cut", late)
    prepare, _ = onnxgrad.lift(parse(LORA), ["w", "a", "b"])  # a Gemm of matrices is a product
    assert signature(prepare)[1] == ["t"]
    monkeypatch.setattr(job, "extracted", lambda p, i, o: _wrong(p, i, o))
    with pytest.raises(NotProved):
        onnxgrad.lift(parse(LORA), ["w", "a", "b"])


def _wrong(program: Any, inputs: Any, outputs: Any) -> Any:
    from onnxgrad.jobs.surgery.extract import extracted

    made = extracted(program, inputs, outputs)
    next(b for b in made.main.bindings if b.op == "Mul").rename_operator("Div")
    return made


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = parse(HELD)
    for t in model.graph.initializer:
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t), t.name))
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0
    )
    once, out = str(tmp_path / "once.onnx"), str(tmp_path / "o.onnx")
    words = ["lift", str(tmp_path / "m.onnx"), "-o", out]
    assert main([*words, "--prepare", once]) == 0
    said = capsys.readouterr().out
    assert "3 → 2 nodes, 1 node once at load" in said and "once: d: f32[3,2]" in said
    prepared = run(Path(once), {})
    x = np.float32([[1, 2, 3]])
    found = run(Path(out), {"x": x, **prepared})["y"]
    # onnxruntime runs the products of the model in integers, and those of the rest in float32
    assert np.allclose(found, ReferenceEvaluator(parse(HELD)).run(None, {"x": x})[0])
    assert main([*words, "--prepare", out]) == 2
    assert main([*words, "--prepare", once, "--weights", "zz"]) == 2
    assert "has no input or initializer of this name" in capsys.readouterr().err
