"""`onnxgrad metadata` and `onnxgrad.set_metadata`; the fields of a Program are in tests/ir."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import ModelProto, numpy_helper

import onnxgrad
from onnxgrad import InputError
from onnxgrad.ir.protobufs import every_graph, model_nodes
from tests.cli.conftest import Result
from tests.helpers import parse

Run = Callable[..., Result]
TEXT = """<ir_version: 10, opset_import: ["": 20], producer_name: "me", doc_string: "what it is",
 metadata_props: ["a": "1", "b": "2"]>
g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul (x, w) }"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    model = parse(TEXT)
    model.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(numpy_helper.to_array(model.graph.initializer[0]), "w")
    )
    onnx.save(model, path)
    return path


def rest(path: Path | ModelProto) -> ModelProto:
    """A model without its metadata and header."""
    model = path if isinstance(path, ModelProto) else onnx.load(path)
    for name in ("metadata_props", "producer_name", "producer_version", "domain"):
        model.ClearField(name)
    model.ClearField("model_version")
    model.ClearField("doc_string")
    return model


def entries(path: Path) -> list[tuple[str, str]]:
    return [(e.key, e.value) for e in onnx.load(path).metadata_props]


def test_it_lists(run: Run, file: Path) -> None:
    done = run("metadata", file, "--json", "-")
    found = json.loads(done.out)
    assert done.code == 0 and found["metadata"] == {"a": "1", "b": "2"}
    assert found["producer_name"] == "me" and found["doc_string"] == "what it is"
    shown = run("metadata", file).out
    assert "(producer_name)" in shown and "what it is" in shown


