"""`open-batch`: the command and the function."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError, NotProved
from onnxgrad.verify import run
from tests.helpers import parse

TEXT = "g (float[1,3] x) => (float[1,3] y, float[3] z) { y = Exp (x)  q = Squeeze (x)  z = Softmax <axis = 0> (q) }"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out, report = (tmp_path / name for name in ("m.onnx", "o.onnx", "r.json"))
    onnx.save(parse(TEXT), model)
    assert (
        main(
            ["open-batch", str(model), "-o", str(out), "--json", str(report), "--symbol", "N", "-v"]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "output y: f32[N,3]" in printed and "warning: Softmax" in printed
    assert "output 'z' has 3 entries per row" in printed and "independence" in printed
    found = json.loads(report.read_text())
    assert found["inputs"] == {"x": 0} and found["outputs"]["z"] == {
        "axis": 0, "outer": 1, "size": 3, "own": False
    }  # fmt: skip
    assert found["proof"]["verdict"] == "equal" and found["shifted"]
    assert main(["open-batch", str(model), "-o", str(out), "--along", "refuse"]) == 2
    assert "Softmax" in capsys.readouterr().err


def test_nothing_is_written_without_a_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(parse("g (float[1,3] x) => (float[1,3] y) { z = Sub (x, x)  y = Exp (z) }"), model)
    assert main(["open-batch", str(model), "-o", str(out)]) == 1
    assert "every row has the same y" in capsys.readouterr().err and not out.exists()
    assert main(["open-batch", str(model), "-o", str(out), "--no-verify"]) == 0 and out.exists()
    assert main(["open-batch", str(model), "-o", str(out), "--allow-same", "y"]) == 0
    capsys.readouterr()
    assert main(["open-batch", str(model), "-o", str(out), "--allow-same", "z"]) == 2
    assert "--allow-same 'z' is not an output; there are y" in capsys.readouterr().err


def test_the_function() -> None:
    model = onnxgrad.open_batch(parse(TEXT), inputs="x")
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    with pytest.raises(NotProved, match="every row has the same y"):
        onnxgrad.open_batch(
            parse("g (float[1,3] x) => (float[1,3] y) { z = Sub (x, x)  y = Exp (z) }")
        )
    with pytest.raises(InputError, match="not an input; there are x"):
        onnxgrad.open_batch(parse(TEXT), inputs=["w"])


def test_a_batch_above_one_beside_a_dynamic_length() -> None:
    text = """g (float[4,T,6] x) => (float[4,2,T,3] y)
        <int64[4] heads = {4, -1, 2, 3}> { h = Reshape (x, heads)  y = Transpose <perm = [0,2,1,3]> (h) }"""
    opened = onnxgrad.open_batch(parse(text), batch=4)
    declared = opened.graph.output[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in declared] == ["batch", 2, "T", 3]
    x = np.arange(3 * 5 * 6, dtype=np.float32).reshape(3, 5, 6)
    assert np.array_equal(run(opened, {"x": x})["y"], x.reshape(3, 5, 2, 3).transpose(0, 2, 1, 3))
    with pytest.raises(InputError, match="no input has a first axis of size 1"):
        onnxgrad.open_batch(parse(text))


def test_rows_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out, rows = (tmp_path / name for name in ("m.onnx", "o.onnx", "rows.npz"))
    onnx.save(parse("g (float[2,3] x) => (float[2,3] y) { y = Exp (x) }"), model)
    np.savez(rows, x=np.arange(15, dtype=np.float32).reshape(5, 3))
    command = ["open-batch", str(model), "-o", str(out), "--batch", "2", "--input", str(rows)]
    assert main(command) == 0
    assert "batch=5" in capsys.readouterr().out and out.exists()
    np.savez(rows, x=np.zeros((2, 4), np.float32))
    assert main(command) == 2
    assert "--input" in capsys.readouterr().err


RECURRENT = """g (float[5,1,2] x) => (float[5,1,1,3] y, float[1,1,3] h) <float[1,3,2] w = {1,2,3,4,5,6},
    float[1,3,3] r = {1,2,3,4,5,6,7,8,9}, int32[1] lengths = {4}, float[1,3] b3 = {0,0,0}, float[1,1,3] h0 = {1,2,3}>
    { b = Concat <axis = 1> (b3, b3)  y, h = RNN <hidden_size = 3> (x, w, r, b, lengths, h0) }"""


def test_no_rows_at_a_recurrent_operator() -> None:
    """onnxruntime would end the process: a sample of zeros is computed and cut off."""
    model = onnxgrad.open_batch(parse(RECURRENT), inputs="x.1")
    assert not model.graph.input[0].doc_string
    found = run(model, {"x": np.zeros((5, 0, 2), np.float32)})
    assert [np.asarray(v).shape for v in found.values()] == [(5, 1, 0, 3), (1, 0, 3)]


def test_no_rows_end_the_process_at_a_recurrent_operator_of_an_old_opset() -> None:
    """The model says so where its user looks."""
    model = onnxgrad.open_batch(parse(RECURRENT, opset=11), inputs="x.1")
    assert (
        model.graph.input[0].doc_string
        == "batch >= 1: onnxruntime ends the process at RNN 'y' without rows"
    )


def sized(n: int) -> onnx.ModelProto:
    return parse(f"""g (float[1,{n}] x) => (float[{n},1] y) <int64[2] s = {{{n}, 1}}, float[{n}] p = {{{", ".join(map(str, range(n)))}}}>
      {{ a = Add (x, p)  y = Reshape (a, s) }}""")


def test_another_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, other, wrong, out, report = (tmp_path / f"{n}.onnx" for n in ("m", "r", "w", "o", "j"))
    onnx.save(sized(5), model)
    onnx.save(onnxgrad.edit(sized(8), rename={"y": "other name"}), other)
    onnx.save(parse("g (float[1,8] x) => (float[8,1] y) { y = Transpose (x) }"), wrong)
    bare = ["open-batch", str(model), "-o", str(out), "--open", "n=x.1"]
    assert main(bare) == 2 and not out.exists()
    assert "--extend p=ramp, or --extend '*'" in capsys.readouterr().err
    command = [*bare, "--extend", "p=ramp"]
    assert main([*command, "--json", str(report), "-v"]) == 0
    printed = capsys.readouterr().out
    assert "output y: f32[n,1]" in printed and "counts positions" in printed
    assert "proved at n=5" in printed and "only shapes" in printed
    assert json.loads(report.read_text())["sizes"] == {"n": 5} and out.exists()
    assert main([*command, "--reference", str(other)]) == 0
    assert "onnxruntime at n=8" in capsys.readouterr().out
    out.unlink()
    assert main([*command, "--reference", str(wrong)]) == 1 and not out.exists()
    for options in (["--reference", str(other)], ["--extend", "*"]):
        assert main([*bare[:-2], *options]) == 2
        assert f"{options[0]} is for --open, which is missing" in capsys.readouterr().err
    assert main([*bare, "--extend", "q=ramp"]) == 2
    assert "no constant 'q' meets an opened size" in capsys.readouterr().err
    assert main([*bare, "--extend", "p=round"]) == 2
    assert "write CONSTANT=READING with one of ramp" in capsys.readouterr().err


def test_a_reference_decides_up_to_its_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A smaller one decides nothing beyond the file."""
    for n in (3, 5, 8):
        onnx.save(sized(n), tmp_path / f"{n}.onnx")
    out = tmp_path / "out.onnx"
    bare = ["open-batch", str(tmp_path / "5.onnx"), "-o", str(out), "--open", "n=x.1"]
    assert main([*bare, "--reference", str(tmp_path / "3.onnx")]) == 2
    assert main([*bare, "--reference", str(tmp_path / "8.onnx")]) == 0
    assert onnx.load(out).graph.input[0].doc_string == "n is at most 8"
    printed = capsys.readouterr().out
    assert "n is at most 8: constant 'p' f32[5] is compared up to this size, as ramp" in printed
    assert main([*bare, "--reference", str(tmp_path / "8.onnx"), "--extend", "*"]) == 0
    assert not onnx.load(out).graph.input[0].doc_string
    # the reading at hand is wrong at the larger size
    clamped = onnx.load(tmp_path / "8.onnx")
    (p,) = clamped.graph.initializer[1:]
    p.CopyFrom(onnx.numpy_helper.from_array(np.minimum(np.arange(8, dtype=np.float32), 6), p.name))
    onnx.save(clamped, tmp_path / "8.onnx")
    out.unlink()
    assert main([*bare, "--reference", str(tmp_path / "8.onnx")]) == 1 and not out.exists()


