"""Decides which bindings stay in float32, with the reason: `keep` names them, their values exceed
65504, they need their digits, they have no form in float16, or they compute from values that stay
and a few numbers only.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType

from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.derivations import Derivations, Predicate
from onnxgrad.ir.function_bodies import called
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import element_count, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import filling
from onnxgrad.laws.float16.forms import (
    FAR,
    Form,
    Halved,
    form_of,
    halved,
    halved_constant,
    has_floats,
)
from onnxgrad.name_lists import fits

_FLOAT, _DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
# a binding that reads values in float32 stays too if it reads at most this many constant numbers;
# larger constants are weights, which should become smaller
_FEW = 4096
# dtypes whose numbers float16 represents exactly; it has integers up to 2048 only, too few for
# counts and positions
_EXACT_INTEGERS = frozenset({TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8})
# operators that add, choose or bound: a number that means infinity may become the largest one
_MASKING = frozenset(
    {"Add", "Sub", "Mul", "Where", "Clip", "Max", "Min", "Pad", "Concat", "Expand", "Reshape",
     "ConstantOfShape", "ScatterND", "ScatterElements", "Unsqueeze", "Attention"}
)  # fmt: skip

_STAY = {
    "its sums pass 65504": (
        "ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp "
        "ReduceProd CumSum CumProd LpNormalization LpPool GlobalLpPool LRN Det "
        "MeanVarianceNormalization NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"
    ),
    "it grows beyond 65504": "Pow Exp Sinh Cosh",
    "its positions need more digits": (
        "Range Resize Upsample GridSample AffineGrid RoiAlign MaxRoiPool DeformConv Sin Cos TopK "
        "DFT STFT HannWindow HammingWindow BlackmanWindow MelWeightMatrix"
    ),
    "it is quantised already": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear",
    "onnxruntime has it in float32 only": "EyeLike",
    "its random numbers would change": (
        "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial"
    ),
}
FATAL = "onnxruntime may crash if it is float16 before a MatMul"
# operators that onnxruntime removes, or moves a Transpose across
_CROSSED = frozenset(
    {"Identity", "Dropout", "Cast", "CastLike", "Expand", "Mul", "Div", "Add", "Sub", "Transpose",
     "Concat"}
)  # fmt: skip
_ON_PURPOSE = "the model has it in float32 on purpose"
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})
# reasons that `convert` does not overrule, because the result would not run
_FIXED = frozenset({"it is quantised already", "onnxruntime has it in float32 only"})
STAYING = {op: why for why, ops in _STAY.items() for op in ops.split()}


@frozen
class Float16Plan:
    """The form of each binding that becomes float16, the reason why each other one stays, the
    constants in float16, and the values that may exceed 65504 because they mean infinity. `facts`:
    those about weights that a form relies on, while they are recorded.
    """

    forms: dict[Binding, Form] = field(default_factory=dict)
    staying: dict[Binding, str] = field(default_factory=dict)
    constants: dict[Var, Halved] = field(default_factory=dict)
    far: dict[Var, None] = field(default_factory=dict)
    facts: dict[Binding, list[Predicate]] = field(default_factory=dict)


def plan(
    program: Program,
    keep: Sequence[str],
    large: Collection[str] = (),
    convert: Sequence[str] = (),
    stay: Mapping[str, str] = MappingProxyType({}),
) -> Float16Plan:
    """Decides for every binding of the main graph and its nested graphs. `keep` and `convert` are
    names or globs of nodes, results and operators; `convert` overrules other reasons to stay, but
    not `keep`. `large`: values that exceeded 65504 in a run. `stay`: results of further bindings
    that stay, with their reasons. Raises InputError if a name in `keep` or `convert` matches
    nothing.
    """
    found, met = Float16Plan(), set[tuple[str, str]]()
    to_integers, kept = before_integers(program), program.derivations or Derivations()
    for b in program.main.walk():
        if b.is_op("Constant"):
            continue
        mark = kept.mark()
        kept_by = [pattern for pattern in keep if _means(pattern, b)]
        wanted = [pattern for pattern in convert if _means(pattern, b)]
        met.update(("keep", p) for p in kept_by)
        met.update(("convert", p) for p in wanted)
        if not has_floats(b):
            continue
        form, constants = form_of(b), dict[Var, Halved]()
        why = f"it is to be kept ({kept_by[0]})" if kept_by else _stays(b, stay)
        why = why or (_INTEGERS if b in to_integers and not wanted else "")
        why = why or _why(b, found, large, bool(wanted))
        if not why:
            constants, why = _constants(b, form)
        if isinstance(form, Form) and not why:
            found.forms[b] = form
            found.constants.update(constants)
            found.facts[b] = kept.pending[mark[0] :]
            kept.forget(mark)
        else:
            found.staying[b] = why or str(form)
            _carry_far(b, found)
    for option, names in (("keep", keep), ("convert", convert)):
        _check(program, option, [pattern for pattern in names if (option, pattern) not in met])
    return found


def _stays(b: Binding, stay: Mapping[str, str]) -> str:
    return next((stay[v.name] for v in b.outputs if v is not None and v.name in stay), "")


_INTEGERS = "its values become integers or indices, which need more digits"
_BETWEEN = frozenset((*domains.ELEMENTWISE, *domains.BROADCASTING, *domains.MOVES)) - {"Cast"}


def before_integers(program: Program) -> set[Binding]:
    """Returns the Casts of floats to integers, and the elementwise operators and moves whose
    results reach nothing else: float16 has no odd number beyond 2048.
    """
    found: set[Binding] = set()
    for b in reversed(list(program.main.walk())):
        read = [v for v in b.outputs if v is not None]
        if b.is_op("Cast"):
            first = b.operand(0)
            kind = numpy_dtype(b.out.dtype).kind if b.out.dtype else ""
            if first is not None and first.dtype == _FLOAT and kind in ("i", "u"):
                found.add(b)
        elif b.domain == "" and b.op in _BETWEEN and only_integers(read, found):
            found.add(b)
    return found


def only_integers(values: Sequence[Var], casts: Collection[Binding]) -> bool:
    """Whether nothing but these bindings reads the values."""
    return all(v.users and not v.returned and all(u in casts for u in v.users) for v in values)


# operators that choose by comparing floats: a rounded score may choose another row
_CHOOSE = frozenset({"TopK", "NonMaxSuppression", "ArgMax", "ArgMin"})
# operators that compute scores: the bindings between them and the choice stay in float32
_PRODUCTS = frozenset(
    {"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "LSTM", "GRU", "RNN", "Attention"}
)


def heads(program: Program) -> dict[str, str]:
    """The results that lead from the last products to TopK, NonMaxSuppression, ArgMax and ArgMin,
    by name, with the reason why they stay in float32.
    """
    found: dict[str, str] = {}
    for choice in program.main.walk():
        if choice.domain != "" or choice.op not in _CHOOSE:
            continue
        why = f"{choice.op} chooses by it"
        work = [choice]
        while work:
            b = work.pop()
            if b.outputs and b.outputs[0] is not None:
                found.setdefault(b.outputs[0].name, why)
            made = (v.definition for v in b.inputs if v is not None and v.dtype == _FLOAT)
            for d in made:
                at = d.outputs[0] if d is not None and d.outputs else None
                if d is not None and at is not None and not _ends(d) and at.name not in found:
                    work.append(d)
    return found


def _ends(b: Binding) -> bool:
    """Whether `b` is a product, or reads many constant numbers."""
    numbers = sum(element_count(v.shape) or 0 for v in b.inputs if v is not None and v.is_constant)
    return b.op in _PRODUCTS or b.domain != "" or numbers > _FEW


def _why(b: Binding, found: Float16Plan, large: Collection[str], wanted: bool) -> str:
    """Why `b` stays in float32, apart from its form and its constants. `wanted`: `convert` names
    it, so only reasons that forbid float16 count.
    """
    if b.blocks:
        return "its nested graphs are in float32"
    if called(b) is not None:
        return "it calls a function"
    if b.op in _SCATTERS and b.domain == "" and b.attr("reduction", "none") != "none":
        return "onnxruntime has it in float32 only"
    if b.is_op("Transpose") and _is_fatal(b):
        return FATAL
    listed = STAYING.get(b.op, "") if b.domain == "" else ""
    if wanted:
        return listed if listed in _FIXED else _ON_PURPOSE if is_edge(b) else ""
    if any(v is not None and v.name in large for v in b.outputs):
        return "its values passed 65504 in a run"
    if any(v is not None and v.name in large for v in b.inputs):
        return "a value that it reads exceeded 65504 in a run"
    return listed or (_why_cast(b) if b.is_op("Cast") else "") or _goes_on(b, found)


def _is_fatal(transpose: Binding) -> bool:
    """Whether onnxruntime 1.32 may crash while it loads this Transpose in float16. On the CPU it
    turns products into `MatMul(Cast(Transpose(x)), W)`. It crashes if x is float16, W has another
    rank, and the permutation moves the first axis.
    """
    seen: dict[Binding, bool] = {transpose: _moves_first_axis(transpose)}
    work = [transpose]
    while work:
        b = work.pop()
        for reader in b.outputs[0].users if b.outputs and b.outputs[0] else ():
            if reader.is_op("MatMul") and seen[b] and not _same_rank(reader):
                return True
            moves = seen[b] or (reader.is_op("Transpose") and _moves_first_axis(reader))
            if reader.domain == "" and reader.op in _CROSSED and moves > seen.get(reader, -1):
                seen[reader] = moves
                work.append(reader)
    return False


def _moves_first_axis(transpose: Binding) -> bool:
    perm = transpose.attr("perm")
    rank = len(perm) if perm else len(transpose.out.shape or ()) if transpose.out.type else 3
    return rank > 2 and (not perm or perm[0] != 0)


def _same_rank(product: Binding) -> bool:
    """Whether both operands are known to have the same rank."""
    shapes = [None if v is None else v.shape for v in product.inputs]
    return None not in shapes and len({len(s) for s in shapes if s is not None}) == 1


def _why_cast(b: Binding) -> str:
    first = b.operand(0)
    dtype = 0 if first is None else first.dtype
    if is_edge(b) or (b.out.dtype == _FLOAT and dtype in (TensorProto.BFLOAT16, _DOUBLE)):
        return _ON_PURPOSE
    if b.out.dtype == _FLOAT and dtype not in _EXACT_INTEGERS | {_FLOAT}:
        return "its integers need more digits"
    return ""


def is_edge(b: Binding) -> bool:
    """Whether `b` casts between float32 and float16, in either direction."""
    ends = [v.dtype for v in (b.operand(0), b.result(0)) if v is not None]
    return b.is_op("Cast") and sorted(ends) == sorted((_FLOAT, TensorProto.FLOAT16))


def _goes_on(b: Binding, found: Float16Plan) -> str:
    """Why a binding stays because its operands do, or "". It computes from values that stay and a
    few numbers: a variance with its epsilon, an angle, a mask.
    """
    floats = [v for v in b.inputs if v is not None and v.dtype == _FLOAT]
    values = [v for v in floats if not v.is_constant]
    numbers = sum(element_count(v.shape) or 0 for v in floats if v.is_constant)
    if not values or numbers > _FEW:
        return ""
    if all(v.definition is not None and v.definition in found.staying for v in values):
        return "all its operands stay"
    return ""


def _constants(b: Binding, form: Form | str) -> tuple[dict[Var, Halved], str]:
    """The constants that `b` reads, in float16, or the reason why one cannot be converted."""
    found: dict[Var, Halved] = {}
    if isinstance(form, str):
        return found, form
    if form.attribute == "value" and isinstance(wrong := halved(filling(b), masking=True), str):
        return found, wrong
    for i in form.operands:
        v = b.inputs[i]
        if v is None or not v.is_constant:
            continue
        made = halved_constant(v, masking=b.domain == "" and b.op in _MASKING)
        if isinstance(made, str):
            return {}, made
        if made is not None:
            found[v] = made
    return found, ""


def _carry_far(b: Binding, found: Float16Plan) -> None:
    """Marks the results as possibly infinite if an operand is."""
    if b.domain != "" or b.op not in _MASKING:
        return
    for v in b.inputs:
        if v is None or v.dtype != _FLOAT:
            continue
        array = v.const if v.is_constant and (element_count(v.shape) or _FEW) <= _FEW else None
        if v in found.far or (array is not None and bool((abs(array) >= FAR).any())):
            found.far.update(dict.fromkeys(o for o in b.outputs if o is not None))
            return


def _means(pattern: str, b: Binding) -> bool:
    return any(fits(name, pattern) for name in names_of(b))


def names_of(b: Binding) -> Iterator[str]:
    """The names by which a user may refer to a binding."""
    yield from filter(None, (b.node.name, b.op, domains.full_name(b.domain, b.op)))
    yield from (v.name for v in b.outputs if v is not None)


def _check(program: Program, option: str, strange: Sequence[str]) -> None:
    """Raises InputError if a name of the option matches nothing."""
    if not strange:
        return
    known = dict.fromkeys(name for b in program.main.walk() for name in names_of(b))
    near = difflib.get_close_matches(strange[0], known, 1)
    hint = f"did you mean '{near[0]}'?" if near else "name a node, a value or an operator"
    raise InputError(f"{option} '{strange[0]}' matches nothing in the model; {hint}")