def test_set_and_unset(run: Run, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    words = ["--set", "b=x=y", "--set", "new=", "--unset", "a", "--model-version", "7"]
    done = run("metadata", file, *words, "--producer-name", "", "-o", out)
    assert done.code == 0 and "every other field is unchanged" in done.out
    assert entries(out) == [("b", "x=y"), ("new", "")]
    made = onnx.load(out)
    assert made.model_version == 7 and not made.HasField("producer_name")
    assert made.doc_string == "what it is" and rest(out) == rest(file)


def test_external_weights_come_along(run: Run, file: Path, tmp_path: Path) -> None:
    big = tmp_path / "big.onnx"
    onnx.save(onnx.load(file), big, save_as_external_data=True, location="w.bin", size_threshold=0)
    out = tmp_path / "out.onnx"
    assert run("metadata", big, "--set", "k=v", "-o", out).code == 0
    assert numpy_helper.to_array(onnx.load(out).graph.initializer[0]).tolist() == [1, 2]
    assert rest(out) == rest(big)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "k=v"], "name the changed model with -o"),
        (["-o", "OUT"], "-o without a change"),
        (["--set", "k", "-o", "OUT"], "write KEY=VALUE"),
        (["--unset", "c", "-o", "OUT"], "'c' to unset does not exist (there is: a, b)"),
        (["--unset", "a", "--set", "a=1", "-o", "OUT"], "cannot be both set and unset"),
        (["--model-version", "x", "-o", "OUT"], "must be a whole number"),
        (["--model-version", "99999999999999999999", "-o", "OUT"], "--model-version must be "),
    ],
)
def test_bad_words_are_one_line(
    run: Run, file: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    out = tmp_path / "out.onnx"
    done = run("metadata", file, *(str(out) if w == "OUT" else w for w in words))
    assert done.code == 2 and len(done.lines) == 1 and said in done.err and not out.exists()


def test_in_python() -> None:
    model = parse(TEXT)
    made = onnxgrad.set_metadata(model, {"a": "9"}, unset=["b"], doc_string="", domain="d")
    assert onnxgrad.inspect(made).metadata == {"a": "9"} and made.domain == "d"
    assert not made.HasField("doc_string") and rest(made) == rest(model)
    for values, word in (({"a": 1}, "not 1"), ({"": "x"}, "the key must not be empty")):
        with pytest.raises(InputError, match=word):
            onnxgrad.set_metadata(parse(TEXT), values)
    with pytest.raises(InputError, match="model_version must be a whole number, not '2'"):
        onnxgrad.set_metadata(parse(TEXT), model_version="2")


def test_a_domain_that_is_imported_twice(run: Run, file: Path) -> None:
    """Its last version counts; that the file then has this version twice is no other change."""
    model = onnx.load(file)
    for version in (1, 3):
        model.opset_import.add(domain="f", version=version)
    onnx.save(model, file)
    assert run("metadata", file, "--set", "a=b", "-o", file.parent / "out.onnx").code == 0
    written = onnx.load(file.parent / "out.onnx")
    assert [o.version for o in written.opset_import if o.domain == "f"] == [3, 3]


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    """A model whose nodes, in a branch and a function too, carry stack traces."""
    model = parse(
        """<ir_version: 10, opset_import: ["" : 20, "l" : 1], metadata_props: ["kept": "1"]>
        g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}, float[2] r> { r = Mul (x, w) z = l.F(r) y = If(c) <
            then_branch = t () => (float[2] u) { u = Neg(z) },
            else_branch = e () => (float[2] v) { v = Abs(z) }> }
        <domain: "l", opset_import: ["" : 20]> F (a) => (b) { b = Exp(a) }"""
    )
    for node in model_nodes(model):
        node.metadata_props.add(key="trace", value=f"/home/me/{node.op_type}.py")
        node.metadata_props.add(key="module.name", value=node.op_type)
        node.doc_string = f"/home/me/{node.op_type}.py(3): forward"
    for part in parts(model):
        part.metadata_props.add(key="trace", value="/home/me/export.py")
        part.doc_string = "made by /home/me/export.py"
    onnx.save(model, tmp_path / "traced.onnx")
    return tmp_path / "traced.onnx"


def parts(model: onnx.ModelProto) -> list[Any]:
    """Graphs, functions, declared values and weights."""
    bodies = [*every_graph(model.graph), *model.functions]
    kinds = ("input", "output", "value_info", "initializer")
    inside = [v for g in every_graph(model.graph) for kind in kinds for v in getattr(g, kind)]
    return [*bodies, *inside, *(v for f in model.functions for v in f.value_info)]


def keys(path: Path) -> set[str]:
    model = onnx.load(path)
    described = [*model_nodes(model), *parts(model)]
    documented = {"doc_string" for part in described if part.doc_string}
    return {e.key for part in described for e in part.metadata_props} | documented


def test_strip_removes_the_metadata_of_nodes_and_nothing_else(run: Run, traced: Path) -> None:
    out = traced.with_name("out.onnx")
    done = run("metadata", traced, "-o", out, "--strip", "tr*")
    assert done.code == 0, done.err
    assert "metadata of 6 nodes and 11 other parts removed" in done.out
    assert keys(out) == {"module.name", "doc_string"}
    done = run("metadata", traced, "-o", out, "--strip", "doc_string")
    assert (
        keys(out) == {"module.name", "trace"}
        and "metadata of 6 nodes and 11 other parts removed" in done.out
    )
    done = run("metadata", traced, "-o", out, "--strip")
    assert (done.code, keys(out)) == (0, set())
    expected = onnx.load(traced)
    for part in (*model_nodes(expected), *parts(expected)):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    assert onnx.load(out) == expected


@pytest.mark.parametrize(
    ("pattern", "left"),
    [("*", True), ("o*", True), ("onnxgrad.*", False), ("onnxgrad.checkpoint.start", False)],
)
def test_marks_that_other_commands_read_stay_unless_they_are_named(
    run: Run, traced: Path, pattern: str, left: bool
) -> None:
    model = onnx.load(traced)
    model.graph.node[0].metadata_props.add(key="onnxgrad.checkpoint.start", value="a")
    onnx.save(model, traced)
    out = traced.with_name("out.onnx")
    assert run("metadata", traced, "-o", out, "--strip", pattern).code == 0
    assert ("onnxgrad.checkpoint.start" in keys(out)) == left
    assert ("trace" in keys(out)) == (pattern != "*")


def test_optimize_strips_and_says_how_many_bytes(run: Run, traced: Path) -> None:
    out = traced.with_name("out.onnx")
    assert run("optimize", traced, "-o", out).code == 0
    assert {"trace", "module.name"} <= keys(out), "kept by default"
    done = run("optimize", traced, "-o", out, "--strip-metadata")
    assert done.code == 0, done.err
    assert keys(out) == set()
    assert "removed:" in done.out
    assert "bytes" in done.out
    recipe = traced.with_name("onnxgrad.toml")
    recipe.write_text('strip_metadata = "module.*"\n')
    assert run("optimize", traced, "-o", out, "--config", recipe).code == 0
    assert "trace" in keys(out)
    assert "module.name" not in keys(out)
    assert onnx.load(out).metadata_props[0].key == "kept"