def test_a_size_at_which_it_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A smaller size is one that was opened, too."""
    model, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    text = """g (float[1,7] x) => (float[1] y) <int64 two = {2}, int64 one = {1}> { i = Add (two, one)  y = Gather <axis = 1> (x, i) }"""
    onnx.save(parse(text), model)
    assert main(["open-batch", str(model), "-o", str(out), "--open", "n=x.1"]) == 1
    assert "it does not run at n=3" in capsys.readouterr().out and not out.exists()


def test_the_batch_and_another_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of one run are those of the file, and of the opened model at another size."""
    model, out, report = (tmp_path / f"{n}.onnx" for n in ("m", "o", "j"))
    text = """g (float[1,5,4] x) => (float[1,5,4] y) <float[5] p = {0,1,2,3,4}, int64[4] heads = {1,5,2,2}, int64[3] back = {1,5,-1}>
      { h = Reshape (x, heads)  t = Transpose <perm = [0,2,3,1]> (h)  a = Add (t, p)  s = Softmax (a)
        b = Transpose <perm = [0,3,1,2]> (s)  y = Reshape (b, back) }"""
    onnx.save(parse(text), model)
    command = [
        "open-batch",
        str(model),
        "-o",
        str(out),
        "--open",
        "n=x.1",
        "--extend",
        "*",
        "--batch",
        "1",
    ]
    assert main([*command, "--json", str(report)]) == 0
    printed = capsys.readouterr().out
    assert "output y: f32[batch,n,4]" in printed and "with the batch in place" in printed
    assert "onnxruntime by rows at n=5" in printed and "independence by rows at n=6" in printed
    assert json.loads(report.read_text())["batch"]["inputs"] == {"x": 0}
    x = np.sin(np.arange(3 * 7 * 4, dtype=np.float32)).reshape(3, 7, 4)
    p = np.arange(7, dtype=np.float32)[None, :, None]
    expected = np.exp(x + p) / np.exp(x + p).sum(1, keepdims=True)
    np.testing.assert_allclose(np.asarray(run(onnx.load(out), {"x": x})["y"]), expected, rtol=1e-5)
    assert main([*command[:-2], "--inputs", "x.2"]) == 2
    assert "Reshape 'h': the batch cannot be opened" in capsys.readouterr().err


