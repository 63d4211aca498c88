"""Removes the metadata and doc strings of nodes, graphs, values and weights, where exporters write
stack traces.
"""

from __future__ import annotations

from typing import Any, ClassVar

from onnxgrad.frozen import frozen
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import described, described_by
from onnxgrad.passes.base import Pass, register, roots
from onnxgrad.rewrite.trace import Trace
from onnxgrad.wording import counted


@register
@frozen
class StripMetadata(Pass):
    """f(x) = f(x) without metadata: entries of nodes, graphs, functions, declared values and
    weights are removed, such as stack traces and module paths. The metadata of the model stays.

    `keys`: the entries to remove, as a glob of their keys; "doc_string" is a doc string. Keys that
    begin with "onnxgrad." stay unless the glob begins so, too: other commands read them.
    """

    name: ClassVar[str] = "strip-metadata"
    keys: str = "*"

    def run(self, program: Program, trace: Trace) -> None:
        """Removes the entries in all graphs and functions; one rewrite for each block."""
        nodes = others = size = 0
        for block in (block for root in roots(program) for block in blocks_in(root)):
            if trace.stopped:
                break
            found = 0
            for b in block.bindings:
                gone = described_by(b.node, self.keys)
                if gone:
                    kept = {e.key: e.value for e in b.node.metadata_props if e.key not in gone}
                    before = b.node.ByteSize()
                    b.set_metadata(kept, documented="doc_string" not in gone)
                    size += before - b.node.ByteSize()
                    found += 1
            nodes += found
            parts = [] if block.stripped == self.keys else [*described(block.proto)]
            parts = [part for part in parts if described_by(part, self.keys)]
            if parts:
                block.stripped = self.keys
                size += sum(_text_of(part, self.keys) for part in parts)
                others += len(parts)
            found += len(parts)
            if found:
                block.touch()
                trace.fired("strip_metadata", f"{found} in {block.name}", count=found)
        if nodes or others:
            of = [counted(nodes, "node")] if nodes else []
            of += [counted(others, "other part")] if others else []
            trace.notes[f"metadata of {' and '.join(of)} removed: {size:,} bytes"] = None


def _text_of(message: Any, keys: str) -> int:
    """Returns the bytes of the texts that `strip` removes."""
    gone = described_by(message, keys)
    texts = [message.doc_string] if "doc_string" in gone else []
    texts += [part for e in message.metadata_props if e.key in gone for part in (e.key, e.value)]
    return sum(len(text.encode()) for text in texts)
