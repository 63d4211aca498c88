"""Removes the metadata and doc strings of nodes, where exporters write stack traces."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.program import Program
from onnxgrad.passes.base import Pass, register, roots
from onnxgrad.rewrite.trace import Trace
from onnxgrad.wording import counted


@register
@dataclass(frozen=True)
class StripMetadata(Pass):
    """f(x) = f(x) without metadata: entries of nodes are removed, such as stack traces and module
    paths. The metadata of the model stays.

    `keys`: the entries to remove, as a glob of their keys; "doc_string" is a node's doc string.
    """

    name: ClassVar[str] = "strip-metadata"
    keys: str = "*"

    def run(self, program: Program, trace: Trace) -> None:
        """Removes the entries in all graphs and functions; one rewrite for each block."""
        nodes = size = 0
        for block in (block for root in roots(program) for block in blocks_in(root)):
            if trace.stopped:
                break
            found = 0
            for b in block.bindings:
                entries = b.node.metadata_props
                kept = {e.key: e.value for e in entries if not fnmatchcase(e.key, self.keys)}
                stripped = bool(b.node.doc_string) and fnmatchcase("doc_string", self.keys)
                if len(kept) < len(entries) or stripped:
                    before = b.node.ByteSize()
                    b.set_metadata(kept, documented=not stripped)
                    size += before - b.node.ByteSize()
                    found += 1
            if found:
                block.touch()
                trace.fired("strip_metadata", f"{found} in {block.name}", count=found)
            nodes += found
        if nodes:
            trace.notes[f"metadata of {counted(nodes, 'node')} removed: {size:,} bytes"] = None
