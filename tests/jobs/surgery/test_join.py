"""Two models in a row as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError, NotProved
from onnxgrad.jobs.surgery import join as job
from onnxgrad.verify.running.session import run
from tests.helpers import interface, parse

A = """g (float[N,2] x, float[N,2] m) => (float[N,2] x, float[N,2] y) <float[2] w = {1, 2}> {
  t = Mul (x, w)  y = Add (t, m) }"""
B = """g (float[B,2] u, float[B,2] m) => (float[B,2] z, float[B,2] u) <float[2] w = {3, 4}> {
  t = Mul (u, w)  z = Sub (t, m) }"""
NESTED = """g (float[2] x, bool c) => (float[2] y) { h = Exp (x)
  y = If (c) <then_branch = t () => (float[2] a) { a = Relu (h) },
              else_branch = e () => (float[2] b) { b = Neg (h) }> }"""


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"map": {"y": "u"}, "prefix": "b."}, (["x", "m", "b.m"], ["x", "b.z", "b.u"])),
        ({"map": {"y": "u", "m": "m"}}, (["x", "m"], ["x", "z", "u"])),
        ({"map": {"y": "u", "x": "m"}, "keep_output": ["y"]}, (["x", "m"], ["y", "z", "u"])),
        ({"map": {"x": "u", "y": "m"}, "prefix": "b."}, (["x", "m"], ["b.z", "b.u"])),
    ],
)
def test_two_models(options: dict[str, Any], left: tuple[list[str], list[str]]) -> None:
    made = onnxgrad.join(parse(A), parse(B), **options)
    onnx.checker.check_model(made, full_check=True)
    assert interface(made) == left
    rng = np.random.default_rng(0)
    feeds = {name: rng.random((3, 2), np.float32) for name in left[0]}
    first = {**feeds, **run(parse(A), {n: feeds[n] for n in ("x", "m")})}
    links = {b: first[a] for a, b in options["map"].items()}
    prefix = options.get("prefix", "")
    second = run(parse(B), {"m": feeds.get(f"{prefix}m"), **links})
    wanted = {**{n: first[n] for n in "xy"}, **{prefix + n: v for n, v in second.items()}}
    for name, value in run(made, feeds).items():
        assert np.array_equal(value, wanted[name]), name


def test_what_feeds_what_by_default() -> None:
    one = parse("g (float[N] x) => (float[N] y) { y = Exp (x) }")
    other = parse("g (float[M] x) => (float[M] y) { y = Neg (x) }")
    assert interface(onnxgrad.join(one, other)) == (["x"], ["y"])
    same = parse("g (float[M] y, float[M] k) => (float[M] z) { z = Add (y, k) }")
    assert interface(onnxgrad.join(one, same)) == (["x", "k"], ["z"])
    two = parse("g (float[M] p, float[M] q) => (float[M] z) { z = Add (p, q) }")
    with pytest.raises(
        InputError, match=r"no output of A \(y\) has the name of an input of B \(p, q\)"
    ):
        onnxgrad.join(one, two)


def test_names_in_bodies() -> None:
    made = onnxgrad.join(parse(NESTED), parse(NESTED), map={"y": "x", "c": "c"})
    onnx.checker.check_model(made, full_check=True)
    x = np.float32([1, -2])
    wanted = [np.exp(np.exp(x)), -np.exp(-np.exp(x))]
    found = [run(made, {"x": x, "c": np.array(c)})["y"] for c in (True, False)]
    assert np.allclose(found, wanted)
    names = [node.name for node in made.graph.node if node.name]
    assert len(names) == len(set(names))


FUNCTION = """<ir_version: 10, opset_import: ["" : {opset}, "d" : 1]> g (float[N] x) => (float[N] y) {{ y = d.f (x) }}
<domain: "d", opset_import: ["" : {opset}]> f (a) => (b) {{ b = {op} (a) }}"""


@pytest.mark.parametrize(
    ("a", "b", "functions"),
    [
        (FUNCTION.format(opset=20, op="Exp"), FUNCTION.format(opset=20, op="Neg"), ["f", "f_2"]),
        (FUNCTION.format(opset=20, op="Exp"), FUNCTION.format(opset=20, op="Exp"), ["f"]),
        (FUNCTION.format(opset=18, op="Exp"), FUNCTION.format(opset=20, op="Neg"), ["f", "f_2"]),
    ],
)
def test_functions(a: str, b: str, functions: list[str]) -> None:
    first, second = onnx.parser.parse_model(a), onnx.parser.parse_model(b)
    made = onnxgrad.join(first, second)
    assert [f.name for f in made.functions] == functions
    x = np.float32([1, -2, 0.5])
    (middle,) = run(first, {"x": x}).values()
    (wanted,) = run(second, {"x": middle}).values()
    assert np.array_equal(run(made, {"x": x})["y"], wanted)


def test_a_function_of_one_is_no_operator_of_the_other() -> None:
    """Only the files are looked at: onnxruntime runs its operator, not the function of that name."""
    plain = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]> g (float[N] x) => (float[N] y) { y = com.microsoft.Gelu (x) }'
    hiding = (
        plain + '<domain: "com.microsoft", opset_import: ["" : 20]> Gelu (a) => (b) { b = Neg (a) }'
    )
    first, second = onnx.parser.parse_model(hiding), onnx.parser.parse_model(plain)
    for pair, calls in (
        ((first, second), ["Gelu_2", "Gelu"]),
        ((second, first), ["Gelu", "Gelu_2"]),
    ):
        made = onnxgrad.join(*pair, verify=False)
        assert [f.name for f in made.functions] == ["Gelu_2"]
        assert [node.op_type for node in made.graph.node] == calls


def test_opsets() -> None:
    """Softmax of 12 flattens, that of 13 does not."""
    text = '<ir_version: 7, opset_import: ["" : {}]> g (float[N,2,3] x) => (float[N,2,3] y) {{ y = Softmax <axis = 1> (x) }}'
    old, new = (onnx.parser.parse_model(text.format(n)) for n in (12, 17))
    for pair in ((old, new), (new, old)):
        assert onnxgrad.join(*pair).opset_import[0].version == 17
    ml = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : {}]> g (float[N] x) => (float[N] y) {{ y = ai.onnx.ml.Binarizer (x) }}'
    one, other = (onnx.parser.parse_model(ml.format(n)) for n in (3, 4))
    assert onnxgrad.join(one, one).opset_import[1].version == 3
    with pytest.raises(
        InputError, match=r"A imports version 3 of the domain 'ai\.onnx\.ml' and B version 4"
    ):
        onnxgrad.join(one, other)
    resize = """<ir_version: 7, opset_import: ["" : 10]> g (float[1,1,6] x) => (float[1,2,3] y)
      <float[3] s = {1, 2, 0.5}> { y = Resize <mode = "nearest"> (x, s) }"""
    with pytest.raises(InputError, match=r"A has an older opset than the other: .*it may enlarge"):
        onnxgrad.join(
            onnx.parser.parse_model(resize),
            parse("g (float[1,2,3] x) => (float[1,2,3] y) { y = Exp (x) }"),
        )


def dims(model: ModelProto) -> list[list[Any]]:
    values = (*model.graph.input, *model.graph.output)
    return [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values]


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        ("N,M", "P,Q", [["N", "M"], ["N", "M"]]), ("N,M", "N,N", [["M", "M"], ["M", "M"]]),
        ("N,M", "M,N", [["N", "M"], ["N", "M"]]), ("N,2", "P,2", [["N", 2], ["N", 2]]),
        ("N,M", "4,P", [[4, "M"], [4, "M"]]), ("4,M", "P,P", [[4, 4], [4, 4]]),
        ("4,5", "P,P", None), ("N,4", "N,5", None), ("N", "N,M", None),
    ],
)  # fmt: skip
def test_sizes(a: str, b: str, wanted: list[list[Any]] | None) -> None:
    first = parse(f"g (float[{a}] x) => (float[{a}] y) {{ y = Exp (x) }}")
    second = parse(f"g (float[{b}] x) => (float[{b}] y) {{ y = Neg (x) }}")
    if wanted is None:
        with pytest.raises(
            InputError,
            match=r"A's 'y' (is|and B's input 'x': the links require one size to be both 4 and 5)",
        ):
            onnxgrad.join(first, second)
    else:
        assert dims(onnxgrad.join(first, second, verify=False)) == wanted


def test_symbols_of_one_name_that_are_two_sizes() -> None:
    one = parse("g (float[N] x) => (float[N] y) { y = Exp (x) }")
    other = parse("g (float[M] u, float[N,1] v) => (float[N,M] z) { z = Add (u, v) }")
    assert dims(onnxgrad.join(one, other, map={"y": "u"}, verify=False)) == [
        ["N"],
        ["N_2", 1],
        ["N_2", "N"],
    ]


def test_types() -> None:
    one = parse("g (float[N] x) => (float[N] y) { y = Exp (x) }")
    other = parse("g (double[N] x) => (double[N] y) { y = Exp (x) }")
    with pytest.raises(
        InputError, match=r"A's 'y' is f32\[N\], but B's input 'x' requires f64\[N\]"
    ):
        onnxgrad.join(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"map": {"y": "w"}}, r"'w' is a weight of B: edit\(b, free='w'\) makes it an input"),
        ({"map": {"q": "u"}}, "A has no output or input 'q' for B"),
        ({"map": {"A.y": "B.q"}}, "B has no input 'q' for A's 'y'"),
        ({"map": {"y": "u", "x": "u"}}, "A's 'y' feeds B's input 'u' already"),
        (
            {"map": {"y": "u"}},
            r"'m' is an input or output of A and of B: feed that of B with map=\{'m': 'm'\}",
        ),
        ({"map": {"y": "u", "m": "m"}, "keep_output": "q"}, "A has no output of this name"),
    ],
)
def test_connections_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        onnxgrad.join(parse(A), parse(B), **options)


def test_the_rest_of_a_file() -> None:
    first, second = parse(A), parse(B)
    for model, text in ((first, "a"), (second, "b")):
        model.metadata_props.add(key="who", value=text)
        model.metadata_props.add(key=text, value=text)
        note = model.graph.quantization_annotation.add(tensor_name="t")
        note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    made = onnxgrad.join(first, second, map={"y": "u", "m": "m"})
    assert {e.key: e.value for e in made.metadata_props} == {"who": "a", "a": "a", "b": "b"}
    notes = [
        (q.tensor_name, q.quant_parameter_tensor_names[0].value)
        for q in made.graph.quantization_annotation
    ]
    assert notes == [("t", "w"), ("t_2", "w_2")]
    first.training_info.add()
    with pytest.raises(InputError, match="A holds a training step"):
        onnxgrad.join(first, second, map={"y": "u"})


def test_a_wrong_result_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        job, "_rename", lambda a, b, *_: [n.ClearField("attribute") for n in b.node]
    )
    one = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,2,3] x) => (float[N,2,3] {}) {{ {} = Softmax <axis = 1> ({}) }}'
    first = onnx.parser.parse_model(one.format("y", "y", "x"))
    second = onnx.parser.parse_model(one.format("z", "z", "y").replace("[N,2,3] x", "[N,2,3] y"))
    with pytest.raises(NotProved):
        onnxgrad.join(first, second)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The weights of both lie in files of folders of their own."""
    for name, text in (("a", A), ("b", B)):
        (tmp_path / name).mkdir()
        model = parse(text)
        for t in model.graph.initializer:
            t.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(t), t.name))
        onnx.save(
            model,
            tmp_path / name / "m.onnx",
            save_as_external_data=True,
            location="w",
            size_threshold=0,
        )
    a, b, out = (str(tmp_path / name) for name in ("a/m.onnx", "b/m.onnx", "o.onnx"))
    words = ["join", a, b, "--map", "A.y=B.u", "--map", "m=B.m", "-o", out]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "2 + 2 → 4 nodes" in said and "equal on cpu  2 runs" in said
    assert interface(onnx.load(out)) == (["x", "m"], ["x", "z", "u"])
    assert main(["join", a, b, "--map", "y=q", "-o", out]) == 2
    assert "B has no input 'q'" in capsys.readouterr().err
    assert main([*words[:-1], b]) == 2
    assert "output and input are the same file" in capsys.readouterr().err


def test_a_name_that_begins_as_a_model() -> None:
    one = parse("g (float[N] x) => (float[N] y, float[N] z) { y = Exp (x)  z = Neg (x) }")
    one.graph.output[1].name = one.graph.node[1].output[0] = "A.y"
    other = parse("g (float[M] u) => (float[M] v) { v = Abs (u) }")
    for source, fed in (("A.y", "A.y"), ("y", "y"), ("A.A.y", "A.y")):
        made = onnxgrad.join(one, other, map={source: "B.u"}, verify=False)
        assert next(n.input[0] for n in made.graph.node if n.op_type == "Abs") == fed
