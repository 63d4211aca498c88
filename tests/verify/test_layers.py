"""Layer by layer: which values are paired, where two models part, and what a run leaves in a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.verify import feeds_for, verify
from onnxgrad.verify.layers import comparison as layers_module
from onnxgrad.verify.layers.pairs import value_pairs
from tests.helpers import MODELS_DIR, parse, stored_arrays

CHAIN = """g (float[N,4] x) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}> {
  a = Mul (x, w)  b = Exp (a)  c = Neg (b)  d = Abs (c)  y = Tanh (d) }"""


def chain(*changes: tuple[str, str]) -> onnx.ModelProto:
    text = CHAIN
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return parse(text)


def test_the_first_and_the_worst_that_part() -> None:
    """The outputs agree, for Abs hides the sign: layers explain and do not decide."""
    report = verify(chain(), chain(("Neg (b)", "Identity (b)")), layers=True)
    assert report.ok and report.layers.first.name == report.layers.worst.name == "c"
    assert [layer.name for layer in report.layers.pairs] == ["a", "b", "c", "d", "y"]
    report = verify(chain(), chain(("Exp (a)", "Sin (a)")), layers=True)
    assert not report.ok and report.layers.first.name == "b"
    assert report.to_dict()["layers"]["first"]["operator"] == "Exp"
    assert verify(chain(), chain()).layers is None


def test_what_optimize_keeps_is_paired_by_name_and_agrees() -> None:
    model = onnx.load(MODELS_DIR / "training" / "mlp.onnx")
    report = verify(model, onnxgrad.optimize(model), layers=True)
    assert report.ok and report.layers.paired >= 3 and report.layers.first is None
    assert {layer.by for layer in report.layers.pairs} == {"name"}


def test_batches_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As large values make them: the same comparison, one value at a time."""
    monkeypatch.setattr(layers_module, "_FIRST", 1)
    monkeypatch.setattr(layers_module, "_BYTES", 1)
    report = verify(chain(), chain(("Exp (a)", "Sin (a)")), layers=True)
    assert report.layers.paired == 5 and report.layers.first.name == "b"


def test_names_of_nodes_and_structure() -> None:
    renamed = chain(
        ("a = Mul", "p = Mul"),
        ("Exp (a)", "Exp (p)"),
        ("c = Neg", "q = Neg"),
        ("Abs (c)", "Abs (q)"),
    )
    pairs, left = value_pairs(chain(), renamed, {})
    assert [(p.name, p.other, p.by) for p in pairs] == [
        ("a", "p", "structure"), ("b", "b", "name"), ("c", "q", "structure"), ("d", "d", "name"), ("y", "y", "name"),
    ] and not left  # fmt: skip
    models = (
        chain(),
        chain(("a = Mul", "p = Mul"), ("Exp (a)", "Exp (p)"), ("Mul (x, w)", "Mul (w, x)")),
    )
    for model in models:
        model.graph.node[0].name = "scale"
    assert value_pairs(*models, {})[1] == ["a"]  # other operands: not certain
    models[1].graph.node[0].input[:] = ["x", "w"]
    models[1].graph.node[1].op_type = "Exp"
    assert value_pairs(*models, {})[0][0].by == "node"
    models[1].graph.initializer[0].float_data[0] = 9  # folded into it
    assert value_pairs(*models, {})[1] == ["a"]


def test_a_node_that_now_computes_the_next_value_is_not_the_same() -> None:
    """BatchNormalization folded into a Conv whose name stays: its result is that of the former."""
    a, b = (
        parse("g (float[4] x) => (float[4] y) { p = Neg (x)  q = Neg (p)  y = Abs (q) }"),
        parse("g (float[4] x) => (float[4] y) { q = Neg (x)  y = Abs (q) }"),
    )
    a.graph.node[0].name = b.graph.node[0].name = "conv"
    pairs, left = value_pairs(a, b, {})
    assert [p.name for p in pairs] == ["q", "y"] and left == ["p"]


def test_values_of_other_names_are_mapped() -> None:
    other = chain(("b = Exp", "z = Sin"), ("Neg (b)", "Neg (z)"))
    report = verify(chain(), other, layers=True, map={"b": "z"})
    assert report.layers.first.name == "b" and report.layers.first.other == "z"
    with pytest.raises(InputError, match="b=nope: no node of the second model"):
        verify(chain(), other, layers=True, map={"b": "nope"})
    with pytest.raises(InputError, match="no input or output 'b'"):
        verify(chain(), other, map={"b": "z"})


QUANTISED = """<ir_version: 10, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y)
  <float s = {0.05}, int8 z = {-128}> { r = Add (x, x)  r_QuantizeLinear_Output = QuantizeLinear (r, s, z)
  r_DequantizeLinear_Output = DequantizeLinear (r_QuantizeLinear_Output, s, z)  y = Sqrt (r_DequantizeLinear_Output) }"""
