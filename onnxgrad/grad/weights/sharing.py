"""Finds weights that an exporter merged because they start equal, and weights that it split into
copies.

PyTorch's exporters keep one initializer if several parameters have equal elements, like the scales
and biases of new normalisations. They leave out biases of zeros. They fold the transposition of a
tied matrix, so that embedding and head become two initializers. Without repairs, such a file trains
as a different network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from onnxgrad.frozen import frozen
from onnxgrad.grad.weights.copies import Copy, find_copies, product_readers, weights_of
from onnxgrad.grad.weights.decision import decide
from onnxgrad.grad.weights.evidence import CONSTANT, is_uniform
from onnxgrad.grad.weights.origins import (
    Origins,
    are_siblings,
    is_without_parameters,
    parameter_name,
    rules,
    without_layer,
)
from onnxgrad.grad.weights.readers import (
    NORM,
    PRODUCTS,
    TABLE,
    Reader,
    before,
    constants_only,
    operand,
)
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var

# an operand of a node
Place = tuple[Binding, int]
# the value of all elements of a new parameter, by its role
_FRESH = {"scale": 1.0, "bias": 0.0, "mean": 0.0, "variance": 1.0}
_STATISTICS = frozenset({"mean", "variance"})
# operators behind which an initializer is still the same parameter
_MOVES = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze"})
# a rule of onnxscript, and the axis of the weight that has the bias's size
_WITHOUT_BIAS, _BIASED = "RemoveOptionalBias", frozenset({"Conv", "ConvTranspose", "Gemm"})
# a scale or bias beside a node of its own
_AFFINE = frozenset({"Add", "Mul", "Sum"})
# the number of nodes around a node that are examined
_STEPS = 48


@frozen
class Use:
    """One layer's use of an initializer.

    way: the operands from the initializer to the layer; the last is the layer's. role: scale, bias,
    mean, variance or matrix; empty for anything else. key: equal for each use of one parameter;
    None if nothing shows which parameter it is. name: of the parameter, if the file records it.
    is_exact: the exporter wrote this name for the parameter; else it follows from a module's.
    """

    way: tuple[Place, ...]
    role: str
    key: str | None
    name: str | None
    is_exact: bool = False

    @property
    def layer(self) -> Binding:
        """The node that computes with it."""
        return self.way[-1][0]


@frozen
class Part:
    """A parameter that shares its initializer with others: its name, and its readers.

    certain: it is new, and evidence shows that it is a separate parameter.
    """

    name: str
    places: tuple[Place, ...]
    certain: bool


@frozen
class Shared:
    """An initializer that several layers read.

    role: its role for these layers. parts: the parameters except the first, which keeps the
    initializer. unknown: the number of layers that may have parameters of their own. uses: each use
    by itself.
    """

    weight: Var
    role: str
    parts: tuple[Part, ...]
    unknown: int
    uses: tuple[Part, ...]


@frozen
class Missing:
    """A bias of zeros that an exporter left out: its name, and the nodes that had it."""

    name: str
    size: int
    dtype: int
    layers: tuple[Binding, ...]


@frozen
class Findings:
    """Initializers that may be several parameters, missing biases, convolutions with a folded
    BatchNormalization, weights with equal elements that may be one parameter, and the names of
    parameters whose layers are missing.
    """

    shared: tuple[Shared, ...]
    missing: tuple[Missing, ...]
    folded: tuple[Binding, ...]
    copies: tuple[Copy, ...]
    lost: tuple[str, ...]


def find_merged(program: Program) -> Findings:
    """Returns the changes that an exporter made to the parameters of a program. Reads the elements
    of weights with one axis, and of those that several products read.
    """
    program.main.schedule()
    weights = weights_of(program)
    copies = find_copies(weights)
    known = _Layers(
        program, weights, {v for c in copies if not c.certain for v in (c.weight, c.copy)}
    )
    shared = [s for v in weights if v.use_count > 1 and (s := _shared(v, known))]
    decisions = decide(program, [s.weight for s in shared])
    return Findings(
        tuple(s for s in shared if decisions[s.weight].is_weight or s.role in _STATISTICS),
        tuple(_missing(program, known.origins)),
        tuple(b for b in program.main.bindings if _is_folded(b)),
        tuple(
            replace(c, certain=c.certain or known.same(c.weight, c.copy))
            for c in copies
            if c.certain or not known.differ(c.weight, c.copy)
        ),
        tuple(without_layer(program)),
    )


# ---- one initializer for several parameters ------------------------------------------------------


def _shared(v: Var, known: _Layers) -> Shared | None:
    """Returns the layers that read an initializer, with its role; None if no two layers read it as
    a weight.
    """
    uses = list(known.uses(v))
    layers = list(dict.fromkeys(u.layer for u in uses if u.role))
    if len(layers) < 2 or v.initializer is None:
        return None
    array = v.block.program.array(v.initializer)
    value = float(array.flat[0]) if is_uniform(array) else None
    matrix = all(u.role in ("", "matrix") for u in uses)
    groups: dict[str, list[Use]] = {}
    for u in uses:
        groups.setdefault(u.key or "", []).append(u)
    direct = [u.key or "" for u in uses if len(u.way) == 1]
    kept = next(k for k in ("", v.name, *direct, *groups) if k in groups)
    parts = [
        Part(_part_name(v, own, i), places,
             all(_starts(u.role, value) for u in own) or _are_siblings(groups[kept], own))
        for i, (key, own) in enumerate(groups.items())
        if key not in (kept, v.name) and (places := _places(own, uses))
    ]  # fmt: skip
    unknown = len({u.layer for u in groups.get("", ()) if u.role})
    each = [
        Part(f"{v.name}.{i}", places, False)
        for i, layer in enumerate(layers[1:], 1)
        if (places := _places([u for u in uses if u.layer is layer], uses))
    ]
    if not parts and (matrix or not each):
        return None
    unknown = 0 if matrix or unknown < 2 else unknown
    roles = dict.fromkeys(u.role for u in uses if u.role)
    return Shared(v, " or ".join(roles), tuple(parts), unknown, tuple(each))


def _part_name(v: Var, own: Sequence[Use], number: int) -> str:
    """Returns the name of a parameter; that of an initializer which the exporter folded stands
    before it, because the elements may be in another order than the parameter's.
    """
    name = own[0].name
    if name is None:
        return f"{v.name}.{number}"
    is_whole = parameter_name(v.name) or name.startswith(f"{v.name}.")
    return name if is_whole else f"{v.name}.{name}"


def _are_siblings(kept: Sequence[Use], own: Sequence[Use]) -> bool:
    """Whether the exporter wrote the names of two parameters of numbered siblings, such as
    `layers.0.bias` and `layers.1.bias`: copies of a layer start equal, and one layer that is called
    twice, or a tied weight, has one name.
    """
    a, b = kept[0].name, own[0].name
    exact = all(u.is_exact and u.name in (a, b) for u in (*kept, *own))
    return exact and a is not None and b is not None and are_siblings(a, b)


def _starts(role: str, value: float | None) -> bool:
    """Whether parameters of that role start with all elements equal to `value`."""
    return value is not None and _FRESH.get(role) == value


class _Layers:
    """The layers that read each weight of a program.

    copies: weights of which another product reads a copy, so that the layer may be one of several
    calls.
    """

    def __init__(self, program: Program, weights: Sequence[Var], copies: Collection[Var]) -> None:
        self.fixed, self.copies = constants_only(program), copies
        self.origins = Origins(program, [v.name for v in weights if parameter_name(v.name)])

    def uses(self, v: Var, way: tuple[Place, ...] = (), name: str | None = None) -> Iterator[Use]:
        """Yields every layer that reads a value, directly or moved; `name` is that of an Identity
        on the way.
        """
        for b in v.users:
            for slot in b.places(v):
                there = (*way, (b, slot))
                if slot == 0 and b.op in _MOVES and b.domain == "" and not b.out.returned:
                    named = b.op == "Identity" and parameter_name(b.out.name)
                    yield from self.uses(b.out, there, b.out.name if named else name)
                    continue
                by = Reader(v, b, slot)
                role = self._role(by)
                if role and name is None and is_without_parameters(b):
                    yield Use(there, role, CONSTANT, f"{v.name}.{CONSTANT}", is_exact=True)
                    continue
                known = name or (self.origins.called(b, role) if role else None)
                is_exact = known is not None
                if role and known is None:
                    source = there[0][0].inputs[there[0][1]]
                    read = "" if source is None else source.name
                    known = self.origins.of(b, role, read)
                    is_exact = known == read
                alone = role and known is None and self._alone(by)
                key = f"{b.out.name}:{slot}" if alone else known
                yield Use(there, role, key, known, is_exact)

    def same(self, a: Var, b: Var) -> bool:
        """Whether the calls from which all readers were made name one parameter for both
        weights.
        """
        named = {self.origins.called(u.layer, "matrix") for v in (a, b) for u in self.uses(v)}
        return len(named) == 1 and None not in named

    def differ(self, a: Var, b: Var) -> bool:
        """Whether the file shows that two weights are two parameters."""
        if self.origins.listed.issuperset((a.name, b.name)):
            return True  # torch.export lists a tied parameter by all its names, and writes one
        names, others = ({u.name for u in self.uses(v) if u.name} for v in (a, b))
        return bool(names and others) and names.isdisjoint(others)

    def _role(self, by: Reader) -> str:
        """Returns the role of the value for a layer."""
        what = operand(by)
        if by.binding.is_op("BatchNormalization") and by.slot > 2:
            return "mean" if by.slot == 3 else "variance"
        if what == NORM[1] or what.startswith("bias"):
            return "scale" if what == NORM[1] else "bias"
        if what:
            return "" if what == TABLE else "matrix"
        if by.binding.op not in _AFFINE or by.binding.domain or not by.others:
            return ""
        in_a_line = by.value.shape is not None and sum(n != 1 for n in by.value.shape) == 1
        if not in_a_line or before(by.others[0], self.fixed)[1] is None:
            return ""
        return "scale" if by.binding.op == "Mul" else "bias"

    def _alone(self, by: Reader) -> bool:
        """Whether the other weights of the layer are its own: for a bias the matrix of its product,
        for a normalisation the matrices of the products next to it.
        """
        b = by.binding
        kind, source = before(by.others[0], self.fixed) if b.op in _AFFINE else ("", b)
        if b.op in PRODUCTS or (kind == "product" and source is not None):
            return self._own_matrices([b if b.op in PRODUCTS else source or b])
        return self._own_matrices([*self._products(b, _readers), *self._products(b, _operands)])

    def _products(
        self, start: Binding, near: Callable[[Binding], Iterable[Binding]]
    ) -> Iterator[Binding]:
        """Yields the first products with a weight on the ways from a node."""
        todo, seen = [start], {start}
        for b in todo:
            for other in near(b):
                if other in seen or len(seen) > _STEPS:
                    continue
                seen.add(other)
                if other.op in PRODUCTS and any(v in self.fixed for v in other.inputs):
                    yield other
                else:
                    todo.append(other)

    def _own_matrices(self, products: Sequence[Binding]) -> bool:
        read = [v for b in products for v in b.inputs[:2] if v is not None and v in self.fixed]
        return bool(read) and all(self._read_once(v) for v in read)

    def _read_once(self, v: Var) -> bool:
        """Whether one product reads the weight, and none a copy of it."""
        while v.definition is not None and v.definition.operand(0) in self.fixed:
            v = v.definition.inputs[0] or v
        return len(product_readers(v)) == 1 and v not in self.copies


def _readers(b: Binding) -> Iterable[Binding]:
    return [user for v in b.outputs if v is not None for user in v.users]


def _operands(b: Binding) -> Iterable[Binding]:
    return [v.definition for v in b.inputs if v is not None and v.definition is not None]


def _places(own: Sequence[Use], uses: Sequence[Use]) -> tuple[Place, ...]:
    """Returns the operands that lead to these uses and to no others, as near to the initializer as
    possible; none if a moved value would have to be split.
    """
    found: dict[Place, None] = {}
    for use in own:
        for place in use.way:
            if all(u in own for u in uses if place in u.way):
                found[place] = None
                break
            if not place[0].is_op("Identity"):
                return ()
    return tuple(found)


# ---- biases that are missing, BatchNormalization that was folded ---------------------------------


def _missing(program: Program, origins: Origins) -> Iterator[Missing]:
    """Yields biases of zeros that onnxscript removed, if the call from which the node was made
    names one; torch's convolutions without a bias get zeros, too.
    """
    layers: dict[str, list[Binding]] = {}
    for b in program.main.bindings:
        if b.op not in _BIASED or b.domain or b.operand(2) is not None:
            continue
        if _WITHOUT_BIAS in rules(b):
            name = origins.called(b, "bias")
            if name is not None and _features(b) is not None:
                layers.setdefault(name, []).append(b)
    for name, found in layers.items():
        size, weight = _features(found[0]), found[0].inputs[1]
        if size is not None and weight is not None:
            yield Missing(name, size, weight.dtype, tuple(found))


def _features(b: Binding) -> int | None:
    """Returns the size of a layer's bias."""
    weight = b.operand(1)
    if weight is None or weight.shape is None or len(weight.shape) < 2:
        return None
    axis = b.op == "ConvTranspose" or (b.op == "Gemm" and not b.attr("transB", 0))
    size = weight.shape[int(axis)]
    group = b.attr("group", 1) if b.op == "ConvTranspose" else 1
    return size * group if isinstance(size, int) else None


def _is_folded(b: Binding) -> bool:
    """Whether a BatchNormalization was folded into the filter of a convolution, by the rule that
    made the node or the filter's name.
    """
    if b.op not in PRODUCTS or b.domain:
        return False
    weight = b.operand(1)
    named = weight is not None and weight.initializer is not None and "Conv" in b.op
    return "BatchNorm" in rules(b) or (
        named and weight is not None and weight.name.startswith(f"onnx::{b.op}_")
    )
