"""Act three of `differentiate`: what was open is closed, what nobody reads goes, and the graph
is simplified.
"""

from __future__ import annotations

from onnxgrad.grad.order import sinks_last
from onnxgrad.grad.prepare import Prepared
from onnxgrad.grad.simplify import drop_constants, simplify
from onnxgrad.grad.stops import lift_stops
from onnxgrad.grad.straight_through import close_rounding
from onnxgrad.ir.anchor import lift
from onnxgrad.passes.remove_unused_functions import reachable


def finish(task: Prepared) -> None:
    """Leave the forward part as it was read, but for what rules replaced there (LSTM and GRU), and
    the backward part as short as it can be.

    Rounding and anchors close first, for they are bindings that simplifying would have to look
    through; the order of the sinks comes last, because everything before moves bindings.
    """
    program, block = task.program, task.block
    lift_stops(program)
    if task.question.ste:
        close_rounding(program)
    for identity in task.anchors:
        lift(identity, task.own_names)
    block.remove_unused()
    if task.question.simplify:
        simplify(program, task.asked, task.forward)
    drop_constants(block, task.weights)
    # functions whose every call was opened; what nothing called before is none of our business
    for key in set(task.functions) - reachable(program):
        del program.functions[key]
    sinks_last(block, task.forward)
