"""The plug-ins of this package as Python functions. Their keywords come from declarations, as in
`onnxgrad.functions`; `functions.pyi` is written by scripts/make_stubs.py.
"""

from __future__ import annotations

from typing import Any

from onnxgrad.ir.load import ModelLike, to_kind_of
from onnxgrad.jobs.keywords import from_keywords
from onnxgrad.jobs.outcome import with_room
from onnxgrad.plugins.place import driver
from onnxgrad.plugins.place.declaration import PlaceOptions


@from_keywords(PlaceOptions)
def place(model: ModelLike, *, options: PlaceOptions, report: bool = False) -> Any:
    """Returns the model with a device marked on every node, for onnxruntime, in the type you passed
    in.

    `device` are rules "DEVICE=PATTERN,PATTERN" by names or operators of nodes; the first that
    matches decides, else the mark in the model, else `default`. With `report=True` returns a
    `PlacedModel`: that model and its placement, with the copies between devices and the session
    option that onnxruntime needs. Raises InputError for a rule that matches nothing.

    >>> placed = onnxgrad.place("models/training/mlp.onnx", "cuda=op:Gemm", report=True)
    >>> dict(placed.placement.by_device), placed.placement.option["value"]
    ({'cuda': 3, 'cpu': 9}, 'cuda(=cuda);cpu(=cpu)')
    """
    found = driver.place(model, options, with_room(model))
    result = to_kind_of(found.model, model)
    return driver.PlacedModel(result, found.placement) if report else result
