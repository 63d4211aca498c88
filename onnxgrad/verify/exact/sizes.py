"""The sizes of open dimensions at which a window is evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import NodeProto

from onnxgrad.errors import InputError
from onnxgrad.verify.exact.evaluate import sides_inputs
from onnxgrad.verify.exact.window import Window
from onnxgrad.verify.feeds import dims

# sizes of the open dimensions, in turn: coprime, and once with 1
SIZES = ((2, 3, 5, 7, 11), (3, 4, 7, 5, 11), (5, 1, 3, 2, 7))


def plans(window: Window) -> Iterator[dict[str, int]]:
    """Yields sizes of the open dimensions: coprime ones, equal ones, and likely ones. A window
    without open dimensions has one empty plan.
    """
    symbols = list(
        dict.fromkeys(
            symbol
            for model in (window.old, window.new)
            for i in sides_inputs(model)
            for d in dims.shape_of(i.name, i.type.tensor_type) or ()
            for symbol in (sorted(dims.symbols_in(d)) if isinstance(d, str) else ())
        )
    )
    if not symbols:
        yield {}
        return
    same, fixed = _same_sizes(window, symbols), _required(window)
    free = [s for s in symbols if s not in same]
    for row in SIZES:
        plan = {s: row[i % len(row)] for i, s in enumerate(free)} | fixed
        yield plan | {s: plan.get(same[s], 2) for s in same}
    for size in (2, 3, 1):
        yield dict.fromkeys(symbols, size) | fixed
    try:
        likely = dims.dim_plans(window.old)
    except InputError:
        return
    yield from (p for p in likely if set(p) >= set(symbols))


def _same_sizes(window: Window, symbols: Sequence[str]) -> dict[str, str]:
    """Returns symbols that a premise says are the size of another symbol."""
    shapes = _shapes(window)
    same: dict[str, str] = {}
    for p in window.premises:
        if p.kind == "equal sizes" and p.value in shapes and p.other in shapes:
            for a, b in zip(shapes[p.value], shapes[p.other], strict=False):
                if a != b and str(a) in symbols and str(b) in symbols and str(a) not in same:
                    same[str(b)] = str(a)
    return same


def _shapes(window: Window) -> dict[str, list[int | str]]:
    return {
        i.name: dims.shape_of(i.name, i.type.tensor_type) or []
        for m in (window.old, window.new)
        for i in sides_inputs(m)
    }


def _required(window: Window) -> dict[str, int]:
    """Returns the sizes that constant operands of products require of open dimensions."""
    shapes, found = _shapes(window), dict[str, int]()
    for model in (window.old, window.new):
        weights = {t.name: list(t.dims) for t in model.graph.initializer}
        for node in model.graph.node:
            if len(node.input) < 2 or node.input[1] not in weights:
                continue
            place = _contracted(node, weights[node.input[1]])
            shape = shapes.get(node.input[0], [])
            if place is None or len(shape) < 2 or not isinstance(shape[place[0]], str):
                continue
            found |= _solved(str(shape[place[0]]), place[1])
    return found


def _contracted(node: NodeProto, weight: Sequence[int]) -> tuple[int, int] | None:
    """Returns the axis of the first operand that a product sums over, and its size."""
    attributes = {a.name: a.i for a in node.attribute}
    if node.op_type == "Conv":
        return 1, weight[1] * attributes.get("group", 1)
    if node.op_type == "ConvTranspose":
        return 1, weight[0]
    if node.op_type == "MatMul" and len(weight) > 1:
        return -1, weight[-2]
    if node.op_type == "Gemm":
        return 1 - attributes.get("transA", 0), weight[attributes.get("transB", 0)]
    return None


def _solved(size: str, wanted: int) -> dict[str, int]:
    """Returns the symbol of a linear formula at which it is the wanted size; nothing if there is
    none.
    """
    symbols = sorted(dims.symbols_in(size))
    if len(symbols) != 1:
        return {}
    low, high = (int(dims.evaluate(size, {symbols[0]: v})) for v in (1, 2))
    steps, rest = divmod(wanted - low, high - low) if high != low else (0, 1)
    value = 1 + steps
    fits = not rest and value > 0 and dims.evaluate(size, {symbols[0]: value}) == wanted
    return {symbols[0]: value} if fits else {}
