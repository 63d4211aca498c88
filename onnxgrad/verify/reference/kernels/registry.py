"""The table of kernels, and the arguments of a kernel."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from onnxgrad.errors import Unsupported
from onnxgrad.frozen import frozen

__all__ = ["KERNELS", "UNTIL", "WHY", "Array", "Call", "Kernel", "Unsupported", "axes_of", "kernel"]

Array: TypeAlias = "np.ndarray[Any, Any]"


@frozen
class Body:
    """A subgraph of a node at run time: `body(*values)` runs it. `unturned`: what onnxruntime
    returns of each output of a Loop that makes no turn, without rows.
    """

    run: Callable[..., tuple[Any, ...]]
    unturned: Sequence[Array] = ()

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        return self.run(*values)


@frozen
class Call:
    """One node at run time. `attributes` are Python values, with the schema's defaults filled in
    and subgraphs as a `Body`.
    """

    op_type: str
    domain: str
    version: int  # of the domain's opset
    attributes: dict[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    # perturbs floats between a kernel's steps as other rounding might, if a run requires it
    rounded: Callable[[Array], Array] = np.asarray
    steps: bool = True  # whether QuantizeLinear and the like round to whole numbers, or only clip

    def __getitem__(self, name: str) -> Any:
        return self.attributes.get(name)

    def random(self) -> np.random.Generator:
        """Returns a random generator that depends on the `seed` attribute, or else on the output's
        name, so that both graphs of a proof draw the same numbers.
        """
        seed = self.attributes.get("seed")
        return np.random.default_rng(
            zlib.crc32(self.outputs[0].encode()) if seed is None else abs(int(seed))
        )


# Why a kernel is not borrowed from onnx.reference (scripts/compare_kernels.py measures it). There
# it is missing; wrong for some operands or attributes; rounds what float64 keeps; lacks an older
# opset; takes over five times as long (speed); copies what can be shared (memory); draws numbers
# that the two graphs of a proof do not share.
Why: TypeAlias = Literal["missing", "wrong", "rounds", "opset", "speed", "memory", "draws"]
Kernel: TypeAlias = Callable[..., Any]
KERNELS: dict[tuple[str, str], Kernel] = {}
WHY: dict[tuple[str, str], Why] = {}
# the last opset for which a kernel is used, if later ones are borrowed
UNTIL: dict[tuple[str, str], int] = {}


def kernel(
    *names: str, why: Why, domain: str = "", until: int | None = None
) -> Callable[[Kernel], Kernel]:
    """Registers `f(call, *inputs) -> output or tuple of outputs` for operators of a domain, up to
    opset `until` (None: every opset). Absent inputs are None. `why`: why the kernel is not
    borrowed.
    """

    def register(function: Kernel) -> Kernel:
        for name in names:
            KERNELS[domain, name] = function
            WHY[domain, name] = why
            if until is not None:
                UNTIL[domain, name] = until
        return function

    return register


def axes_of(call: Call, operand: Array | None, rank: int) -> tuple[int, ...] | None:
    """Returns the non-negative `axes`, an operand or in older opsets an attribute; None if they are
    absent or empty.
    """
    found = call["axes"] if operand is None else np.asarray(operand).reshape(-1).tolist()
    return tuple(int(a) % rank if rank else 0 for a in found) if found else None
