from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.plugins.place.driver import OPTION, Placement, annotate, devices_of, rule, settings
from tests.helpers import parse

# Relay's example: add, sqrt, log, subtract, exp, with sqrt and exp on cuda
EXAMPLE = "g (float[4,5] x) => (float[4,5] y) { a = Add(x, x)  b = Sqrt(a)  c = Log(x)  d = Sub(b, c)  y = Exp(d) }"


def placed(text: str, *rules: str, **options: Any) -> tuple[Program, Placement]:
    program = load(parse(text))
    return program, devices_of(program, [r for text in rules for r in rule(text)], **options)


def moves(placement: Placement) -> list[tuple[str, list[str]]]:
    return [
        ("" if c.made_by is None else c.made_by.op, [b.op for b in c.readers])
        for c in placement.copies
    ]


def marked(ir: bool = False) -> ModelProto:
    program, placement = placed(EXAMPLE, "cuda=Sqrt,Exp")
    annotate(program, placement, ir=ir)
    return to_proto(program)


def test_the_example_of_the_specification() -> None:
    _, placement = placed(EXAMPLE, "cuda=Sqrt,Exp")
    assert moves(placement) == [("Add", ["Sqrt"]), ("Sqrt", ["Sub"]), ("Sub", ["Exp"])]
    assert [c.bytes for c in placement.copies] == [80, 80, 80]
    assert [c.value.name for c in placement.interface] == ["y"]
    assert settings(placement) == "cpu(=cpu);cuda(=cuda)"


def test_marks_are_written_on_every_node_and_read_back() -> None:
    model = marked()
    assert [[e.value for e in n.metadata_props] for n in model.graph.node] == [
        ["cpu"],
        ["cuda"],
        ["cpu"],
        ["cpu"],
        ["cuda"],
    ]
    again = devices_of(load(model), [])
    assert len(again.copies) == 3
    moved = devices_of(load(model), rule("gpu:1=Log"))
    assert list(moved.devices.values()) == ["cpu", "cuda", "gpu:1", "cpu", "cuda"]


@pytest.mark.parametrize(("version", "after"), [(8, 10), (10, 10), (11, 11)])
def test_marks_need_ir_10_and_no_more(version: int, after: int) -> None:
    model = parse(EXAMPLE)
    model.ir_version = version
    program = load(model)
    annotate(program, devices_of(program, rule("cuda=Sqrt")), ir=False)
    assert to_proto(program).ir_version == after


def test_device_configurations_of_the_ir() -> None:
    model = marked(ir=True)
    (configuration,) = model.configuration
    assert list(configuration.device) == ["cpu", "cuda"] and configuration.num_devices == 2
    specs = [n.device_configurations[0].sharding_spec[0] for n in model.graph.node]
    assert [list(s.device) for s in specs] == [[0], [1], [0], [0], [1]] and specs[
        0
    ].tensor_name == "a"
    assert model.ir_version == 11
    twice = load(model)
    annotate(twice, devices_of(twice, []), ir=True)
    assert to_proto(twice) == model


def test_a_value_is_copied_once_for_all_readers_on_a_device() -> None:
    text = "g (float[2] x) => (float[2] y) { a = Neg(x)  b = Sqrt(a)  c = Exp(a)  d = Add(b, c)  y = Log(d) }"
    _, placement = placed(text, "cuda=Sqrt,Exp,Add")
    assert moves(placement) == [("Neg", ["Sqrt", "Exp"]), ("Add", ["Log"])]


def test_constants_are_not_copied_and_open_sizes_are_said() -> None:
    text = (
        "g (float[N,4] x) => (float[N,4] y) <float[4] w = {1,2,3,4}> { a = Neg(x)  y = Add(a, w) }"
    )
    _, placement = placed(text, "cuda=Add")
    (copy,) = placement.copies
    assert copy.value.name == "a" and copy.bytes is None and copy.count == "N*4"


@pytest.mark.parametrize(
    ("propagate", "devices"),
    [(False, ["cpu", "cuda", "cpu", "cpu"]), (True, ["cuda", "cuda", "cuda", "cuda"])],
)
def test_propagation_is_opt_in(propagate: bool, devices: list[str]) -> None:
    text = "g (float[2] x) => (float[2] y) { a = Neg(x)  b = Sqrt(a)  c = Abs(b)  y = Add(b, c) }"
    _, placement = placed(text, "cuda=Sqrt", propagate=propagate)
    assert list(placement.devices.values()) == devices