INTEGERS = """<ir_version: 10, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y)
  <float s = {0.05}, int8 z = {-128}> { r = Add (x, x)  r_quantized = QuantizeLinear (r, s, z)
  t_quantized = Transpose <perm = [0, 1]> (r_quantized)  t = DequantizeLinear (t_quantized, s, z)  y = Sqrt (t) }"""
PLAIN = "g (float[N,4] x) => (float[N,4] y) { q = Add (x, x)  r = Relu (q)  y = Sqrt (r) }"


def test_quantised_values_are_compared_as_floats() -> None:
    """The activation is folded into the rounding, whose result further nodes read."""
    pairs, left = value_pairs(parse(PLAIN), parse(QUANTISED), {})
    assert [(p.name, p.other) for p in pairs] == [
        ("r", "r_DequantizeLinear_Output"),
        ("y", "y"),
    ] and left == ["q"]
    x = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
    report = verify(parse(PLAIN), parse(QUANTISED), layers=True, inputs=x, metric="worst=0.5")
    assert report.layers.first is None and 0 < report.layers.pairs[0].difference.rel < 0.05
    direct = parse(PLAIN.replace("r = Relu (q)", "t = Relu (q)").replace("Sqrt (r)", "Sqrt (t)"))
    report = verify(
        direct, parse(INTEGERS), layers=True, inputs=x, map={"t": "t_quantized"}, metric="worst=0.5"
    )
    assert report.layers.first is None and report.layers.pairs[0].difference.compared == 8


def test_float16_within_its_rounding() -> None:
    half = onnxgrad.float16(chain(), metric="worst=0.05")
    usual = feeds_for(chain(), seed=0)  # beyond 65504 a float16 is infinite, as a wide input shows
    report = verify(chain(), half, layers=True, inputs=usual)
    assert report.layers.paired >= 4 and report.layers.first is None


