"""`gradient`: a model with the adjoints of the requested values as further outputs."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from onnxgrad.grad.differentiation import differentiate, renamed
from onnxgrad.grad.prepare import Adjoint
from onnxgrad.grad.request import Wrt
from onnxgrad.grad.segments import Choice
from onnxgrad.grad.slices import Target
from onnxgrad.grad.stops import Stop
from onnxgrad.ir.collector import collector_paused
from onnxgrad.ir.interop.given_back import check_room, like
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.limits import limited
from onnxgrad.options import known_keywords

_log = logging.getLogger("onnxgrad")


@known_keywords
def gradient(
    model: ModelLike,
    wrt: Wrt = None,
    target: Target = None,
    *,
    adjoint: Adjoint = "ones",
    checkpoint: Choice = None,
    ste: bool = False,
    stop: Stop = None,
    simplify: bool = True,
    names: str = "{}_grad",
    timeout: float | None = None,
    max_memory: int | str | None = None,
) -> Any:
    """The model with one more output per requested value: the adjoint of that value, named by
    `names`.

    `model` is a path, bytes, ModelProto or another object that `load` takes, and is not changed;
    what has no kind to come back as gives a ModelProto, everything else its own kind. `wrt`: names
    or globs of inputs, initializers, intermediate values, which may be sequences of tensors; None:
    every floating-point input; "params": every weight that reaches the target, those of nested
    graphs too, which then move to the main graph; "!GLOB" takes away from those named before it.
    What is a weight, and why, `onnxgrad inspect --weights` says. `target`: an output's name or
    index, any value's name, a part of one such as "logits[:,7]", or a list, whose adjoints add up;
    None: the only output. `adjoint="ones"`: targets are scalars, and of a part it is the sum;
    `adjoint="input"`: any shape, with a new graph input `<target>_grad` of the target's type;
    "auto": the first where all are scalars, else the second.
    `stop`: names or globs of computed values at which gradients stop: what is behind them takes
    them for constants, and nothing flows on to what they are computed from. `checkpoint`: a
    `Checkpoint`, value names, "auto" or a memory budget such as "512MB" (see
    `onnxgrad.grad.segments.choose`); None: the marks in the file, if any. `ste`: rounding by
    QuantizeLinear and DequantizeLinear passes adjoints straight through, an estimate; without it
    nothing passes, for the derivative of rounding is zero. Raises InputError for a request that the
    model cannot answer: an unknown name, a value that is not floating-point, no unique target.
    Warns when no requested value reaches the target, and when `wrt` holds a target with
    `adjoint="input"`: `y_grad` is then the new input, so that the adjoint of `y` is returned as
    `y_grad_2`.

    >>> model = onnxgrad.gradient("models/training/mlp.onnx", "params,!*.bias", "loss")
    >>> [v.name for v in model.graph.output]
    ['loss', '0.weight_grad', '2.weight_grad', '4.weight_grad']
    """
    with limited(timeout, max_memory), collector_paused():
        program = load_own(model)
        check_room(program, model)
        found = differentiate(
            program,
            wrt,
            target,
            adjoint=adjoint,
            checkpoint=checkpoint,
            ste=ste,
            stop=stop,
            simplify=simplify,
            names=names,
        )
    for note in found.notes:
        _log.info(note)
    for value in found.seeds:  # the input of that name is ours: nobody can have seen it coming
        if value in found.adjoints:
            warnings.warn(renamed(value, found.adjoints[value], names), stacklevel=3)
    with collector_paused():
        return like(found.program, model)
