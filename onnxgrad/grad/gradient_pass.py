"""`gradient` as a pass of a pipeline: passes before it work on the model, passes after it on the
model with its gradient.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

from onnxgrad.errors import InputError, NotProved
from onnxgrad.frozen import frozen
from onnxgrad.grad.checking.check import check_gradient
from onnxgrad.grad.differentiation import differentiate
from onnxgrad.grad.opset.raising import OPSET
from onnxgrad.ir.load import ModelLike, load, load_own
from onnxgrad.ir.program import Program
from onnxgrad.passes.base import Pass, register
from onnxgrad.rewrite.trace import Trace

_RULE = "gradient"


@register
@frozen
class GradientPass(Pass):
    """y, ... = f(x, ...) = y, ..., dt/dx, ...: the adjoints of the values `wrt` become further
    outputs.

    `target`: an output or another value, or several separated by spaces; default: the only output.
    `wrt`: names and globs separated by spaces, or params; default: every floating-point input.
    `adjoint`: auto, ones or input. `checkpoint`: auto, a memory budget, or names separated by
    spaces. `stop`: names and globs of values at which gradients stop. As `onnxgrad grad`, for a
    model of opset 18 or above.
    """

    name: ClassVar[str] = "gradient"
    target: str = ""
    wrt: str = ""
    adjoint: str = "ones"
    checkpoint: str = ""
    stop: str = ""
    names: str = "{}_grad"

    def run(self, program: Program, trace: Trace) -> None:
        """Differentiates, but only once if the pipeline repeats its passes. Raises InputError as
        `gradient` does.
        """
        where = f"{self.target or 'the output'} by {self.wrt or 'every input'}"
        if any(f.rule == _RULE and f.where == where for f in trace.rewrites):
            return
        if program.opset < OPSET:
            raise InputError(
                f"pass '{self.name}' needs opset {OPSET} or above, and the model has "
                f"{program.opset}: `onnxgrad grad` raises it"
            )
        self._differentiate(program)
        trace.fired(_RULE, where)

    def stated(self, model: ModelLike, trace: Trace, provider: str) -> Any:
        """Returns the reference model for verification: the model with its gradient as the backward
        walk forms it, not simplified.

        Raises NotProved if the gradient does not agree with differences.
        """
        if not any(f.rule == _RULE for f in trace.rewrites):
            return model
        report = check_gradient(load(model), provider=provider, **self._request())
        if not report.ok:
            raise NotProved(f"{report}; nothing was written")
        program = load_own(model)
        self._differentiate(program, simplify=False)
        return program

    def _differentiate(self, program: Program, **options: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the check reports that all is zero
            differentiate(
                program,
                **self._request(),
                adjoint=self.adjoint,
                names=self.names,
                **options,
            )

    def _request(self) -> dict[str, Any]:
        names = ("target", "wrt", "checkpoint", "stop")
        request = {name: getattr(self, name).split() or None for name in names}
        alone = self.checkpoint.strip()
        if alone == "auto" or (alone[:1].isdigit() and " " not in alone):
            request["checkpoint"] = alone
        return request
