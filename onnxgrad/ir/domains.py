"""Operator domains and families of operators.

Files write the default domain as "" or "ai.onnx"; the program always has "". Other modules build
their tables from the families, so a new operator is added in one place.
"""

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
    InputError for a malformed name.
    """
    domain, separator, op = name.rpartition("::")
    if not op or (separator and not domain):
        raise InputError(f'\'{name}\' is not an operator name: write "Op" or "my.domain::Op"')
    return canonical(domain), op


def unknown_operator(domain: str, op: str) -> str:
    """Returns an error text if onnx knows the domain but not the operator, else an empty text."""
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
    """Writes the default domain of a node as "". The spelling "ai.onnx" loads in graphs only, and
    no schema has it.
    """
    if node.domain == _LONG:
        node.domain = ""


# ==== families of operators =======================================================================

# ---- an element of the result comes from the first operand's element at the same index; other
# operands, if any, are single numbers

CASTS = ("Cast", "CastLike")
# operands whose values are not read, only their type
TYPE_READS = frozenset({("CastLike", 1), ("Shape", 0), ("Size", 0)})
ROUNDINGS = ("Ceil", "Floor", "Round", "Sign")  # constant between jumps
TESTS = ("BitwiseNot", "IsInf", "IsNaN", "Not")  # the result is no float
# the slopes on both sides of some number differ
KINKED = (
    "Abs", "Celu", "Clip", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Selu", "Shrink",
    "ThresholdedRelu",
)  # fmt: skip
ODD = ("Asin", "Asinh", "Atan", "Atanh", "Erf", "Sin", "Sinh", "Tan", "Tanh")  # f(-x) = -f(x)
# smooth wherever they are finite
SMOOTH = (
    *ODD, "Acos", "Acosh", "Cos", "Cosh", "Exp", "Gelu", "Log", "Mish", "Neg", "Reciprocal",
    "Sigmoid", "Softplus", "Softsign", "Sqrt", "Swish",
)  # fmt: skip
# one number from one number, in one kernel each
ACTIVATIONS = (*ROUNDINGS, *KINKED, *SMOOTH)
ELEMENTWISE = (*CASTS, "Identity", *TESTS, *ACTIVATIONS)

# ---- an element of the result comes from the elements of all operands at the same index, after
# broadcasting

ARITHMETIC = ("Add", "Div", "Mul", "Sub")
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
LOGICAL = ("And", "Or", "Xor")
BITWISE = ("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
# numbers from numbers
NUMERIC = (*ARITHMETIC, "Max", "Mean", "Min", "Mod", "PRelu", "Pow", "Sum", "Where")
BROADCASTING = (*NUMERIC, *COMPARISONS, *LOGICAL, *BITWISE)
# operands may be exchanged without a change of a bit; Max(0, -0) may be either zero
SYMMETRIC = ("Add", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Mul", *LOGICAL)

# ---- an element of the result is an element of the first operand; other operands are sizes or
# places

VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")  # in the same order
PERMUTES = ("DepthToSpace", "SpaceToDepth", "Transpose")
REPEATS = ("Expand", "Tile")
SELECTS = ("Gather", "GatherElements", "GatherND", "Slice", "Split")
MOVES = (*VIEWS, *PERMUTES, *REPEATS, *SELECTS)

# ---- others

# an element of the result comes from all elements along `axes`
REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip

# the result holds the tensors of sequences or optionals, or one of them, or their number
SEQUENCES = (
    "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt",
    "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
    "SplitToSequence",
)  # fmt: skip

# an element of the result comes from a random generator
RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
})  # fmt: skip
