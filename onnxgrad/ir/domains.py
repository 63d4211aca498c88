"""The default operator domain, which files spell "" or "ai.onnx": here it is "" everywhere."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from onnx import NodeProto, OperatorSetIdProto, defs

from onnxgrad.errors import InputError
from onnxgrad.wording import did_you_mean

_LONG = "ai.onnx"


def canonical(domain: str) -> str:
    """Returns the domain in the spelling that is compared: "" for the default domain."""
    return "" if domain == _LONG else domain


def is_default(domain: str) -> bool:
    """Whether a domain is the default one, in either spelling."""
    return canonical(domain) == ""


def full_name(domain: str, op: str) -> str:
    """Returns an operator's name, with its domain unless that is the default one."""
    return op if is_default(domain) else f"{domain}::{op}"


def split_name(name: str) -> tuple[str, str]:
    """Returns ("my.domain", "Op") for "my.domain::Op"; "ai.onnx" is the default domain "". Raises
    InputError.
    """
    domain, separator, op = name.rpartition("::")
    if not op or (separator and not domain):
        raise InputError(f'\'{name}\' is no operator name: write "Op" or "my.domain::Op"')
    return canonical(domain), op


def unknown_operator(domain: str, op: str) -> str:
    """Returns what is wrong with an operator of a domain that onnx knows, if the domain lacks it;
    else an empty text.
    """
    known = _operators().get(domain)
    if known is None or op in known:
        return ""
    where = f"the domain {domain}" if domain else "the default domain"
    hint = did_you_mean(op, known, f"one of your own has a domain, as in my.domain::{op}")
    return f"{where} has no operator '{op}'; {hint}"


@functools.cache
def _operators() -> dict[str, dict[str, None]]:
    """The operators of each domain that onnx has schemas of, whatever their version."""
    found: dict[str, dict[str, None]] = {}
    for schema in defs.get_all_schemas_with_history():
        found.setdefault(schema.domain, {})[schema.name] = None
    return found


def versions(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """The opset version of each imported domain."""
    return {canonical(o.domain): o.version for o in imports}


def respell(node: NodeProto) -> None:
    """Write the default domain of a node as "": "ai.onnx" loads in graphs only, and no schema has
    it.
    """
    if node.domain == _LONG:
        node.domain = ""
