"""The functions whose keywords come from declarations."""

from __future__ import annotations

from pathlib import Path

from onnxgrad import functions
from scripts import make_stubs


def test_the_stub_is_that_of_the_declarations() -> None:
    """If it is not: python scripts/make_stubs.py"""
    stub = Path(str(functions.__file__)).with_suffix(".pyi")
    assert stub.read_text(encoding="utf-8") == make_stubs.text()
