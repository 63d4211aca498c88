"""The default operator domain, which files spell "" or "ai.onnx": here it is "" everywhere."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import NodeProto, OperatorSetIdProto

_LONG = "ai.onnx"


def canonical(domain: str) -> str:
    """The domain in the one spelling that we compare."""
    return "" if domain == _LONG else domain


def is_default(domain: str) -> bool:
    """Whether it is the default domain, in either spelling."""
    return canonical(domain) == ""


def full_name(domain: str, op: str) -> str:
    """An operator's name with its domain, unless that is the default one."""
    return op if is_default(domain) else f"{domain}::{op}"


def versions(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """The opset version of each imported domain."""
    return {canonical(o.domain): o.version for o in imports}


def respell(node: NodeProto) -> None:
    """Give a node of ours the short spelling: the long one loads in graphs only, and no schema
    has it.
    """
    if node.domain == _LONG:
        node.domain = ""
