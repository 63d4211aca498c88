"""Whether a node means the same at another opset version: by the schemas of both versions, and by a
table of operators whose meaning changed although their form did not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import onnx

from onnxgrad.ir import attributes
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.program import called

# operators whose meaning changed at a version although their form did not: (operator, version) ->
# whether this binding is affected
_CHANGED_SILENTLY: dict[tuple[str, int], Callable[[Binding], bool]] = {
    # the default moved by half a pixel
    ("RoiAlign", 16): lambda b: "coordinate_transformation_mode" not in b.attrs,
    # one scale and bias for each channel; before, for each group
    ("GroupNormalization", 21): lambda b: True,
    # since then an attribute requests equal parts
    ("Split", 18): lambda b: b.operand(1) is None and "num_outputs" not in b.attrs,
}


def changes_meaning(b: Binding, opset: int) -> str | None:
    """Returns why the binding, written for its block's opset, means something else at version
    `opset` of its domain; None if it means the same.

    Calls of local functions, and operators unknown at both versions, mean the same.
    """
    written = b.version
    if written == opset or called(b) is not None:
        return None
    old, new = (attributes.schema(b.op, v, b.domain) for v in (written, opset))
    if old is None and new is None:
        return None
    given = frozenset(a.name for a in b.node.attribute)
    if old is not None and new is not None and _means_the_same(old, new, given):
        first, last = sorted((old.since_version, new.since_version))
        silent = (
            changed(b)
            for (name, since), changed in _CHANGED_SILENTLY.items()
            if b.domain == "" and name == b.op and first < since <= last
        )
        if not any(silent):
            return None
    return (
        f"its body is written for opset {written} of domain '{b.domain}', here it is {opset}, and "
        f"{b.op} changed"
    )


@lru_cache(maxsize=1024)
def _means_the_same(
    old: onnx.defs.OpSchema, new: onnx.defs.OpSchema, given: frozenset[str]
) -> bool:
    """Whether a node of `old` with the attributes `given` means the same in `new`. A version
    changes nothing for older nodes if it adds dtypes, an optional attribute or an optional operand,
    or turns an attribute that is not given into an operand.
    """
    if old.since_version == new.since_version:
        return True
    if new.deprecated and not old.deprecated:
        return False

    def attributes_of(schema: onnx.defs.OpSchema) -> dict[str, tuple[bool, bytes]]:
        return {
            n: (a.required, a.default_value.SerializeToString())
            for n, a in schema.attributes.items()
        }

    # an optional attribute may be new; one without a default may go if the node does not have it
    now = attributes_of(new)
    kept = all(
        now.get(n) == a or (n not in now and n not in given and a == (False, b""))
        for n, a in attributes_of(old).items()
    )
    added = [a for n, a in new.attributes.items() if n not in old.attributes]
    if not kept or any(a.required for a in added):
        return False
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    more = new.inputs[len(old.inputs) :]
    return all(p.option == optional for p in more) and all(
        [(p.name, p.option) for p in before] == [(p.name, p.option) for p in after]
        and all(set(p.types) <= set(q.types) for p, q in zip(before, after))
        for before, after in (
            (old.inputs, new.inputs[: len(old.inputs)]),
            (old.outputs, new.outputs),
        )
    )
