"""onnxgrad/ir/save.py: what a Program says about itself is written where it changed."""

from __future__ import annotations

import onnxgrad
from onnxgrad.ir.save import to_proto
from tests.helpers import parse

TEXT = """<ir_version: 10, opset_import: ["": 20], producer_name: "me",
 metadata_props: ["a": "1", "b": "2"]>
g (float[2] x) => (float[2] y) { y = Tanh (x) }"""


def test_its_words_can_be_changed() -> None:
    program = onnxgrad.load(parse(TEXT))
    assert program.metadata == {"a": "1", "b": "2"} and program.header["producer_name"] == "me"
    program.metadata["c"] = "3"
    del program.metadata["a"]
    program.header["model_version"] = 4
    wanted = parse(TEXT)
    del wanted.metadata_props[0]
    wanted.metadata_props.add(key="c", value="3")
    wanted.model_version = 4
    assert to_proto(program) == wanted
    program.main.add_input("z", None)  # what is written anew has them too
    assert list(to_proto(program).metadata_props) == list(wanted.metadata_props)


def test_an_entry_that_is_there_twice_stays_so() -> None:
    model = parse(TEXT)
    model.metadata_props.add(key="a", value="2")
    program = onnxgrad.load(model)
    assert to_proto(program) == model
    program.main.touch()
    assert to_proto(program) == model
