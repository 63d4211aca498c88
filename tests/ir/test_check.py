"""The invariants of a block: damage of every kind is found and named."""

from __future__ import annotations

import pytest

from onnxgrad.errors import InternalError
from onnxgrad.ir.load import load
from tests.helpers import parse
from tests.ir.test_block import GRAPH, definition, find


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("users", "users of .* are recorded wrongly"),
        ("returned", "is returned 1 times, recorded as 2"),
        ("definition", "'a' does not know its binding"),
        ("owner", "nested block .* does not know its binding"),
        ("names", "'b' is defined 2 times"),
        ("shadowed", "'a' is not visible here"),
    ],
)
def test_check_finds_damage(damage: str, message: str) -> None:
    block = load(parse(GRAPH)).main
    block.check()
    a, owner = find(block, "a"), definition(block, "r")
    nested = owner.blocks["then_branch"]
    if damage == "users":
        a.users.popitem()
    elif damage == "returned":
        a.returned += 1
    elif damage == "definition":
        a.definition = owner
    elif damage == "owner":
        nested.owner = None
    elif damage == "names":
        a.name = "b"
    else:
        next(
            nested.vars()
        ).name = "a"  # the nested reader of the outer `a` would read this in the file
    with pytest.raises(InternalError, match=message):
        block.check()
