"""Value numbering: values of a main graph get the same number if the same operators compute them
from the same constants and inputs, within one model and across two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir import domains
from onnxgrad.ir.domains import RANDOM
from onnxgrad.ir.protobufs import copy_of, elements, every_node, scheduled
from onnxgrad.verify.changed_region import reads
from onnxgrad.verify.tolerance import is_float

_MOST = 1 << 22  # elements of the largest constant that is compared after rounding


@dataclass
class Numbers:
    """Numbers the values of one or several models. `rounding`: constants of floats are equal if
    they are equal in float16.
    """

    rounding: bool = False
    _known: dict[object, int] = field(default_factory=dict)

    def number(self, key: object) -> int:
        """Returns the number of a key; a new key gets a new number."""
        return self._known.setdefault(key, len(self._known))

    def of(self, graph: GraphProto, names: Mapping[str, str] = {}) -> dict[str, int]:
        """Returns the number of each value. `names`: the names of the graph's inputs in another
        graph.
        """
        found = {v.name: self.number(("input", names.get(v.name, v.name))) for v in graph.input}
        for tensor in graph.initializer:
            if tensor.name not in found:
                found[tensor.name] = self.constant(tensor)
        for node in scheduled(list(graph.node)):
            key = self.key(node, found)
            found.update(
                (name, self.number((*key, i))) for i, name in enumerate(node.output) if name
            )
        return found

    def key(self, node: NodeProto, found: Mapping[str, int]) -> tuple[object, ...]:
        """Returns the key of a node: the operator, its attributes and the numbers of its operands.
        A random node has its own key.
        """
        if (
            node.op_type == "Constant"
            and len(node.attribute) == 1
            and node.attribute[0].name == "value"
        ):
            return ("constant", self.constant(node.attribute[0].t))
        if any(n.op_type in RANDOM or n.op_type == "Dropout" for n in every_node([node])):
            return ("drawn", id(node))
        captured = sorted(reads(node) - {*node.input})
        operands = [found.get(name, name) if name else None for name in node.input]
        attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
        domain = domains.canonical(node.domain)
        inner = [(name, found.get(name)) for name in captured]
        return (domain, node.op_type, node.overload, *attributes, *operands, *inner)

    def constant(self, tensor: TensorProto) -> int:
        """Returns the number of a constant's contents; external data is identified by its place."""
        array = None
        if self.rounding and tensor.data_location != TensorProto.EXTERNAL:
            array = _floats(tensor)
        if array is not None:
            with np.errstate(over="ignore"):
                data = array.astype(np.float16).tobytes()
            return self.number(("floats", array.shape, hashlib.blake2b(data).digest()))
        bare = copy_of(tensor)
        bare.ClearField("name")
        bare.ClearField("doc_string")
        data = bare.SerializeToString(deterministic=True)
        return self.number(("constant", hashlib.blake2b(data).digest()))


def _floats(tensor: TensorProto) -> np.ndarray[Any, Any] | None:
    """Returns the elements of a constant of floats; None for other, large or damaged constants."""
    if int(np.prod(tensor.dims, dtype=np.float64)) > _MOST:
        return None
    try:
        array = elements(tensor)
    except InputError:
        return None
    return array if is_float(array) else None
