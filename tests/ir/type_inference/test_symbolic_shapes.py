"""The claims about the sizes of a Reshape, where a size may be 0 and then copies the operand's."""

from __future__ import annotations

import itertools
import math
import random

from onnxgrad.ir import sizes
from onnxgrad.ir.sizes import Dim
from onnxgrad.ir.type_inference.symbolic_shapes import _reshaped

# sizes that are 0 with a name, beside one, and for no reason of a single name
ATOMS: list[int | str] = [
    "N", "M", "L", 1, 3,
    str(sizes.divide("M", 2)),
    str(sizes.maximum(sizes.divide("M", 2), sizes.minimum("M", 1))),
    str(sizes.maximum(sizes.subtract("N", "M"), 0)),
    str(sizes.multiply("L", 4)),
]  # fmt: skip
# no two names are 0
RUNS = [
    dict(zip("NML", numbers, strict=True))
    for numbers in itertools.product(range(4), repeat=3)
    if numbers.count(0) < 2
]


def number(d: Dim, env: dict[str, int]) -> int:
    return int(eval(str(d), {"max": max, "min": min, "__builtins__": {}}, env))


def reshaped(source: list[int], wanted: list[int]) -> list[int] | None:
    """The sizes of onnxruntime's result, None if it fails."""
    if any(not d and k >= len(source) for k, d in enumerate(wanted)):
        return None
    found = [d or source[k] for k, d in enumerate(wanted)]
    return found if math.prod(found) == math.prod(source) else None


def test_claims_about_a_reshape_hold_where_one_name_is_zero() -> None:
    rng, claims, kept, runs = random.Random(0), 0, 0, 0
    for _ in range(1000):
        source = [rng.choice(ATOMS) for _ in range(rng.randint(1, 4))]
        wanted: list[Dim] = list(source)
        for _ in range(rng.randint(1, 2)):  # join two axes, or add one
            at = rng.randrange(len(wanted))
            if rng.random() < 0.8 and at + 1 < len(wanted):
                wanted[at : at + 2] = [sizes.product(wanted[at : at + 2])]
            else:
                wanted.insert(at, 1)
        if rng.random() < 0.3:
            rng.shuffle(wanted)
        found = _reshaped(tuple(source), tuple(wanted), False)
        claims += len(found)
        kept += sum(d is not None for d in found)
        for env in RUNS:
            real = reshaped([number(d, env) for d in source], [number(d, env) for d in wanted])
            if real is not None:
                runs += 1
                for d, n in zip(found, real, strict=True):
                    assert d is None or number(d, env) == n, (source, wanted, found, real, env)
    assert kept / claims > 0.8
    assert runs > 20_000


def test_a_size_is_known_unless_two_reasons_make_two_sizes_zero() -> None:
    batch = str(sizes.maximum(sizes.subtract("N", "M"), 0))
    joined = str(sizes.multiply("B", batch))
    # at N = M and L = 0 the result is (B, 0)
    assert _reshaped(("B", batch, "L"), (joined, "L"), False) == (None, "L")
    assert _reshaped(("B", batch, 4), (joined, 4), False) == (joined, 4)
    # heads of attention: 0 at N and S together, which is ignored
    assert _reshaped(("4*N", "S", 4), ("N", 4, "S", 4), False) == ("N", 4, "S", 4)
