"""A default that our code writes beside an attribute's name is one that ONNX declares for that name, or stands for an
attribute that has none: `b.attr("alpha", 0.2)`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import onnx
import pytest
from onnx import helper

from tests.helpers import ROOT

PACKAGE = ROOT / "onnxgrad"
CALL = re.compile(r'\b(?:attr|get|written)\((?:\w+, )?"(\w+)", ([^()]+|\(\))\)')
# what is no attribute of a node, and defaults that mean that there is no such attribute: (file, name)
OTHERS = {
    ("laws/remove_noops.py", "num_outputs"), ("laws/quantized/legalize.py", "transA"),
    ("ir/protobufs.py", "offset"), ("ir/storage/external_data.py", "offset"),
    ("train/engines/session.py", "offset"), ("ir/emission/emit.py", "to"),
    ("ir/type_inference/symbolic_shapes.py", "n_targets"), ("laws/bodies/fused.py", "activation"),
    ("laws/composites/lower_composites.py", "epsilon"), ("verify/exact/kernels/products.py", "epsilon"),
    # of onnxruntime's operators
    ("laws/bodies/quantized.py", "transB"), ("laws/bodies/quantized.py", "block_size"),
    ("laws/bodies/experts.py", "activation_alpha"),
}  # fmt: skip


def declared() -> dict[str, set[Any]]:
    """The defaults of each attribute's name over all operators and versions; None where one has none."""
    found: dict[str, set[Any]] = defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        for name, attribute in schema.attributes.items():
            value: Any = None
            if attribute.default_value.name:
                value = helper.get_attribute_value(attribute.default_value)
            found[name].add(plain(value))
    return found


def plain(value: Any) -> Any:
    """Floats in the digits of float32, texts decoded, lists as tuples."""
    if isinstance(value, bytes):
        return value.decode()
    return (
        tuple(value)
        if isinstance(value, list)
        else round(value, 6)
        if isinstance(value, float)
        else value
    )


def written(text: str, names: set[str]) -> Iterator[tuple[str, Any]]:
    """Each attribute's name with the constant default that stands behind it in a call."""
    for name, default in CALL.findall(text):
        if name in names:
            try:
                yield name, plain(ast.literal_eval(default))
            except ValueError:  # no constant
                continue


def test_defaults_are_those_of_the_schemas() -> None:
    known, count = declared(), 0
    wrong: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for name, default in written(path.read_text(encoding="utf-8"), {*known}):
            count += 1
            absent = None in known[name] and not default
            if not (default in known[name] or absent or (file, name) in OTHERS):
                wrong.append(f"{file}: {name} = {default!r}, where ONNX has {known[name]}")
    assert wrong == [] and count > 120


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('b.attr("lambd", 0.5)', [("lambd", 0.5)]),
        ('written(node, "keepdims", 2)', [("keepdims", 2)]),
        ('a.get("auto_pad", b"NOTSET")', [("auto_pad", "NOTSET")]),
        ('a.get("axis", other)', []),
        ('a.get("strange", 1)', []),
        ('b.attr("axis")', []),
    ],
)
def test_the_finder_of_defaults(line: str, found: list[tuple[str, Any]]) -> None:
    assert list(written(line, {"lambd", "keepdims", "auto_pad", "axis"})) == found
