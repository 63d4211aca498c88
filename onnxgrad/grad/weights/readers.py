"""The readers of a constant, its role there, and the computation around them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Literal

from onnxgrad.frozen import frozen
from onnxgrad.grad.paths import edges
from onnxgrad.grad.registry import INTERNAL
from onnxgrad.grad.weights.evidence import are_cos_and_sin
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import CASTS, PERMUTES, REPEATS, VIEWS
from onnxgrad.ir.function_bodies import called
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var

# operators that return the elements of the first operand in other places, or in another dtype
MOVES = frozenset((
    *VIEWS, *PERMUTES, *REPEATS, *CASTS, "DequantizeLinear", "Dropout", "QuantizeLinear",
    "Shadowed", "Slice", "Split", "StraightThrough",
))  # fmt: skip


@frozen
class Reader:
    """`binding` reads `value`, the constant or a moved form of it, as operand `slot`."""

    value: Var
    binding: Binding
    slot: int

    @property
    def others(self) -> list[Var]:
        """The other operands."""
        return [v for i, v in enumerate(self.binding.inputs) if v is not None and i != self.slot]


def moves(b: Binding, slot: int) -> bool:
    """Whether the operator only moves the elements of the operand."""
    return slot == 0 and b.op in MOVES and b.domain in ("", INTERNAL)


def constants_only(program: Program) -> set[Var]:
    """Returns constants, initializers, and all values computed from them alone."""
    found: set[Var] = set()
    for block in program.blocks():
        block.schedule()
        found.update(v for v in block.vars() if v.is_constant or v.initializer is not None)
        found.update(block.sparse)
        for b in block.bindings:
            if b.inputs and not b.blocks and all(v is None or v in found for v in b.inputs):
                found.update(v for v in b.outputs if v is not None)
    return found


def readers(v: Var, fixed: Collection[Var], ends: Collection[str]) -> Iterator[Reader]:
    """Yields the readers of `v`, and of values that moves compute from it or, for several elements,
    operators on constants alone.

    Only readers that pass it a gradient count. `ends`: the operators at which the search stops even
    if all their operands are in `fixed`.
    """
    todo, seen = [v], {v}

    def follow(found: list[Var | None]) -> None:
        new = [w for w in found if w is not None and w not in seen]
        seen.update(new)
        todo.extend(new)

    for read in todo:
        follow(_given_by_branches(read))
        for b in list(read.users):
            if read not in edges(b):
                continue
            for slot in b.places(read):
                inside = _inside(b, slot)
                if inside is not None:
                    follow([inside])
                elif moves(b, slot) or (
                    slot not in OTHERS.get(b.op, ()) and _is_of_constants(b, read, fixed, ends)
                ):
                    follow(list(b.outputs))
                else:
                    yield Reader(read, b, slot)


def _is_of_constants(b: Binding, read: Var, fixed: Collection[Var], ends: Collection[str]) -> bool:
    if b.op in ends or not all(v is None or v in fixed for v in b.outputs):
        return False
    return not (b.op == "Div" and b.inputs[1] is read) and (b.op == "Concat" or not is_one(read))


def is_one(v: Var) -> bool:
    """Whether `v` has a single element."""
    return v.shape is not None and all(n == 1 for n in v.shape)


def _inside(b: Binding, slot: int) -> Var | None:
    """Returns the value inside a call, Loop or Scan that corresponds to its operand."""
    key = called(b)
    if key is not None:
        inputs = b.block.program.functions[key].inputs
        return inputs[slot] if slot < len(inputs) else None
    body = b.blocks.get("body")
    if body is None or slot >= len(body.inputs):
        return None
    inside = body.inputs[slot]
    # an initial state that no step changes is followed
    return inside if not is_state(b, slot) or inside in body.outputs else None


def is_state(b: Binding, slot: int) -> bool:
    """Whether the operand is an initial state of a Loop or Scan."""
    return (b.is_op("Loop") and slot >= 2) or (
        b.is_op("Scan") and slot < len(b.inputs) - b.attr("num_scan_inputs", 0)
    )


def _given_by_branches(v: Var) -> list[Var | None]:
    owner = v.block.owner
    branch = v.block.outputs if owner is not None and owner.is_op("If") else []
    return [
        None if owner is None else owner.result(i) for i, given in enumerate(branch) if given is v
    ]


_FILTER = {1: "filter of a convolution", 2: "bias of a convolution"}
_MATRIX = {0: "matrix of a product", 1: "matrix of a product"}
TABLE = "table of embeddings"
NORM = {1: "scale of a normalisation", 2: "bias of a normalisation"}
_RECURRENT = {1: "input weights", 2: "recurrent weights", 3: "bias of a recurrent layer"}

# the operands that are weights, by operator
WEIGHTS: Mapping[str, Mapping[int, str]] = {
    "Conv": _FILTER, "ConvTranspose": _FILTER, "FusedConv": _FILTER, "NhwcConv": _FILTER,
    "DeformConv": {1: "filter of a convolution", 3: "bias of a convolution"}, "MatMul": _MATRIX,
    "FusedMatMul": _MATRIX, "TransposeMatMul": _MATRIX, "Gemm": {**_MATRIX, 2: "bias of a product"},
    "FusedGemm": {**_MATRIX, 2: "bias of a product"},
    "Einsum": dict.fromkeys(range(8), "factor of an Einsum"), "BatchNormalization": NORM,
    "InstanceNormalization": NORM, "GroupNormalization": NORM, "GroupNorm": NORM,
    "LayerNormalization": NORM, "RMSNormalization": NORM, "SimplifiedLayerNormalization": NORM,
    "SkipLayerNormalization": {2: NORM[1], 3: NORM[2], 4: "bias after a product"},
    "SkipSimplifiedLayerNormalization": {2: NORM[1], 3: "bias after a product"},
    "EmbedLayerNormalization": {**dict.fromkeys((2, 3, 4), TABLE), 5: NORM[1], 6: NORM[2]},
    "Gather": {0: TABLE}, "GatherND": {0: TABLE}, "GatherElements": {0: TABLE},
    "LSTM": {**_RECURRENT, 7: "peepholes"}, "GRU": _RECURRENT, "RNN": _RECURRENT,
    "PRelu": {1: "slope of PRelu"},
    "GemmFastGelu": {**_MATRIX, 2: "bias of a product"},
    "SkipGroupNorm": {**NORM, 4: "bias after a product"},
    "BiasAdd": {1: "bias after a product"}, "BiasSplitGelu": {1: "bias after a product"},
    "BiasGelu": {1: "bias after a product"}, "FastGelu": {1: "bias after a product"},
    "GroupQueryAttention": {14: NORM[1], 15: NORM[1]},
    "DecoderMaskedMultiHeadAttention": {10: "bias after a product"},
    "MoE": {
        **dict.fromkeys((2, 4), _MATRIX[1]), **dict.fromkeys((3, 5), "bias of a product"),
    },
    "CausalConvWithState": _FILTER,
}  # fmt: skip

SCALE = "scale of a quantisation"  # whatever else reads it, as the rounding of a bias does
# the operands that are not weights, by operator
OTHERS: Mapping[str, Mapping[int, str]] = {
    "BatchNormalization": {
        3: "running mean: updated by averaging",
        4: "running variance: updated by averaging",
    },
    "Resize": {1: "region of a Resize", 2: "scales of a Resize"},
    "Upsample": {1: "scales of a Resize"},
    "Dropout": {1: "ratio of a Dropout"},
    "Pad": {2: "fill value of a Pad"},
    "OneHot": {2: "values of a OneHot"},
    "QuantizeLinear": {1: SCALE},
    "DequantizeLinear": {1: SCALE},
    "StraightThrough": {1: SCALE},
    "GatherBlockQuantized": {2: SCALE},
    "SoftmaxCrossEntropyLoss": {2: "class weights of a loss"},
    "NegativeLogLikelihoodLoss": {2: "class weights of a loss"},
    "STFT": {2: "window of an STFT"},
    "GridSample": {1: "grid of a GridSample"},
    "GroupQueryAttention": dict.fromkeys((7, 8), "cosines or sines of a rotary embedding"),
    "RotaryEmbedding": dict.fromkeys((1, 2, 3), "cosines or sines of a rotary embedding"),
}
# the weights of contrib operators that share their name with one of ONNX
_CONTRIB: Mapping[str, Mapping[int, str]] = {
    "Attention": {1: "matrix of a product", 2: "bias after a product"},
    "MultiHeadAttention": {3: "bias after a product"},
}
FILTERS = frozenset({_FILTER[1], _MATRIX[0]})


def operand(by: Reader) -> str:
    """Returns the kind of a weight operand, such as "filter of a convolution"; empty for
    any other.
    """
    tables = [_CONTRIB] if by.binding.domain == "com.microsoft" else []
    return next(
        (
            t[by.binding.op][by.slot]
            for t in [*tables, WEIGHTS]
            if by.slot in t.get(by.binding.op, {})
        ),
        "",
    )


PRODUCTS = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "DeformConv",
        "Einsum",
        "FusedConv",
        "FusedGemm",
        "FusedMatMul",
        "Gemm",
        "MatMul",
        "NhwcConv",
        "TransposeMatMul",
    }
)
_NORMALISATIONS = frozenset(
    {
        "BatchNormalization",
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "LpNormalization",
        "MeanVarianceNormalization",
        "RMSNormalization",
        "SimplifiedLayerNormalization",
    }
)
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div"})
_REDUCTIONS = frozenset(
    {"ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2", "GlobalAveragePool"}
)
_ROOTS = frozenset({"Sqrt", "Pow", "ReduceL2"})
_ON_THE_WAY = _ROOTS | {"Reciprocal", "Max", "Clip", "Add", "Mul", "Div"}
# the most bindings to follow
_STEPS = 12

Kind = Literal["product", "normalisation", ""]


def before(v: Var, fixed: Collection[Var]) -> tuple[Kind, Binding | None]:
    """Returns the product with a weight, or the normalisation, from which `v` is computed by moves
    and arithmetic with constants.
    """
    for _ in range(_STEPS):
        b = v.definition
        if b is None:
            break
        varying = [w for w in b.inputs if w is not None and w not in fixed]
        if b.op in _NORMALISATIONS:
            return "normalisation", b
        if b.op in PRODUCTS and any(w in fixed for w in b.inputs):
            return "product", b
        if is_spread(v, fixed) or (
            b.op in ("Mul", "Div") and any(is_spread(w, fixed) for w in varying)
        ):
            return "normalisation", b
        if not (moves(b, 0) or (b.op in _ARITHMETIC and len(varying) == 1)) or not varying:
            break
        v = varying[0]
    return "", None


def is_spread(v: Var, fixed: Collection[Var]) -> bool:
    """Whether the value is the root of a mean or sum of squares, or its reciprocal: the divisor of
    a normalisation.
    """
    root = False
    for _ in range(_STEPS):
        b = v.definition
        if b is None:
            return False
        root = root or b.op in _ROOTS
        if b.op in _REDUCTIONS:
            return root
        varying = [w for w in b.inputs if w is not None and w not in fixed]
        if not (b.op in _ON_THE_WAY or b.op in MOVES) or len(varying) != 1:
            return False
        v = varying[0]
    return False


def columns(product: Binding) -> int | str | None:
    """Returns the number of features of the product."""
    shape = product.out.shape
    if not shape:
        return None
    return shape[1] if "Conv" in product.op and len(shape) > 1 else shape[-1]


def in_front_of_softmax(v: Var) -> bool:
    """Whether a Softmax reads `v`, possibly moved, scaled or added to."""
    return any(
        b.op in ("Softmax", "LogSoftmax")
        for b in _behind(v, _ARITHMETIC | MOVES | {"Where", "Max", "Softmax"})
    )


def makes_angles(v: Var) -> bool:
    """Whether both Cos and Sin read `v`, possibly moved, scaled or joined to others."""
    return {b.op for b in _behind(v, _ARITHMETIC | MOVES | {"Concat"})} >= {"Cos", "Sin"}


def scaled_again(v: Var, fixed: Collection[Var]) -> bool:
    """Whether `v`, possibly moved, is multiplied by a constant."""
    return any(b.op == "Mul" and any(w in fixed for w in b.inputs) for b in _behind(v, MOVES))


def standardises(by: Reader, fixed: Collection[Var]) -> bool:
    """Whether this is (x - m) / s or (x - m) * s with constants m and s, and the reader subtracts m
    or divides by s.
    """
    if by.binding.op == "Sub":
        return any(
            b.op in ("Div", "Mul") and any(w in fixed for w in b.inputs)
            for b in _behind(by.binding.out, MOVES)
        )
    if by.binding.op != "Div":
        return False
    divided = _source(by.binding.inputs[0])
    b = None if divided is None else divided.definition
    return b is not None and b.op == "Sub" and b.inputs[1] in fixed


def is_rotary(by: Reader, array: Array) -> bool:
    """Whether this is x * cos + rotated(x) * sin: products with two constants, a cosine and a sine
    of the same angles, which are added.
    """
    if by.binding.op != "Mul":
        return False
    for b in _behind(by.binding.out, MOVES):
        for w in b.inputs if b.op in ("Add", "Sub") else ():
            other = _source(w)
            if other is None or other.definition is None or other.definition.op != "Mul":
                continue
            tables = [
                t
                for t in map(_source, other.definition.inputs)
                if t is not None and t.const is not None
            ]
            if any(are_cos_and_sin(array, t.const) for t in tables if t.const is not None):
                return True
    return False


def _source(v: Var | None) -> Var | None:
    """Returns the value whose elements `v` contains in another order."""
    while v is not None and v.definition is not None and moves(v.definition, 0):
        v = v.definition.inputs[0]
    return v


def _behind(v: Var, through: Collection[str]) -> Iterator[Binding]:
    """Yields the readers of `v`, and of the results of operators in `through` after it."""
    todo, seen = [v], {v}
    for read in todo:
        for b in read.users:
            yield b
            if b.op in through and len(seen) < 16 * _STEPS:
                new = [w for w in b.outputs if w is not None and w not in seen]
                seen.update(new)
                todo += new