def test_a_run_is_saved_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, other, file = (str(tmp_path / name) for name in ("a.onnx", "b.onnx", "run.npz"))
    onnx.save(chain(), model)
    onnx.save(chain(("Neg (b)", "Identity (b)")), other)
    assert main(["verify", model, "--save", file, "-q"]) == 0
    assert sorted(stored_arrays(file)) == ["x", "y"]
    assert main(["verify", model, "--expect", file, "-q"]) == 0  # with the inputs of the file
    assert main(["verify", model, "--save", file, "--layers", "-q"]) == 0
    first = Path(file).read_bytes()
    assert sorted(stored_arrays(file)) == ["a", "b", "c", "d", "x", "y"]
    assert main(["verify", model, "--save", file, "--layers", "-q"]) == 0
    assert Path(file).read_bytes() == first
    assert main(["verify", other, "--expect", file, "-q"]) == 2
    assert "--layers compares values inside" in capsys.readouterr().err
    assert main(["verify", other, "--expect", file, "--layers", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)["layers"]
    assert found["first"]["name"] == "c" and found["paired"] == 4
    assert main(["verify", model, other, "--layers", "-v"]) == 0
    assert "first difference: Neg c[" in capsys.readouterr().out
    assert main(["verify", model, "--save", model, "-q"]) == 2
    assert main(["verify", model, "--save", str(tmp_path / "no" / "f.npz"), "-q"]) == 2


def test_numbers_of_another_runtime_without_the_outputs() -> None:
    x = np.ones((2, 4), np.float32)
    stored = {"x": x, "a": x * [1, 2, 3, 4], "strange": x}
    stored = {name: np.asarray(value, np.float32) for name, value in stored.items()}
    report = verify(chain(), expect=stored, layers=True)
    assert report.verdict == "not proved" and report.layers.paired == 1
    assert report.layers.first is None and report.layers.unpaired == ("strange",)


def test_sequences_of_another_width() -> None:
    text = "g (float[4] x) => (float[2] y) <int64 n = {2}, int64 o = {1}> { t = Sqrt (x) s = SplitToSequence <axis = 0> (t, n) y = SequenceAt (s, o) }"
    x = {"x": np.float32([1, 2, 3, 1e-3])}
    half = text.replace("float[", "float16[")
    report = verify(parse(text), parse(half), layers=True, inputs=x, atol=1e-2)
    assert report.layers.paired == 3 and report.layers.first is None


def test_the_outer_graph_alone_and_strings() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) { k = Abs (x)  y = If (c) <
      then_branch = t () => (float[4] p) { p = Neg (k) }, else_branch = e () => (float[4] q) { q = Exp (k) }> }"""
    report = verify(parse(text), parse(text), layers=True)
    assert report.ok and "not looked at: values inside 2 nested graphs" in report.layers.notes
    split = "g (float[4] x) => (float[2] y) { s = SplitToSequence <axis = 0> (x, n)  i = SequenceAt (s, o)  y = Concat <axis = 0> (i, i) }"
    split = split.replace("(float[2] y) {", "(float[2] y) <int64 n = {1}, int64 o = {0}> {")
    report = verify(parse(split), parse(split), layers=True)
    assert report.layers.paired == 3 and report.layers.first is None


SCRIPT = """<ir_version: 8, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}> {
  [path_net_first_Mul] a = Mul (x, w)  [path_net_first_Exp] b = Exp (a)
  [path_net_second_Neg] c = Neg (b)  y = Tanh (c) }"""
NEWER = """<ir_version: 10, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}> {
  [first] val_1 = Mul (w, x)  [first] val_2 = Exp (val_1)  [second] val_3 = Neg (val_2)  y = Tanh (val_3) }"""


def two_exports(*changes: tuple[str, str]) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """One network by TorchScript, whose nodes have paths for names, and by the newer exporter, with metadata."""
    text = NEWER
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    script, newer = (onnx.parser.parse_model(t) for t in (SCRIPT, text))
    for node in script.graph.node:
        node.name = node.name.replace("path", "").replace("_", "/")
    for node in newer.graph.node:
        if node.name:
            scopes = ["", "net", f"net.{node.name}", node.op_type.lower()]
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(scopes))
            node.name = ""
    return script, newer


def test_what_leaves_a_module_is_paired_across_exporters() -> None:
    report = verify(*two_exports(), layers=True)
    assert report.ok and report.layers.first is None
    assert [(p.name, p.other, p.by) for p in report.layers.pairs] == [
        ("b", "val_2", "scope"), ("c", "val_3", "scope"), ("y", "y", "name"),
    ]  # fmt: skip
    report = verify(*two_exports(("Exp (val_1)", "Sin (val_1)")), layers=True)
    assert not report.ok and report.layers.first.name == "b"
    report = verify(*two_exports(("Neg (val_2)", "Identity (val_2)")), layers=True)
    assert not report.ok and report.layers.first.name == "c"


def test_a_guess_that_a_run_refutes_is_no_difference() -> None:
    """A factor moved from one module to the next: what is computed from both agrees."""
    moved = ("val_2 = Exp (val_1)", "e = Exp (val_1)  [first] val_2 = Sqrt (e)")
    squared = ("Neg (val_2)", "Neg (s)")
    back = ("  [second] val_3", "  [second] s = Mul (val_2, val_2)  [second] val_3")
    report = verify(*two_exports(moved, squared, back), layers=True)
    assert report.ok and report.layers.first is None
    assert [p.name for p in report.layers.pairs] == ["c", "y"] and "b" in report.layers.unpaired
    assert any("taken for no pairs" in note for note in report.layers.notes)


def test_a_counted_name_or_another_shape_is_no_pair_of_its_own() -> None:
    """The next export counts anew: `val_3` is another value, of the same shape or of another."""
    counted = NEWER.replace("[first] ", "").replace("[second] ", "")
    shifted = counted.replace("val_3", "val_4").replace("val_2", "val_3").replace("Exp (val_1)", "Exp (val_2)")  # fmt: skip
    shifted = shifted.replace("val_1 = Mul (w, x)", "val_1 = Abs (x)  val_2 = Mul (w, x)")
    report = verify(*map(onnx.parser.parse_model, (counted, shifted)), layers=True)
    assert report.ok and report.layers.first is None
    turned = CHAIN.replace("a = Mul (x, w)", "a = Transpose (x)  z = Mul (x, w)")
    report = verify(chain(), parse(turned.replace("Exp (a)", "Exp (z)")), layers=True)
    assert report.ok and report.layers.first is None and report.layers.unpaired == ("a",)


@pytest.mark.parametrize("text", ["[" * 5000, "-" * 100_000 + "1", "['a'", "7", "\0"])
def test_scopes_that_are_no_list_name_no_module(text: str) -> None:
    """A stranger's file holds any text there; Python's reader raises MemoryError for one nested too deep."""
    script, newer = two_exports()
    for node in newer.graph.node:
        for entry in node.metadata_props:
            entry.value = text
    report = verify(script, newer, layers=True)
    assert report.ok and [p.name for p in report.layers.pairs] == ["y"]


def test_a_mask_before_values_that_agree_is_no_difference() -> None:
    """One model masks with -inf and clears the NaN of whole masked rows, the other masks with -3e38."""
    head = "g (float[4,8] x, bool[4,8] m) => (float[4,8] y) <float z = {0}, float i = {%s}> { w = Where (m, x, i)  s = Softmax (w) "
    a = parse(head % "-inf" + "n = IsNaN (s)  v = Where (n, z, s)  y = Exp (v) }")
    b = parse(
        head % "-3e38" + "k = Cast <to = 1> (m)  q = Mul (s, k)  v = Add (q, z)  y = Exp (v) }"
    )
    feeds = {"x": np.ones((4, 8), np.float32), "m": np.arange(32).reshape(4, 8) >= 8}
    report = verify(a, b, inputs=feeds, layers=True)
    assert report.ok and report.layers is not None
    assert report.layers.first is None
    assert any("NaN or infinite in one model only" in note for note in report.layers.notes)
    # beyond the mask a NaN is a difference
    broken = parse(head % "-inf" + "n = IsNaN (s)  v = Where (n, s, s)  y = Exp (v) }")
    report = verify(a, broken, inputs=feeds, layers=True)
    assert not report.ok and report.layers is not None
    assert report.layers.first is not None and report.layers.first.name == "v"
