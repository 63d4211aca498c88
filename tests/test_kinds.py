"""Every public function takes every kind of model that it is said to take, and gives the same kind back."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad import BindingBlock, InputError, P, PatternContext, capture, op
from onnxgrad.ir.program import Program
from onnxgrad.ir.storage import external_data
from tests.helpers import parse

TEXT = """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> {
  a = Identity(x)
  t = MatMul(a, w)
  y = Relu(t)
}"""


class ONNXProgram:
    """What torch.onnx.export gives, as far as we look at it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model_proto = model


class OnnxFunction:
    """What onnxscript's decorator gives, as far as we look at it."""

    name = "f"

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model

    def to_model_proto(self) -> onnx.ModelProto:
        return self._model


def _saved(model: onnx.ModelProto, folder: Path) -> Path:
    """A file whose weights lie beside it."""
    path = folder / "m.onnx"
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(copy, path, save_as_external_data=True, size_threshold=0)
    return path


def _at_end(model: onnx.ModelProto) -> io.BytesIO:
    stream = io.BytesIO()
    onnx.save(model, stream)  # torch.onnx.export leaves it at its end too
    return stream


KINDS: dict[str, tuple[Callable[[onnx.ModelProto, Path], Any], type]] = {
    "str": (lambda m, f: str(_saved(m, f)), onnx.ModelProto),
    "Path": (_saved, onnx.ModelProto),
    "bytes": (lambda m, f: m.SerializeToString(), onnx.ModelProto),
    "bytearray": (lambda m, f: bytearray(m.SerializeToString()), onnx.ModelProto),
    "ModelProto": (lambda m, f: m, onnx.ModelProto),
    "gs.Graph": (lambda m, f: gs.import_onnx(m), gs.Graph),
    "onnx_ir.Model": (lambda m, f: onnx_ir.from_proto(m), onnx_ir.Model),
    "Program": (lambda m, f: onnxgrad.load(m), Program),
    "Program of a file": (lambda m, f: onnxgrad.load(_saved(m, f)), Program),
    "BindingBlock": (lambda m, f: onnxgrad.load(m).main, BindingBlock),
    "BytesIO": (lambda m, f: _at_end(m), onnx.ModelProto),
    "open file": (
        lambda m, f: io.BufferedReader(io.BytesIO(m.SerializeToString())),
        onnx.ModelProto,
    ),  # type: ignore[arg-type]
    "ONNXProgram": (lambda m, f: ONNXProgram(m), onnx.ModelProto),
    "onnxscript": (lambda m, f: OnnxFunction(m), onnx.ModelProto),
}

X = capture("x")
RELU = P.Relu(X)
TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "optimize": onnxgrad.optimize,
    "gradient": lambda m: onnxgrad.gradient(m, ["x", "w"], adjoint="input"),
    "jvp": onnxgrad.jvp,
    "rewrite_call": lambda m: onnxgrad.rewrite_call(RELU, lambda x: op.Max(x, 0.0), m),
    "rewrite_bindings": lambda m: onnxgrad.rewrite_bindings(
        PatternContext(RELU), lambda m: {RELU: op.Max(m[X], 0.0)}, m
    ),
}
REPORTS: dict[str, Callable[[Any], Any]] = {
    "verify": lambda m: onnxgrad.verify(m, parse(TEXT)).ok,
    "verify as candidate": lambda m: onnxgrad.verify(parse(TEXT), m).ok,
    "check_gradient": lambda m: onnxgrad.check_gradient(m, ["x", "w"]).ok,
    "diff": lambda m: not onnxgrad.diff(m, parse(TEXT)).operators,
    "diff, second": lambda m: not onnxgrad.diff(parse(TEXT), m).operators,
    "inspect": lambda m: (
        onnxgrad.inspect(m).stats.operators == {"Identity": 1, "MatMul": 1, "Relu": 1}
    ),
}