def test_propagation_stops_where_operands_disagree() -> None:
    text = "g (float[2] x) => (float[2] y) { a = Neg(x)  b = Sqrt(x)  y = Add(a, b) }"
    _, placement = placed(text, "cuda=Sqrt", "gpu:1=Neg", propagate=True)
    assert list(placement.devices.values()) == ["gpu:1", "cuda", "cpu"]


def test_nested_graphs() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) { a = Neg(x)
      y = If (c) <then_branch = t () => (float[2] u) { u = Sqrt(a) }, else_branch = e () => (float[2] v) { v = Abs(a) }> }"""
    program, placement = placed(text, "cuda=Sqrt")
    assert moves(placement) == [("Neg", ["Sqrt"])]
    annotate(program, placement)
    then = to_proto(program).graph.node[1].attribute[0].g
    assert then.node[0].metadata_props[0].value == "cuda"


@pytest.mark.parametrize(
    ("pattern", "devices"),
    [("op:S*", "pcp"), ("name:first", "cpp"), ("first,::Sqrt", "ccp"), ("*", "ccc")],
)
def test_patterns(pattern: str, devices: str) -> None:
    text = "g (float[2] x) => (float[2] y) { a = Neg(x)  b = Sqrt(a)  y = Abs(b) }"
    model = parse(text)
    model.graph.node[0].name = "first"
    found = devices_of(load(model), rule(f"cuda={pattern}")).devices.values()
    assert "".join("c" if d == "cuda" else "p" for d in found) == devices


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cuda", "write DEVICE=PATTERN"),
        ("=Conv", "write DEVICE=PATTERN"),
        ("a(b)=Conv", "write DEVICE=PATTERN"),
        ("cuda=", "write"),
    ],
)
def test_unreadable_rules(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        rule(text)


def test_a_rule_that_matches_nothing_and_a_name_that_breaks_the_option() -> None:
    with pytest.raises(InputError, match="no node has such a name or operator"):
        placed(EXAMPLE, "cuda=Conv*")
    with pytest.raises(InputError, match="is not a device name"):
        placed(EXAMPLE, default="a;b")


# ---- what onnxruntime makes of it --------------------------------------------------------------------------------


def session(
    model: ModelProto, value: str, capfd: pytest.CaptureFixture[str], providers: list[str]
) -> tuple[Any, str]:
    """A session with the option set, and what onnxruntime logged."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 0
    options.add_session_config_entry(OPTION, value)
    opened = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    return opened, capfd.readouterr().err


def test_onnxruntime_reads_the_option(capfd: pytest.CaptureFixture[str]) -> None:
    _, placement = placed(EXAMPLE, "cuda=Sqrt,Exp")
    opened, log = session(marked(), settings(placement), capfd, ["CPUExecutionProvider"])
    if "layering" not in log.lower():
        pytest.skip(f"onnxruntime {onnxruntime.__version__} does not know {OPTION}")
    assert "Parsed 2 annotation-based layering rules" in log
    assert "Layering Rule 0 (cpu -> cpu) mapped to EP: CPUExecutionProvider" in log
    x = np.ones((4, 5), np.float32)
    np.testing.assert_allclose(opened.run(None, {"x": x})[0], np.exp(np.sqrt(2 * x)), rtol=1e-6)


def test_onnxruntime_refuses_an_option_that_we_would_not_write() -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(OPTION, "cpu(=cpu);cuda")
    with pytest.raises(Exception, match="layering config"):
        onnxruntime.InferenceSession(
            marked().SerializeToString(), options, providers=["CPUExecutionProvider"]
        )


@pytest.mark.cuda
def test_onnxruntime_assigns_what_was_marked(capfd: pytest.CaptureFixture[str]) -> None:
    _, placement = placed(EXAMPLE, "cuda=Sqrt,Exp")
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    opened, log = session(marked(), settings(placement), capfd, providers)
    assert opened.get_providers() == providers
    assert "mapped to EP: CUDAExecutionProvider" in log
    sections = log.split("Node(s) placed on [")[1:]
    on = {s.split("]")[0]: s.split("Number of nodes")[0] for s in sections}
    for op, provider in zip(
        ("Add", "Sqrt", "Log", "Sub", "Exp"), ("CPU", "CUDA", "CPU", "CPU", "CUDA")
    ):
        assert f"{op} (" in on[f"{provider}ExecutionProvider"]
