"""The sizes of open dimensions at which a window is evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    same = _same_sizes(window, symbols)
    free = [s for s in symbols if s not in same]
    for row in SIZES:
        plan = {s: row[i % len(row)] for i, s in enumerate(free)}
        yield plan | {s: plan.get(same[s], 2) for s in same}
    for size in (2, 3, 1):
        yield dict.fromkeys(symbols, size)
    try:
        likely = dims.dim_plans(window.old)
    except InputError:
        return
    yield from (p for p in likely if set(p) >= set(symbols))


def _same_sizes(window: Window, symbols: Sequence[str]) -> dict[str, str]:
    """Returns symbols that a premise says are the size of another symbol."""
    shapes = {
        i.name: dims.shape_of(i.name, i.type.tensor_type) or []
        for m in (window.old, window.new)
        for i in sides_inputs(m)
    }
    same: dict[str, str] = {}
    for p in window.premises:
        if p.kind == "equal sizes" and p.value in shapes and p.other in shapes:
            for a, b in zip(shapes[p.value], shapes[p.other], strict=False):
                if a != b and str(a) in symbols and str(b) in symbols and str(a) not in same:
                    same[str(b)] = str(a)
    return same