def _proto(model: Any) -> onnx.ModelProto:
    return onnxgrad.ir.save.to_proto(onnxgrad.load(model), weights=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", TRANSFORMS)
def test_transform(function: str, kind: str, tmp_path: Path) -> None:
    make, back = KINDS[kind]
    given = make(parse(TEXT), tmp_path)
    in_place = function.startswith("rewrite") and back in (Program, BindingBlock)
    found = TRANSFORMS[function](given)
    assert type(found) is back
    assert (found is given) == in_place
    wanted, after = TRANSFORMS[function](parse(TEXT)), _proto(found)
    assert [n.op_type for n in after.graph.node] == [n.op_type for n in wanted.graph.node]
    assert not any(t.data_location for t in after.graph.initializer), "weights are loaded"
    if not in_place and kind != "open file":
        assert [n.op_type for n in _proto(given).graph.node] == ["Identity", "MatMul", "Relu"], (
            "given is not changed"
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", REPORTS)
def test_report(function: str, kind: str, tmp_path: Path) -> None:
    assert REPORTS[function](KINDS[kind][0](parse(TEXT), tmp_path)) is True


@pytest.mark.parametrize("kind", KINDS)
def test_load(kind: str, tmp_path: Path) -> None:
    given = KINDS[kind][0](parse(TEXT), tmp_path)
    program = onnxgrad.load(given)
    assert isinstance(program, Program) and [b.op for b in program.main.bindings] == [
        "Identity",
        "MatMul",
        "Relu",
    ]
    assert onnxgrad.load(program) is program


def test_a_changed_program_is_proved_against_itself(tmp_path: Path) -> None:
    """Not against the file that it once was: its owner's changes are no rewrites of ours."""
    program = onnxgrad.load(_saved(parse(TEXT), tmp_path))
    onnxgrad.rewrite_call(RELU, lambda x: op.Neg(x), program)
    found = onnxgrad.optimize(program)
    assert [b.op for b in found.main.bindings] == ["MatMul", "Neg"]
    assert (
        not onnxgrad.verify(program, tmp_path / "m.onnx").ok and onnxgrad.verify(program, found).ok
    )


def test_functions_are_proved_too() -> None:
    """The proof of what has no file runs the whole model, functions included."""
    text = """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
      g (float[N,2] x) => (float[N,2] y) { i = Identity(x) y = own.f(i) }
      <domain: "own", opset_import: ["" : 20]> f (a) => (b) { b = Tanh(a) }"""
    found = onnxgrad.optimize(onnxgrad.load(parse(text)))
    assert [b.op for b in found.main.bindings] == ["f"] and onnxgrad.optimize(parse(text)).functions


def test_a_wrong_law_is_found_in_a_program_and_in_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bisecting reads the model again and again."""
    from onnxgrad.jobs import rewriting as module

    def broken(pipeline: Any, program: Program, trace: Any, *told: Any) -> list[Any]:
        (relu,) = [b for b in program.main.bindings if b.op == "Relu"]
        if not trace.stopped:
            with onnxgrad.emitting(program.main):
                program.main.replace(relu.out, op.Neg(relu.inputs[0]))
            trace.fired("relu_is_neg", str(relu))
        return []

    monkeypatch.setattr(module.Pipeline, "run", broken)
    for given in (onnxgrad.load(parse(TEXT)), io.BufferedReader(_at_end(parse(TEXT)))):  # type: ignore[arg-type]
        if not isinstance(given, Program):
            given.seek(0)
        with pytest.raises(onnxgrad.RewriteRefuted, match="number 1, relu_is_neg"):
            onnxgrad.optimize(given)


@pytest.mark.parametrize("function", [*TRANSFORMS, *REPORTS, "load"])
def test_what_is_no_model(function: str) -> None:
    call = {**TRANSFORMS, **REPORTS, "load": onnxgrad.load}[function]
    block = onnxgrad.load(
        parse("""g (bool c, float[2] x) => (float[2] y) {
      y = If (c) <then_branch = a () => (float[2] p) { p = Neg(x) }, else_branch = b () => (float[2] p) { p = Abs(x) }>
    }""")
    ).main
    nested = next(iter(next(iter(block.bindings)).blocks.values()))
    others = [np.zeros(100_000), io.StringIO("text"), parse(TEXT).graph, 3, None]
    for given in others if function.startswith("rewrite") else [*others, nested]:
        with pytest.raises(InputError) as error:
            call(given)
        assert len(str(error.value)) < 300 and "\n" not in str(error.value)


# what else takes a model
OTHERS: dict[str, Callable[[Any], Any]] = {
    "weights": onnxgrad.weights,
    "hessian_vector_product": lambda m: onnxgrad.hessian_vector_product(m, "x", "y[0,0]"),
    "jacobian": lambda m: onnxgrad.jacobian(m, "w", "y[0,0]"),
    "convert_opset": lambda m: onnxgrad.convert_opset(m, 21),
    "edit": lambda m: onnxgrad.edit(m, rename={"y": "u"}),
    "join": lambda m: onnxgrad.join(m, m, map={"y": "x"}, prefix="b.", verify=False),
    "preprocess": lambda m: onnxgrad.preprocess(m, after="argmax"),
    "extract": lambda m: onnxgrad.extract(m, ["x"], ["t"]),
    "fix_dims": lambda m: onnxgrad.fix_dims(m, {"N": 2}),
    "float16": lambda m: onnxgrad.float16(m, metric="worst=0.1"),
    "set_metadata": lambda m: onnxgrad.set_metadata(m, {"by": "hand"}),
    "to_graphsurgeon": onnxgrad.to_graphsurgeon,
    "training_step": lambda m: onnxgrad.training_step(m, "mse", "sgd", "w"),
}


@pytest.mark.filterwarnings("ignore:no requested value reaches")  # a second derivative of Relu
@pytest.mark.parametrize("function", OTHERS)
def test_torchs_program_goes_in_everywhere(function: str) -> None:
    assert OTHERS[function](ONNXProgram(parse(TEXT))) is not None


def test_to_proto_takes_what_was_loaded() -> None:
    with pytest.raises(InputError, match=r"must be a Program, which onnxgrad\.load returns"):
        onnxgrad.to_proto(ONNXProgram(parse(TEXT)))  # type: ignore[arg-type]


@pytest.mark.parametrize("found", [None, b"model", {"graph": 1}, onnx.GraphProto()], ids=type)
@pytest.mark.parametrize("kind", [ONNXProgram, OnnxFunction])
def test_a_kind_that_gives_something_else_than_a_model(kind: Any, found: Any) -> None:
    words = f"the {kind.__name__} returned a {type(found).__name__}, not a ModelProto"
    with pytest.raises(InputError, match=words):
        onnxgrad.load(kind(found))


def test_an_onnxscript_function_that_gives_no_model() -> None:
    class Untyped(OnnxFunction):
        def to_model_proto(self) -> onnx.ModelProto:
            raise TypeError("a model needs attributes with values " * 100)

    with pytest.raises(InputError, match="'f' returns no model: TypeError: a model needs") as error:
        onnxgrad.load(Untyped(parse(TEXT)))
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("function", TRANSFORMS)
def test_over_two_gigabytes_is_said_before_the_work(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _saved(parse(TEXT), tmp_path)
    monkeypatch.setattr(external_data, "MAX_BYTES", 16)
    with pytest.raises(
        InputError, match=r"pass 2 GB.*onnxgrad.load\(path\).*onnxgrad.save\(program, path\)"
    ):
        TRANSFORMS[function](path)
    if function != "optimize":  # whose proof would write such a model into one file
        assert isinstance(TRANSFORMS[function](onnxgrad.load(path)), Program)
