"""What operators of ai.onnx.ml and of text know of their input: the words that they tell apart, the
numbers at which trees branch.
"""

from __future__ import annotations

import numpy as np
import onnx

from onnxgrad.ir.attributes import values_of

# operator: the attribute with the words that it knows
_WORDS = {
    "CategoryMapper": "cats_strings", "LabelEncoder": "keys_strings",
    "OneHotEncoder": "cats_strings", "TfIdfVectorizer": "pool_strings",
}  # fmt: skip
# operator: the attributes with each node's number and what it does with it
_TREES = {
    "TreeEnsembleClassifier": ("nodes_values", "nodes_modes"),
    "TreeEnsembleRegressor": ("nodes_values", "nodes_modes"),
}
_MOST = 8


def known_words(node: onnx.NodeProto) -> list[str]:
    """The words of a text that this operator tells apart."""
    if node.op_type not in _WORDS:
        return []
    words = values_of(node).get(_WORDS[node.op_type], [])
    return [word.decode("utf-8", "replace") for word in words]


def branches(node: onnx.NodeProto) -> list[float]:
    """Numbers at which an ensemble of trees branches: the least, the largest, and some between."""
    if node.op_type not in _TREES:
        return []
    values, modes = (values_of(node).get(name, []) for name in _TREES[node.op_type])
    found = sorted({v for v, mode in zip(values, modes) if mode != b"LEAF" and np.isfinite(v)})
    places = np.linspace(0, len(found) - 1, min(_MOST, len(found))).round().astype(int)
    return [float(found[i]) for i in places]
