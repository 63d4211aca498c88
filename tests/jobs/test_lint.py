"""Each lint fires on a model with its fault, and stays silent on one that only looks like it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.jobs.lint.table import LINTS, Refused, lint
from tests.cli.conftest import Result, run
from tests.helpers import ROOT, parse

Run = Callable[..., Result]
__all__ = ["run"]


def weighed(*values: float, dtype: type = np.float32, typed: bool = False) -> ModelProto:
    """A model with this weight, as raw data or `typed`."""
    name = {np.float32: "float", np.float64: "double", np.float16: "float16"}[dtype]
    size = len(values)
    model = parse(
        f"g ({name}[{size}] x) => ({name}[{size}] y) <{name}[{size}] w> {{ y = Mul(x, w) }}"
    )
    array = np.array(values, dtype)
    code = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    made = (
        onnx.helper.make_tensor("w", code, [size], values)
        if typed
        else numpy_helper.from_array(array, "w")
    )
    model.graph.initializer.append(made)
    return model


def bfloat(*bits: int) -> ModelProto:
    model = weighed(*([1.0] * len(bits)))
    raw = np.array(bits, np.uint16).tobytes()
    model.graph.initializer[0].CopyFrom(
        TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=[len(bits)], raw_data=raw)
    )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    return model


def told(text: str) -> ModelProto:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.graph.node[0].metadata_props.add(key="where", value=text)
    return model


def valued(text: str) -> ModelProto:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.graph.input[0].doc_string = text
    return model


# a frame of a traceback, and a file of an installed package
FRAME = 'File "{}", line 3, in forward\n    y = self.secret(x)\n'
PACKAGED = "{}/site-packages/torch/nn/modules/conv.py"


def missing(place: str) -> ModelProto:
    model = weighed(1, 2)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    return model


NAN, INF = float("nan"), float("inf")
DROP = "g (float[4] x) => (float[4] y) {{ r = Constant<value_float = {}>() t = Constant<value = bool {{{}}}>() y = Dropout(x, r, t) }}"
NORM = """g (float[2,3,4] x) => (float[2,3,4] y) <float[3] s = {{1, 1, 1}}, float[3] b = {{0, 0, 0}}> {{
  y{} = BatchNormalization<training_mode = {}>(x, s, b, b, s) }}"""
OLD_NORM = NORM.replace("<training_mode = {}>", "")  # before opset 14
POOL = '<ir_version: 10, opset_import: ["": {}]> g (float[1,2,4,4] x) => (float[1,2,1,1] y) {{ y = {}(x) }}'
# lint: models on which it fires with these words, models on which it does not
CASES: dict[str, tuple[list[tuple[ModelProto, str]], list[ModelProto]]] = {
    "nan-weights": (
        [
            (weighed(1, NAN), "NaN in weight 'w'"),
            (weighed(NAN, NAN, typed=True), "2 numbers are NaN in weight 'w'"),
            (weighed(1, NAN, dtype=np.float16), "NaN in weight 'w'"),
            (weighed(1, NAN, dtype=np.float64), "NaN in weight 'w'"),
            (bfloat(0x3F80, 0xFFC0), "NaN in weight 'w'"),
            (parse("g (float[1] x) => (float[1] y) { c = Constant<value = float[1] {nan}>() y = Mul(x, c) }"), "'c'"),
            (
                parse("g (bool c) => (float[1] y) { y = If(c) <then_branch = a () => (float[1] u) <float[1] w = {nan}>"
                      " { u = Identity(w) }, else_branch = b () => (float[1] v) <float[1] z = {1}> { v = Identity(z) }> }"),
                "'w'",
            ),
        ],
        [weighed(1, 2), weighed(1, INF), bfloat(0x7F80, 0x3F80), weighed(65504, -65504, dtype=np.float16)],
    ),
    "infinite-weights": (
        [
            (weighed(0.5, INF), "infinity in weight 'w'"),
            (weighed(0.5, -INF, INF, dtype=np.float16), "2 numbers are infinity"),
            (bfloat(0x4000, 0x7F80), "infinity"),
        ],
        [weighed(0, -INF), weighed(-INF), weighed(1, 0, -INF, dtype=np.float16), weighed(NAN, 0.5)],
    ),
    "zero-weights": (
        [
            (parse("g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {0,0,0,0}> { y = MatMul(x, w) }"), "weight 'w' is all zero"),
            (parse("g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {0,0,0,0}> { t = Transpose(w) y = MatMul(x, t) }"), "weight 'w'"),
            (parse("g (int64[2] i) => (float[2,2] y) <float[2,2] w = {0,0,0,0}> { y = Gather(w, i) }"), "weight 'w' is"),
            (parse("g (float[1,1,4] x) => (float[1,1,4] y) <float[1,1,2] v = {0,0}, float[1,1,3] w = {0,0,0}> {"
                   " a = Conv<pads = [1,1]>(x, w) b = Conv<pads = [1,0]>(a, v) y = Relu(b) }"), "weights 'w', 'v' are all zero"),
        ],
        [
            weighed(0, 0),
            parse("g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {0,0,0,1}> { y = MatMul(x, w) }"),
            parse("g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {0,0,0,0}> { y = Add(x, w) }"),
            parse("g (float[2,1] x) => (float[2,1] y) <float[1,1] w = {0}> { y = MatMul(x, w) }"),
            parse("g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1,1,1,1}, float[2] b = {0,0}> { y = Gemm(x, w, b) }"),
        ],
    ),
    "missing-weights": ([(missing("w.bin"), "its file is missing, expected at")], [missing("there.bin")]),
    "dead-outputs": (
        [
            (parse("g (float[2] x) => (float[2] y, float[2] z) <float[2] c = {1, 2}> { y = Relu(x) z = Neg(c) }"), "output 'z' is constant"),
            (weighed(0, 0), "output 'y' is constant"),
            (weighed(0, 0, dtype=np.float16), "output 'y' is constant"),
            (parse("g (float[2,3] x) => (float[2,4] y) <float[3,4] w = {0,0,0,0,0,0,0,0,0,0,0,0}, float[4] b = {1,2,3,4}>"
                   " { y = Gemm(x, w, b) }"), "output 'y' is constant"),
            (parse("g (float[2,3] x) => (int64[2] y) { y = Shape(x) }"), "output 'y' is constant"),
        ],
        [
            weighed(0, 1),
            parse("g (float[N,3] x) => (int64[2] y) { y = Shape(x) }"),
            parse("g (float[1,4] x) => (float[1,4] y) <float[4] z = {0,0,0,0}> { y = Add(x, z) }"),
            parse("g (float[2,3] x, float[2,4] c) => (float[2,4] y) <float[3,4] w = {0,0,0,0,0,0,0,0,0,0,0,0}> { y = Gemm(x, w, c) }"),
            parse("g () => (float[2] y) <float[2] c = {1, 2}> { y = Neg(c) }"),
            parse("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = RandomNormal<shape = [2]>() }"),
            parse("g (bool c, float[1] x) => (float[1] y) { y = If(c) <then_branch = a () => (float[1] u)"
                  " { u = Identity(x) }, else_branch = b () => (float[1] v) { v = Neg(x) }> }"),
        ],
    ),
    "training-mode": (
        [
            (parse(NORM.format(", m, v", 1)), "BatchNormalization"),
            (parse(OLD_NORM.format(", m, v, c, d"), opset=13), "BatchNormalization"),
            (parse(DROP.format(0.5, 1)), "Dropout"),
        ],
        [
            parse(NORM.format("", 0)), parse(OLD_NORM.format(""), opset=13), parse(DROP.format(0.5, 0)),
            parse(DROP.format(0.0, 1)),
        ],
    ),
    "random-operators": (
        [(parse("g (float[2] x) => (float[2] y) { r = RandomUniformLike(x) y = Add(x, r) }"), "RandomUniformLike")],
        [parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"), parse(DROP.format(0.5, 0))],
    ),
    "unread-inputs": (
        [(parse("g (float[2] x, float[2] z) => (float[2] y) { y = Neg(x) }"), "nothing reads input 'z'")],
        [
            parse("g (float[2] x) => (float[2] x) {}"),
            parse("g (float[2] x, float[2] z) => (float[2] y) <float[2] z = {1, 2}> { y = Neg(x) }"),
            parse("g (bool c, float[1] x) => (float[1] y) { y = If(c) <then_branch = a () => (float[1] u)"
                  " { u = Identity(x) }, else_branch = b () => (float[1] v) { v = Neg(x) }> }"),
        ],
    ),
    "float64-islands": (
        [(parse("g (float[2] x) => (float[2] y) { d = Cast<to = 11>(x) e = Exp(d) y = Cast<to = 1>(e) }"), "Exp 'e'")],
        [
            parse("g (double[2] x) => (double[2] y) { y = Exp(x) }"),
            parse("g (float[2] x) => (double[2] y) { y = Cast<to = 11>(x) }"),
            parse("g (float[2] x, double[2] z) => (double[2] y) { d = Cast<to = 11>(x) y = Add(d, z) }"),
        ],
    ),
    "missing-kernels": (
        [(parse(POOL.format(22, "GlobalLpPool")), "no kernel for GlobalLpPool of opset 22")],
        [
            parse(POOL.format(21, "GlobalLpPool")),
            parse(POOL.format(22, "GlobalAveragePool")),
            parse(POOL.format(22, "Mish").replace("[1,2,1,1]", "[1,2,4,4]")),  # has a function body
        ],
    ),
    "host-paths": (
        [
            (told('File "/home/me/net.py", line 3, in forward'), "1 doc string or metadata entry reveals the exporting machine, such as /home/me/net.py"),
            (told("written to /Users/me/out.bin"), "/Users/me/out.bin"),
            (told(r"C:\models\net.onnx"), r"C:\models\net.onnx"),
            (told(r"from \\store\team\net.onnx"), r"\\store\team\net.onnx"),
            (told("file:///home/me/net"), "/home/me/net"),
            (told("/workspace/secret/net.py:3"), "/workspace/secret/net.py"),
            (told(FRAME.format("/data/my net/net.py")), "/data/my net/net.py: y = self.secret(x)"),
            (told(FRAME.format("net.py")), "net.py: y = self.secret(x)"),
            (told(FRAME.format(PACKAGED.format("/home/me/env/lib/python3.12"))), "/home/me/env/lib/"),
            (told(FRAME.format(PACKAGED.format("/opt/env/lib/python3.12")) + FRAME.format("net.py")), "net.py: y"),
            (valued("/mnt/net.py"), "/mnt/net.py"),
        ],
        [
            told("/encoder/layer.0/attention"), told("a: b / c"), told("node happy.python"),
            told("torch/nn/modules/conv.py:553 in forward"), told("exporting/own.py:20 in forward"),
            told('File "net.py", line 3, in forward'), told("https://host.org/home/me/net.py"),
            told(FRAME.format(PACKAGED.format("/opt/env/lib/python3.12"))),
            told(FRAME.format("/usr/lib/python3.12/functools.py")), told(FRAME.format("<eval_with_key>.1")),
            told(r"\\u0041\\n"),
        ],
    ),
}  # fmt: skip


def findings(model: ModelProto, name: str, folder: Path) -> list[str]:
    (folder / "there.bin").write_bytes(np.ones(2, np.float32).tobytes())
    (path := folder / "m.onnx").write_bytes(model.SerializeToString())
    off = {other: "off" for other in LINTS if other != name}
    return [str(found) for found in lint(load(path), off)]


@pytest.mark.parametrize("name", CASES)
def test_a_lint_fires_on_its_fault(name: str, tmp_path: Path) -> None:
    for model, words in CASES[name][0]:
        (found,) = findings(model, name, tmp_path)
        assert found.startswith("warning: ") and found.endswith(f" [{name}]") and words in found


@pytest.mark.parametrize("name", CASES)
def test_a_lint_is_silent_on_what_only_looks_like_its_fault(name: str, tmp_path: Path) -> None:
    for i, model in enumerate(CASES[name][1]):
        assert findings(model, name, tmp_path) == [], i


def test_every_lint_has_cases() -> None:
    assert {*CASES, "nan-outputs"} == {*LINTS}


def test_good_models_have_no_findings() -> None:
    for path in sorted((ROOT / "models").glob("*.onnx")):
        assert lint(load(path)) == [], path


def test_texts_that_reveal_the_exporting_machine_are_counted(tmp_path: Path) -> None:
    model = told("/home/me/net.py")
    model.doc_string = "/home/me/export.py"
    (text,) = findings(model, "host-paths", tmp_path)
    assert (
        "2 doc strings and metadata entries reveal" in text and "such as /home/me/export.py" in text
    )


ROOTS = "g (float[N] x) => (float[N] y) { a = Relu(x) y = Div(x, a) }"


def test_outputs_of_the_proof(run: Run, tmp_path: Path) -> None:
    onnx.save(parse(ROOTS), tmp_path / "m.onnx")
    words = ("optimize", tmp_path / "m.onnx", "--dry-run")
    done = run(*words)
    assert done.code == 0
    assert "NaN or infinity in output 'y' on generated inputs [nan-outputs]" in done.out
    assert done.out.index("nan-outputs") < done.out.index("equal on cpu")
    refused = run(*words, "--lint", "nan-outputs=error")
    assert refused.code == 1 and "[nan-outputs]; nothing was written" in refused.err
    assert "nan-outputs" not in run(*words, "--lint", "nan-outputs=off").out
    np.savez(tmp_path / "x.npz", x=np.ones(3, np.float32))
    assert "nan-outputs" not in run(*words, "--input", tmp_path / "x.npz").out


def test_levels_of_recipes_and_what_reports_tell(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the terminal, JSON, HTML, Markdown and JUnit; a model's table adds to the common one."""
    monkeypatch.chdir(tmp_path)
    onnx.save(weighed(1, NAN), "bad.onnx")
    onnx.save(parse("g (float[2] x, float[2] z) => (float[2] y) { y = Neg(x) }"), "odd.onnx")
    Path("onnxgrad.toml").write_text(
        '[lint]\nnan-weights = "error"\n[models."odd.onnx".lint]\nhost-paths = "error"\n'
        '[ci]\nmodels = ["*.onnx"]\nout = "out"\n'
    )
    files = ["--html", "r.html", "--junit", "r.xml", "--markdown", "r.md", "--json", "r.json"]
    done = run("ci", "--keep-going", *files)
    assert done.code == 1 and not Path("out/bad.onnx").exists() and Path("out/odd.onnx").exists()
    nan, unread = "NaN in weight 'w' [nan-weights]", "nothing reads input 'z' [unread-inputs]"
    for text in (done.out, Path("r.xml").read_text().replace("&apos;", "'")):
        assert f"error: {nan}" in text and f"warning: {unread}" in text
    assert (
        "nan-weights" in Path("r.html").read_text() and "unread-inputs" in Path("r.md").read_text()
    )
    bad, odd = json.loads(Path("r.json").read_text())["models"]
    assert bad["status"] == "failed" and [f["level"] for f in bad["lints"]] == ["error"]
    assert odd["status"] == "passed" and [f["lint"] for f in odd["lints"]] == ["unread-inputs"]
    # the recipe of this folder is for `optimize` too, unless it is told to ignore it
    assert run("optimize", "bad.onnx", "--dry-run").code == 1
    assert nan in run("optimize", "bad.onnx", "--dry-run", "--no-config").out
    several = run(
        "optimize", "bad.onnx", "odd.onnx", "--dry-run", "--no-config", "--json", "o.json"
    )
    assert f"bad.onnx: warning: {nan}" in several.out
    assert [len(m["lints"]) for m in json.loads(Path("o.json").read_text())["models"]] == [2, 1]
    both = run("optimize", "bad.onnx", "--dry-run", "--no-config", "--config", "onnxgrad.toml")
    assert both.code == 2 and "--no-config does not apply with --config" in both.err
    shown = run("inspect", "bad.onnx", "--html", "i.html", "--json", "i.json")
    assert shown.code == 0 and f"warning: {nan}" in shown.out
    assert (
        "nan-weights" in Path("i.html").read_text() and "nan-weights" in Path("i.json").read_text()
    )


def test_lints_in_python() -> None:
    model = weighed(1, NAN)
    with pytest.raises(Refused, match=r"NaN in weight 'w' \[nan-weights\]; nothing was written"):
        onnxgrad.optimize(model, lint={"nan-weights": "error"})
    found = onnxgrad.optimize(model, report=True, allow_empty=["y"])
    assert "warning: NaN in weight 'w' [nan-weights]" in str(found)
    with pytest.raises(InputError, match="no lint 'nan-weight'; did you mean 'nan-weights'"):
        onnxgrad.optimize(model, lint={"nan-weight": "error"})
    with pytest.raises(InputError, match="must be one of error, warn, off"):
        onnxgrad.optimize(model, lint={"nan-weights": "fatal"})
