"""What editors and mypy know of `op`, and what help() shows."""

from __future__ import annotations

import inspect
import pydoc

import pytest

from onnxgrad import op
from onnxgrad.errors import InternalError
from onnxgrad.ir.emission.emit import emitting
from scripts.make_op_stub import STUB, stub
from tests.ir.test_emission import block_of


def test_the_stub_is_current() -> None:
    assert STUB.read_text(encoding="utf-8") == stub(), "run scripts/make_op_stub.py"


def test_help_shows_the_schema() -> None:
    shown = pydoc.plain(pydoc.render_doc(op.Softmax))
    for words in (
        "Softmax(input, /, *, axis: int = -1)",
        "normalized exponential",
        "Operands:",
        "input (T)",
        "axis:",
    ):
        assert words in shown, words
    assert str(inspect.signature(op.Concat)) == "(*inputs, axis: int)"
    assert "No schema." in pydoc.render_doc(op.domain("my.domain").Cube)


def test_the_operators_are_listed() -> None:
    assert {"MatMul", "Softmax", "domain"} <= set(dir(op)) and "Upsample" not in dir(op)
    assert not hasattr(op, "__wrapped__") and op.MatMul is op.MatMul


def test_what_onnx_does_not_know_is_said_when_it_is_called() -> None:
    with (
        emitting(block_of("float[2] x")),
        pytest.raises(InternalError, match="Cube does not exist at opset"),
    ):
        op.Cube(1.0)
