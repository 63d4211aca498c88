"""The two spellings of the default domain, and families of operators."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import onnx
import pytest
from onnx import helper

from onnxgrad.ir import domains
from tests.helpers import ROOT

PACKAGE = ROOT / "onnxgrad"


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


def _families() -> dict[str, frozenset[str]]:
    found = {n: v for n, v in vars(domains).items() if n.isupper() and not isinstance(v, str)}
    return {  # some hold operands: pairs of an operator and a place
        name: frozenset(m[0] if isinstance(m, tuple) else m for m in members)
        for name, members in found.items()
    }


def test_a_family_has_operators_of_onnx_and_none_twice() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas()}
    for name, members in _families().items():
        assert members <= known, name
        assert len(members) == len(getattr(domains, name)), name


# sets that measurements or a library decide, whatever kind of operator they name
MEASURED = {
    "grad/checkpointing/memory.py: _IN_PLACE": "whose kernels of onnxruntime work in place",
    "verify/reference/kernels/__init__.py: BOUNDED": "what onnxruntime computes to an absolute precision",
    "grad/integer_moves.py: _MOVES": "what onnxruntime moves before DequantizeLinear",
    "laws/float16/keeping.py: _MASKING": "where exporters write a number that means infinity",
    "grad/branch_regions.py: STEEP": "poles, of operators of every kind",
    "verify/regions/cuts.py: _MONOTONE": "kernels of onnxruntime that are less exact than their operands",
}  # fmt: skip


def _sets() -> Iterator[tuple[str, set[str], bool]]:
    """Each set of names at the top of a module: where, the names that it lists, whether it builds on a family."""
    families = _families()
    for path in sorted(PACKAGE.rglob("*.py")):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or path.name == "domains.py":
                continue
            value = statement.value
            if value is None or isinstance(value, ast.Dict | ast.DictComp):
                continue
            lists = [
                n.elts for n in ast.walk(value) if isinstance(n, ast.Set | ast.Tuple | ast.List)
            ]
            items = [[e.value for e in elts if isinstance(e, ast.Constant)] for elts in lists]
            alone = [value.value] if isinstance(value, ast.Constant) else []
            texts = [
                t
                for found in (*items, alone)
                if all(isinstance(t, str) for t in found)
                for t in found
            ]
            names = {n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(value) if isinstance(n, ast.Name | ast.Attribute)}  # fmt: skip
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            where = f"{path.relative_to(PACKAGE).as_posix()}: {ast.unparse(target)}"
            yield (
                where,
                {word for text in texts for word in text.split()},
                not names.isdisjoint(families),
            )


def test_sets_of_operators_are_families_with_named_exceptions() -> None:
    """A set that lists six members of a family and does not name it is a copy, which drifts."""
    families, sets = _families(), list(_sets())
    copies = {
        f"{where} copies {family}"
        for where, names, built in sets
        for family, members in families.items()
        if not built and len(names & members) >= 6 and where not in MEASURED
    }
    assert not copies
    assert MEASURED.keys() <= {where for where, *_ in sets}
