"""Numbers of float32 as float16 has them, and what becomes of those that it does not have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxgrad.ir.types import Array

LARGEST, SMALLEST = 65504.0, 2.0**-24
# beyond this a number is no size of anything: it stands for infinity, in masks and as a bound
FAR = 1e8


@dataclass(frozen=True)
class Halved:
    """An array in float16. `far`: elements that stood for infinity and are the largest number now;
    `lost`: those that are 0 now; `raised`: it was one number, and would have been 0.
    """

    array: Array
    far: int = 0
    lost: int = 0
    raised: bool = False

    @property
    def notes(self) -> list[str]:
        """What became of numbers that float16 does not have, in words."""
        size = self.array.size
        found = []
        if self.far:
            found.append(f"{self.far:,} of {size:,} numbers stood for infinity and became ±65504")
        if self.raised:
            found.append("became the smallest number, 6e-08, in the place of 0")
        if self.lost:
            found.append(f"{self.lost:,} of {size:,} numbers are below 3e-08 and became 0")
        return found


def halved(array: Array, *, masking: bool) -> Halved | str:
    """A float32 array in float16, or why it is not to be.

    Numbers beyond FAR become the largest one where the operator is `masking`: it adds them, chooses
    or bounds by them, and never divides. A single number does not become 0, which would be another
    thing than a small one (an epsilon); of several, those may that are nothing beside the others.
    """
    with np.errstate(over="ignore", under="ignore"):
        made = array.astype(np.float16)
    over = np.isinf(made) & np.isfinite(array)
    far = over & (np.abs(array) >= FAR)
    if over.any():
        most = float(np.abs(array[over]).max())
        if not masking or bool((over & ~far).any()):
            return f"{most:g} of its constants is beyond 65504"
        made = np.where(far, np.copysign(np.float16(LARGEST), array).astype(np.float16), made)
    lost = (made == 0) & (array != 0)
    if not lost.any():
        return Halved(made, int(far.sum()))
    if array.size == 1:
        return Halved(np.copysign(np.float16(SMALLEST), array).astype(np.float16), raised=True)
    if not made.any():
        return f"all of its {array.size:,} weights are below 3e-08, which would be 0"
    return Halved(made, int(far.sum()), int(lost.sum()))


def tensor_of(array: Array, like: TensorProto | None, name: str) -> TensorProto:
    """The array as a tensor with the words that `like` has."""
    made = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
    if like is not None:
        if like.HasField("doc_string"):
            made.doc_string = like.doc_string
        made.metadata_props.extend(like.metadata_props)
    return made
