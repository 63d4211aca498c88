"""What the frozen part of a model gives for each example, computed once.

The step behind it (`training_step(inputs_at=...)`) holds nothing of that part, so that an epoch
costs what the trained part costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.ir.types import Array
from onnxgrad.options import known_keywords
from onnxgrad.train.cut import At, cut, first_part
from onnxgrad.train.data import Arrays, read_npz
from onnxgrad.train.engines.session import checked, open_session
from onnxgrad.train.manifest import one_size
from onnxgrad.train.update import fed_of


@known_keywords
def features(
    model: ModelLike,
    at: At,
    data: Mapping[str, Array] | str | PathLike[str],
    *,
    batch_size: int | None = None,
    provider: str = "cpu",
    threads: int | None = None,
) -> dict[str, Array]:
    """The values `at` of a model for each example of the data, to train with
    `training_step(model, ..., inputs_at=at)`.

    data: arrays by name, or an .npz of them, with one row per example; those that only the part
    before the values reads go, the others (labels) come back beside the values. It runs on batches
    of `batch_size` (32, or what the model takes where that is fixed). Raises InputError as `cut`
    does, for data that does not fit, and for a value without one row per example.
    """
    rest, first = load_own(model), load_own(model)
    cut(rest, at)
    first_part(first, at)
    block = first.main
    arrays = read_npz(Path(data)) if isinstance(data, (str, PathLike)) else dict(data)
    taken = [fed_of(v, "batch") for v in block.inputs if v.initializer is None]
    read, names = {fed.name for fed in taken}, [v.name for v in block.outputs]
    own = {k: np.asarray(a) for k, a in arrays.items() if k in read}
    if not own:
        checked(own, taken)  # says what is lacking
    session, parts = open_session(first, provider, threads), []
    size = (one_size(taken) or 32) if batch_size is None else batch_size
    for batch in Arrays(own, size).epoch(0):
        count = len(next(iter(batch.values())))
        found = session.run(names, checked(batch, taken))
        for name, a in zip(names, found, strict=True):
            if not a.ndim or len(a) != count:
                raise InputError(
                    f"'{name}' has shape {list(a.shape)} for {count} examples: it has not one row "
                    "for each"
                )
        parts.append(found)
    kept = {k: a for k, a in arrays.items() if k not in read or _is_input(rest.main, k)}
    return {**kept, **{n: np.concatenate(each) for n, each in zip(names, zip(*parts))}}


def _is_input(block: BindingBlock, name: str) -> bool:
    return any(v.name == name for v in block.inputs)
