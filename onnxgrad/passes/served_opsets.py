"""The newest opset at which the installed onnxruntime has kernels for a model's operators, and the
chains that operators of a newer opset may replace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.ir import attributes
from onnxgrad.ir.emission import signature
from onnxgrad.ir.function_bodies import called
from onnxgrad.ir.operator_index import bindings_of
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import OptionalType, SequenceType, TensorType, Type
from onnxgrad.ir.var import Var
from onnxgrad.passes.base import roots
from onnxgrad.passes.rule_passes import raise_composites
from onnxgrad.rewrite.match import match_binding, may_match
from onnxgrad.rewrite.worklist import Rule, lacks
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.kernel_versions import has_kernel
from onnxgrad.verify.running.session import kernels
from onnxgrad.vocabulary import PROVIDERS

_NAMES = {number: name for name, number in signature.DTYPES.items()}

# an operator, and the types of its operands and results as schemas name them
_Form: TypeAlias = tuple[str, tuple[str, ...], tuple[str, ...]]


def newest_served(
    program: Program, to: int, provider: str = "cpu", raised: Collection[str] = ()
) -> tuple[int, str]:
    """Returns the newest opset up to `to` at which the installed onnxruntime has a kernel for each
    operator of the program for which it has one at the program's opset or at one in between, and
    the reason if that is below `to`.

    `raised`: further operators that passes may emit. An operator that never has a kernel is run by
    its function body at every opset. Without onnxruntime, that is `to`.
    """
    try:
        known = kernels(PROVIDERS[provider])
    except (InputError, RunFailed):
        return to, ""
    forms: dict[_Form, None] = {
        (b.op, types_of(b.inputs), types_of(b.outputs)): None
        for root in (program.main, *program.functions.values())
        for b in root.walk()
        if b.domain == "" and b.op != "Constant" and called(b) is None
    }
    forms |= {(op, (), ()): None for op in raised}

    def lost(form: _Form, opset: int) -> bool:
        op, operands, results = form
        schema = attributes.schema(op, opset, "")
        if schema is None or schema.deprecated:
            return False  # the conversion replaces the operator
        *earlier, now = (
            has_kernel(known, op, v, "", operands, results) for v in range(program.opset, opset + 1)
        )
        return any(earlier) and not now

    reason = ""
    for opset in range(to, program.opset, -1):
        op = next((form[0] for form in forms if lost(form, opset)), "")
        if not op:
            return opset, reason
        reason = reason or f"the installed onnxruntime has no kernel for {op} of opset {opset}"
    return program.opset, reason


def types_of(values: Iterable[Var | None]) -> tuple[str, ...]:
    """Returns the names of types, as schemas have them; "" for unknown ones."""
    return tuple("" if v is None else type_name(v.type) for v in values)


def type_name(type_: Type | None) -> str:
    """The name of a type in schemas; "" if the type is unknown."""
    if isinstance(type_, TensorType):
        return _NAMES.get(type_.dtype, "") if type_.dtype else ""
    if isinstance(type_, (SequenceType, OptionalType)):
        inner = type_name(type_.elem)
        kind = "seq" if isinstance(type_, SequenceType) else "optional"
        return f"{kind}({inner})" if inner else ""
    return ""


def newer_chains(program: Program) -> dict[tuple[str, int], int]:
    """Returns the number of chains that an operator of a newer opset may replace, by the operator
    and its first opset, found by the laws of `raise-composites`. A law may still decline a chain.
    """
    chains: Counter[tuple[str, int]] = Counter()
    for rule in raise_composites().laws:
        if rule.needs is not None and (n := _matching(rule, program)):
            chains[rule.needs] += n
    return dict(chains.most_common())


def _matching(rule: Rule, program: Program) -> int:
    """Returns the number of bindings that match the pattern and whose opset lacks the operator."""
    return sum(
        lacks(rule, b)
        and may_match(rule.pattern, b)
        and next(match_binding(rule.pattern, b), None) is not None
        for root in roots(program)
        for b in bindings_of(root, rule.pattern.heads or ())
    )
