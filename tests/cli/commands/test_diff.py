from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

import onnxgrad
from tests.cli.conftest import Result

Run = Callable[..., Result]


def changed(path: Path, edit: Callable[[onnx.ModelProto], object]) -> Path:
    model = onnx.load(path)
    edit(model)
    out = path.with_name("changed.onnx")
    onnx.save(model, out)
    return out


def test_the_same(run: Run, branches: Path) -> None:
    done = run("diff", branches, branches)
    assert (done.code, done.out, done.err) == (0, "the same\n", "")


def test_where_weights_lie_is_no_difference(run: Run, branches: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.onnx"
    onnx.save(
        onnx.load(branches), outside, save_as_external_data=True, location="w", size_threshold=0
    )
    assert run("diff", branches, outside).code == 0


# kind of difference -> (an edit, a word of the line that reports it)
EDITS: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "model": (lambda m: m.metadata_props.add(key="k", value="v"), "metadata k: added (v)"),
    "interface": (
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 5),
        "f32[N,5]",
    ),
    "operators": (lambda m: setattr(m.graph.node[5], "op_type", "Sin"), ""),
    "replaced": (lambda m: setattr(m.graph.node[5], "op_type", "Sin"), "z: Tanh(r) -> Sin(r)"),
    "added": (lambda m: m.graph.node.append(helper.make_node("Neg", ["x"], ["n"])), "n = Neg(x)"),
    "removed": (lambda m: m.graph.node.pop(5), "z = Tanh(r)"),
    "rewired": (lambda m: m.graph.node[5].input.__setitem__(0, "p"), "z: Tanh(r) -> Tanh(p)"),
    "attributes": (
        lambda m: m.graph.node[5].attribute.append(helper.make_attribute("__k", 2)),
        "Tanh __k added",
    ),
    "node_metadata": (lambda m: m.graph.node[5].metadata_props.add(key="k", value="v"), "z"),
    "order": (lambda m: m.graph.node.insert(0, m.graph.node.pop(1)), "another order"),
    "initializers": (lambda m: m.graph.initializer.pop(3), "unused: removed (f32[2])"),
    "other": (lambda m: setattr(m.graph, "doc_string", "words"), "doc_string"),
}


@pytest.mark.parametrize("kind", EDITS)
def test_each_kind(run: Run, branches: Path, kind: str) -> None:
    edit, line = EDITS[kind]
    other = changed(branches, edit)
    done = run("diff", branches, other, "--json", "-")
    data = json.loads(done.out)
    assert done.code == 1 and data["same"] is False
    assert data[kind] and (not line or any(line in entry for entry in data[kind])), data[kind]
    assert run("diff", branches, other).code == 1


def test_values_of_a_weight(run: Run, branches: Path) -> None:
    other = changed(branches, lambda m: setattr(m.graph.initializer[0], "raw_data", bytes(48)))
    done = run("diff", branches, other)
    assert done.code == 1 and "a: other values" in done.out


def test_inside_nested_graphs(
    run: Run, tmp_path: Path, parse: Callable[..., onnx.ModelProto]
) -> None:
    text = """g (bool c, float[2] x) => (float[2] y) {{
        y = If (c) <then_branch = t () => (float[2] a) {{ a = {}(x) }},
                    else_branch = e () => (float[2] b) {{ b = Exp(x) }}>
    }}"""
    paths = [tmp_path / f"{op}.onnx" for op in ("Tanh", "Neg")]
    for path in paths:
        onnx.save(parse(text.format(path.stem)), path)
    data = json.loads(run("diff", *paths, "--json", "-").out)
    assert data["replaced"] == ["y/then_branch/a: Tanh(x) -> Neg(x)"]
    assert data["operators"] == {"Neg": [0, 1], "Tanh": [1, 0]}


def test_it_prints_what_the_function_gives(run: Run, branches: Path) -> None:
    other = changed(
        branches, lambda m: m.graph.node.append(helper.make_node("Neg", ["x"], ["n" * 300]))
    )
    assert run("diff", branches, other).out == f"{onnxgrad.diff(branches, other)}\n"
