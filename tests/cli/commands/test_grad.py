"""`grad`, `check-grad` and `ops` as a user calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxgrad.cli.app import main
from onnxgrad.grad.coverage import page
from onnxgrad.verify.running.session import run
from tests.cli.conftest import Result
from tests.helpers import MODELS_DIR, parse
from tests.rewriting import model_of, weights

LOSS = """g (float[N,3] x, int64[N] i) => (float loss) {
    t = Tanh (x)
    q = Mul (t, x)
    loss = ReduceSum <keepdims = 0> (q)
}"""
CUSTOM = LOSS.replace("t = Tanh (x)", "t = my.domain.Twice (x)")
RULES = 'import onnxgrad\nonnxgrad.vjp("my.domain::Twice", lambda g, y, x: g * 2.0, replace=True)\n'


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "loss.onnx"
    onnx.save(parse(LOSS), path)
    return str(path)


def test_writes_a_graph_that_onnxruntime_runs(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, out, report = Path(model).read_bytes(), tmp_path / "grad.onnx", tmp_path / "report.json"
    assert main(["grad", model, "-o", str(out), "--json", str(report)]) == 0
    assert "gradient agrees with finite differences" in capsys.readouterr().out
    x = np.float32([[0.1, -0.5, 2.0]])
    found = run(out, {"x": x, "i": np.zeros(1, np.int64)})
    expected = np.tanh(x) + x * (1 - np.tanh(x) ** 2)
    np.testing.assert_allclose(found["x_grad"], expected, rtol=1e-5)
    assert json.loads(report.read_text())["adjoints"] == {"x": "x_grad"}
    assert Path(model).read_bytes() == before


def test_params_of_a_real_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "grad.onnx"
    source = MODELS_DIR / "training" / "mlp.onnx"
    assert (
        main(["grad", str(source), "--wrt", "params", "--checkpoint", "auto", "-o", str(out)]) == 0
    )
    assert "with respect to 6 values" in capsys.readouterr().out
    added = [v.name for v in onnx.load(out).graph.output][1:]
    assert added == [f"{layer}.{kind}_grad" for layer in (0, 2, 4) for kind in ("weight", "bias")]


def test_weights_of_branches_that_are_called_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The proof asks for them by the names that they get in the main graph."""
    text = """g (float[2,3] x, bool c) => (float[2,3] y) {
      y = If (c) <then_branch = t () => (float[2,3] p) <float[3] w = {1,2,3}> { p = Mul (x, w) },
                  else_branch = e () => (float[2,3] q) <float[3] w = {2,1,1}> { q = Sub (w, x) }> }"""
    onnx.save(parse(text), tmp_path / "m.onnx")
    words = [
        "grad",
        str(tmp_path / "m.onnx"),
        "--wrt",
        "params",
        "--adjoint",
        "input",
        "-o",
        str(tmp_path / "g.onnx"),
    ]
    assert main(words) == 0, capsys.readouterr().err
    assert "gradient agrees with finite differences: 2 values" in capsys.readouterr().out


def test_stop_and_a_part_as_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """g (float[2,3] x) => (float[2,4] logits) <float[3,3] w = {1,2,3,0,1,0,1,1,2}, float[3,4] v = {1,2,3,4,5,6,7,8,9,1,2,3}>
      { h = MatMul (x, w) t = Tanh (h) logits = MatMul (t, v) }"""
    source, out = str(tmp_path / "m.onnx"), tmp_path / "g.onnx"
    onnx.save(parse(text), source)
    request = ["--wrt", "params,x", "--target", "logits[:,1]", "--stop", "h*"]
    assert main(["grad", source, "-o", str(out), *request]) == 0
    printed = capsys.readouterr().out
    assert "note: target 'logits[:,1]' is f32[2]: the gradient is that of its sum" in printed
    assert (
        "note: the gradient of 'x' is zero: it stops at 'h'" in printed
        and "gradient agrees" in printed
    )
    assert [v.name for v in onnx.load(out).graph.output] == ["logits", "v_grad", "x_grad"]
    assert main(["check-grad", source, *request]) == 0
    assert "no path to the target from x" in capsys.readouterr().out
    assert (
        main(
            [
                "grad",
                source,
                "-o",
                str(out),
                "--adjoint",
                "input",
                "--target",
                "logits[0]",
                "--wrt",
                "x",
            ]
        )
        == 0
    )
    assert "new input logits_slice_grad: the adjoint of logits[0]" in capsys.readouterr().out
    assert onnx.load(out).graph.input[-1].type.tensor_type.shape.dim[0].dim_value == 4


