"""A whole model: the main binding block, the local functions, and everything around them that we
only carry.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property
from pathlib import Path

from onnx import ModelProto, TensorProto

from onnxgrad.ir import domains
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.names import Names
from onnxgrad.ir.notebook import program_html
from onnxgrad.ir.tensor_data import elements
from onnxgrad.ir.types import Array
from onnxgrad.ir.weights import Digests, internalize

FunctionKey = tuple[str, str, str]
# what a model says about itself beside its metadata; nothing is the empty text, or 0
HEADER = ("producer_name", "producer_version", "domain", "model_version", "doc_string")


class Program:
    """Owns the main block, the functions (by domain, name, overload), opset imports, IR version and
    metadata.

    `proto` is the model as it was read and is never changed; `folder` is where its external data
    lies, and `digests` are those of the data that a proof or a file got. `metadata` is the model's,
    by key, and `header` the other words that it has about itself (HEADER): change them, and `save`
    writes them.
    """

    def __init__(self, proto: ModelProto, folder: Path | None, path: Path | None = None) -> None:
        self.proto = proto
        self.folder = folder
        self.digests: Digests = {}
        self.path = path
        self.ir_version: int = proto.ir_version
        self.metadata: dict[str, str] = {e.key: e.value for e in proto.metadata_props}
        self.header: dict[str, str | int] = {name: getattr(proto, name) for name in HEADER}
        self.opsets = domains.versions(proto.opset_import)
        self.functions: dict[FunctionKey, BindingBlock] = {}
        self.names = Names()
        # how often a binding came, went or became another operator
        self.edits = 0
        self.main = BindingBlock(self, proto.graph, self.opsets)

    @property
    def opset(self) -> int:
        """The version of the default operator domain."""
        return self.opsets.get("", 0)

    @cached_property
    def proto_bytes(self) -> int:
        """How many bytes the model takes that was read; counting them writes it out."""
        return int(self.proto.ByteSize())

    def blocks(self) -> list[BindingBlock]:
        """Every block of the program: main, nested ones, function bodies and theirs; outer
        before inner.
        """
        found: list[BindingBlock] = []
        work = deque([self.main, *self.functions.values()])
        while work:
            block = work.popleft()
            found.append(block)
            work.extend(nested for b in block.bindings for nested in b.blocks.values())
        return found

    def _repr_html_(self) -> str:
        return program_html(self)

    def array(self, tensor: TensorProto) -> Array:
        """The elements of a tensor; external data is read from the model's folder now and not kept.

        Raises InputError when the data is damaged, or the external data missing or outside the
        folder.
        """
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor = internalize(tensor, self.folder)
        return elements(tensor)