def test_a_reference_decides_if_its_sizes_differ(tmp_path: Path) -> None:
    """Height and width are equal in the file; a reference whose sizes are equal again tells nothing."""

    def text(h: int, w: int) -> str:
        return f"""g (float[1,{h},{w}] x) => (float[1,{h},{w}] y) <int64[2] flat = {{1, {h * w}}}, int64[3] s = {{1, {h}, {w}}}>
          {{ f = Reshape (x, flat)  a = Softmax (f)  y = Reshape (a, s) }}"""

    sizes = {"h": "x.1", "w": "x.2"}
    for h, w, decides in ((6, 6, False), (4, 6, False), (6, 9, True)):
        onnx.save(parse(text(h, w)), tmp_path / "r.onnx")
        if decides:
            onnxgrad.open_batch(parse(text(4, 4)), open=sizes, reference=str(tmp_path / "r.onnx"))
            continue
        with pytest.raises(InputError, match=r"\[1, h, w\] or \[1, w, h\]"):
            onnxgrad.open_batch(parse(text(4, 4)), open=sizes, reference=str(tmp_path / "r.onnx"))


def test_another_size_in_python() -> None:
    model = onnxgrad.open_batch(sized(5), open={"n": "x.1"}, extend={"p": "ramp"})
    assert np.array_equal(np.ravel(run(model, {"x": np.zeros((1, 3), np.float32)})["y"]), [0, 1, 2])


@pytest.mark.parametrize("when", ["before", "after"])
def test_in_a_recipe(when: str, tmp_path: Path) -> None:
    onnx.save(onnxgrad.edit(sized(8), rename={"y": "out"}), tmp_path / "eight.onnx")
    (tmp_path / "r.toml").write_text(
        f'[{when}]\nrename = {{ y = "out" }}\n'
        f'[{when}.open_batch]\nopen = {{ n = "x.1" }}\nextend = "*"\nreference = "eight.onnx"\n'
    )
    done = onnxgrad.optimize(sized(5), recipe=tmp_path / "r.toml", report=True)
    words = [c["what"] for c in done.to_dict()["changes"]]
    assert words == [f"edited {when} the passes", f"n opened {when} the passes"]
    assert [d.dim_param for d in done.model.graph.input[0].type.tensor_type.shape.dim] == ["", "n"]
    rows = onnxgrad.optimize(parse(TEXT), **{when: {"open_batch": {"symbol": "N"}}}, dims=None)
    assert rows.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "N"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"open_batch": {"inputz": ["x"]}}, "before: open_batch: unknown key 'inputz'; did you mean 'inputs'"),
        ({"open_batch": 3}, "before: 'open_batch' must be a table, not 3"),
        ({"open_batch": {"inputs": ["q"]}}, "before: open_batch: 'q' is not an input"),
        ({"open_batch": {"verify": False}}, "unknown key 'verify'"),
    ],
)  # fmt: skip
def test_in_a_recipe_that_means_nothing(table: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        onnxgrad.optimize(parse(TEXT), before=table)


def test_an_input_with_a_comma_and_braces_in_its_name(tmp_path: Path) -> None:
    made = parse("g (float[1,4] x, float[1,4] z) => (float[1,4] y) { y = Add(x, z) }")
    made.graph.input[0].name = made.graph.node[0].input[0] = "x,{0}"
    onnx.save(made, tmp_path / "m.onnx")
    files = [str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx"), "-q"]
    assert main(["open-batch", *files, "--inputs", "x,{0},z"]) == 0
    opened = onnx.load(tmp_path / "o.onnx").graph.input
    assert [v.type.tensor_type.shape.dim[0].dim_param != "" for v in opened] == [True, True]