@pytest.mark.slow
def test_params_but_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "grad.onnx"
    source = MODELS_DIR / "training" / "bert.onnx"
    words = ["--wrt", "params,!*.embeddings.*", "--wrt", "!*.bias", "--target", "loss"]
    assert main(["grad", str(source), *words, "-o", str(out)]) == 0
    assert "with respect to 34 values" in capsys.readouterr().out
    added = [v.name for v in onnx.load(out).graph.output][1:]
    assert all("embeddings" not in name and name.endswith(".weight_grad") for name in added)


@pytest.mark.slow
def test_the_same_call_writes_the_same_bytes(model: str, tmp_path: Path) -> None:
    """In a process of its own too, whose hashes of names are others."""
    outs = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    words = [["grad", model, "-o", str(out), "-q", "--no-verify"] for out in outs]
    assert main(words[0]) == 0
    env = {**os.environ, "PYTHONHASHSEED": "12345"}
    subprocess.run([sys.executable, "-m", "onnxgrad", *words[1]], check=True, timeout=60, env=env)
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_check_grad(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-grad", model, "--wrt", "x", "--wrt", "t"]) == 0
    printed = capsys.readouterr().out
    assert "2 values" in printed


def test_a_wrong_rule_is_found_and_nothing_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = parse(LOSS.replace("t = Tanh (x)", "t = my.domain.Halve (x)"))
    body = onnx.parser.parse_function(
        '<opset_import: ["" : 20], domain: "my.domain"> Halve (a) => (b) '
        "{ h = Constant <value = float {0.5}> ()  b = Mul (a, h) }"
    )
    model.functions.append(body)
    model.opset_import.add(domain="my.domain", version=1)
    path, rules, out = tmp_path / "m.onnx", tmp_path / "rules.py", tmp_path / "g.onnx"
    onnx.save(model, path)
    rules.write_text(
        'import onnxgrad\nonnxgrad.vjp("my.domain::Halve", lambda g, y, x: g * 0.7, replace=True)\n'
    )
    assert main(["grad", str(path), "-o", str(out), "--plugin", str(rules), "--wrt", "x"]) == 1
    assert "DIFFERS" in capsys.readouterr().err
    assert not out.exists()


def test_rules_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, rules, out = tmp_path / "m.onnx", tmp_path / "rules.py", tmp_path / "g.onnx"
    proto = parse(CUSTOM)
    proto.opset_import.add(domain="my.domain", version=1)
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("t", 1, ["N", 3]))
    onnx.save(proto, path)
    assert main(["grad", str(path), "-o", str(out), "--no-verify"]) == 2
    complaint = capsys.readouterr().err
    assert "no gradient rule for my.domain::Twice" in complaint and "--plugin" in complaint
    rules.write_text(RULES)
    assert main(["grad", str(path), "-o", str(out), "--no-verify", "--plugin", str(rules)]) == 0
    rules.write_text("x = 1 / 0\n")
    capsys.readouterr()
    assert main(["grad", str(path), "-o", str(out), "--plugin", str(rules)]) == 2
    assert "line 1: ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--wrt", "nothing"], "'nothing' is not a value"),
        (["--wrt", "i"], "'i'"),
        (["--wrt", "x", "--wrt", "x"], "twice"),
        (["--target", "q", "--adjoint", "ones"], "not a scalar"),
        (["--target", "3"], "out of range"),
        (["--target", "i"], "'i'"),
        (["--names", "grad"], "{}"),
        (["--checkpoint", "plenty"], "'plenty' is not a value"),
        (["--plugin", "missing.py"], "no such file"),
        (["--wrt", "x,!t*"], "takes nothing away"),
        (["--stop", "nothing"], "stop 'nothing' is not a value"),
        (["--stop", "x"], "leave it out of wrt (!x)"),
        (["--target", "loss[9]"], "has 1 place,"),
        (
            ["--function", "f", "--stop", "t"],
            "remove --wrt, --target, --stop, --checkpoint and --loss",
        ),
        (["--wrt", "x", "--wrt", "!x"], "leaves nothing"),
    ],
)
def test_bad_requests(
    model: str, tmp_path: Path, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.onnx"
    assert main(["grad", model, "-o", str(out), *words]) == 2
    printed = capsys.readouterr().err
    assert complaint in printed and printed.count("\n") == 1
    assert not out.exists()


def test_output_over_the_input_is_refused(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grad", model, "-o", model]) == 2
    assert "same file" in capsys.readouterr().err


def test_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--markdown"]) == 0
    assert capsys.readouterr().out == page()
    assert main(["ops", "Relu", "NoSuchOp"]) == 2
    assert "NoSuchOp" in capsys.readouterr().err


@pytest.mark.slow
def test_a_file_that_onnxruntime_optimised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    source = str(MODELS_DIR / "training" / "bert.onnx")
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    fused = tmp_path / "fused.onnx"
    assert {n.domain for n in onnx.load(fused).graph.node} == {"", "com.microsoft"}
    assert (
        main(
            [
                "grad",
                str(fused),
                "--wrt",
                "bert.encoder.layer.1.*",
                "-o",
                str(tmp_path / "grad.onnx"),
            ]
        )
        == 0
    )
    assert "gradient agrees with finite differences" in capsys.readouterr().out
    onnx.checker.check_model(onnx.load(tmp_path / "grad.onnx"))


def test_zero_against_zero_is_not_proved(run: Callable[..., Result], tmp_path: Path) -> None:
    path, out = tmp_path / "dead.onnx", tmp_path / "g.onnx"
    text = "g (float[4] x) => (float y) { a = Abs(x) z = Neg(a) r = Relu(z) y = ReduceSum <keepdims = 0> (r) }"
    onnx.save(parse(text), path)
    done = run("grad", path, "-o", out)
    assert (
        done.code == 1
        and "gradient not proved: every gradient and every difference is 0 (x)" in done.err
    )
    assert "0 = 0" in done.out and not out.exists()
    assert run("check-grad", path).code == 1
    assert run("grad", path, "-o", out, "--allow-empty", "x").code == 0 and out.exists()
    assert run("check-grad", path, "--allow-empty", "x").code == 0
    assert run("grad", path, "-o", out, "--allow-empty", "q").code == 2


def test_a_name_of_megabytes_is_not_printed_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    name = "x" * 3_000_000
    onnx.save(
        parse(f"g (float[2] {name}) => (float y) {{ y = ReduceSum <keepdims = 0> ({name}) }}"), path
    )
    assert main(["grad", str(path), "-o", str(tmp_path / "o.onnx"), "--no-verify"]) == 0
    assert len(capsys.readouterr().out) < 20_000


def test_a_classifier_needs_no_options(run: Callable[..., Result], tmp_path: Path) -> None:
    text = "g (float[N,3] x) => (float[N,2] logits) { logits = MatMul (x, w) }"
    onnx.save(model_of(text, weights(w=(3, 2))), tmp_path / "m.onnx")
    out = tmp_path / "g.onnx"
    done = run("grad", tmp_path / "m.onnx", "-o", out)
    assert done.code == 0 and done.out.endswith(f"wrote {out}\n")
    assert "new input logits_grad: the adjoint of logits" in done.out
    assert "f32[N,2], not a scalar: its adjoint is an input; or name a part, such as" in done.out
    assert [v.name for v in onnx.load(out).graph.input] == ["x", "logits_grad"]
    assert run("grad", tmp_path / "m.onnx", "-o", out, "--target", "logits[:,0]").code == 0
    assert [v.name for v in onnx.load(out).graph.input] == ["x"]


def test_one_of_several_outputs_is_named(run: Callable[..., Result], tmp_path: Path) -> None:
    text = "g (float[3] x) => (int64 k, float[3] y) { k = Size (x)  y = Tanh (x) }"
    onnx.save(model_of(text, {}), tmp_path / "m.onnx")
    done = run("grad", tmp_path / "m.onnx", "-o", tmp_path / "g.onnx")
    assert done.code == 2 and "by name or index, such as --target y" in done.err
