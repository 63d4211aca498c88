"""First values of trained weights that a file stores as zeros."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod, sqrt
from typing import Annotated, Any, ClassVar

import numpy as np

from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import tensor_of
from onnxgrad.ir.var import Var
from onnxgrad.options import Declared, Range, check_fields
from onnxgrad.wording import counted, some_of

_SHOWN = 8
_MOVES = frozenset({"Transpose", "Identity", "Cast"})


@dataclass(frozen=True)
class Initialization(metaclass=Declared):
    """Uniform random values for weights of at least two axes whose elements are all 0, if a product
    of matrices or a convolution reads them. The draws depend on `seed` and on the weight's name.
    """

    name: ClassVar[str] = ""

    seed: Annotated[int, Range(0, 2**63 - 1)] = 0

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    def set_zeros(self, program: Program, trained: Iterable[str], forward: Program) -> list[str]:
        """Sets the trained weights of a program, and returns a note. forward: the same model
        without its gradient, whose nodes read the weights too.
        """
        drawn: dict[str, bool] = {}
        for name in trained:
            v = program.main.initializers.get(name)
            if v is None or v.const is None or v.const.ndim < 2 or v.const.any():
                continue
            fans = _fans(forward.main.initializers[name])
            drawn[name] = fans is not None
            if fans is not None:
                rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
                values: Any = rng.uniform(-1, 1, v.const.shape) * self._bound(*fans)
                v.set_constant(tensor_of(values.astype(v.const.dtype), name))
        made, left = ([n for n, is_drawn in drawn.items() if is_drawn is k] for k in (True, False))
        stay = f"; left at 0, as no product reads them: {some_of(left, _SHOWN)}" if left else ""
        if not made:
            return [f"{self.name}: no trained matrix that a product reads is all 0{stay}"]
        note = f"{counted(len(made), 'weight')} of zeros drawn: {some_of(made, _SHOWN)}"
        return [f"{self.name}: {note}{stay}"]

    @abstractmethod
    def _bound(self, inputs: float, outputs: float) -> float:
        """Returns the largest value, from the number of terms of each output, and of each input."""


@dataclass(frozen=True)
class Kaiming(Initialization):
    """U(-b, b), b = sqrt(6 / inputs), which keeps the variance through Relu:
    torch.nn.init.kaiming_uniform_ with the gain of Relu. Source: He et al., "Delving Deep into
    Rectifiers", 2015.
    """

    name: ClassVar[str] = "kaiming"

    def _bound(self, inputs: float, outputs: float) -> float:
        return sqrt(6 / inputs)


@dataclass(frozen=True)
class Xavier(Initialization):
    """U(-b, b), b = sqrt(6 / (inputs + outputs)): torch.nn.init.xavier_uniform_. Source: Glorot and
    Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.
    """

    name: ClassVar[str] = "xavier"

    def _bound(self, inputs: float, outputs: float) -> float:
        return sqrt(6 / (inputs + outputs))


INITIALIZATIONS: dict[str, type[Initialization]] = {cls.name: cls for cls in (Kaiming, Xavier)}


def _fans(v: Var) -> tuple[int, int] | None:
    """Returns how many inputs an output of the reading product sums, and how many outputs an input
    reaches; None if no product reads the weight.
    """
    shape: Any = v.shape or (0, 0)
    *_, rows, columns = shape
    for b in v.users:
        slot = b.places(v)[0]
        if b.op in _MOVES and (found := _fans(b.out)) is not None:
            return found
        if b.op in ("Conv", "ConvTranspose") and slot == 1:
            return prod(shape[1:]), shape[0] * prod(shape[2:])
        if b.op in ("MatMul", "Gemm") and slot < 2:
            flipped = (slot == 0) != bool(b.attr("transB" if slot else "transA"))
            return (columns, rows) if flipped else (rows, columns)
    return None
