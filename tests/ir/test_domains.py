"""The two spellings of the default domain."""

from __future__ import annotations

import pytest
from onnx import helper

from onnxgrad.ir import domains


@pytest.mark.parametrize(
    ("written", "meant"), [("", ""), ("ai.onnx", ""), ("ai.onnx.ml", "ai.onnx.ml"), ("my", "my")]
)
def test_one_spelling(written: str, meant: str) -> None:
    assert domains.canonical(written) == meant and domains.is_default(written) is (meant == "")
    imports = [helper.make_opsetid(written, 7), helper.make_opsetid("other", 1)]
    assert domains.versions(imports) == {meant: 7, "other": 1}


def test_a_node_is_respelt_only_where_it_must_be() -> None:
    """A field that is set to nothing stays different from one that is not set."""
    bare, long, mine = (
        helper.make_node("Relu", ["x"], ["y"], domain=d) for d in (None, "ai.onnx", "my")
    )
    for node in (bare, long, mine):
        domains.respell(node)
    assert not bare.HasField("domain") and long.domain == "" and mine.domain == "my"
