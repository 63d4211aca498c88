"""Steps that keep what the adjoints need: GRU and LSTM give only their states, and their gates
would have to be computed a second time. Where that costs more than a Scan's overhead, one Scan
takes the operator's place, and its gates are results too.

Gradient by x, W, R and B over what it was with the gates computed again, CPU time on one core,
onnxruntime 1.31, as many inputs as the state is wide:

    LSTM            16 steps                  64 steps
    width       16    64    128   256     16    64    128   256
    batch 1     1.34  1.16  1.08  0.88    1.58  1.24  0.99  0.91
    batch 4     1.20  1.07  0.84  0.79    1.38  0.92  0.91  0.83
    batch 16    1.03  0.79  0.76  0.77    1.08  0.87  0.82  0.76
    batch 64    0.82  0.80  0.77          0.94  0.73  0.74

    GRU         16 steps                  64 steps
    width       16    64    128   256     16    64    128   256
    batch 1     1.50  1.31  1.08  0.88    1.84  1.43  1.13  0.93
    batch 4     1.34  1.03  0.86  0.82    1.48  1.05  0.83  0.78
    batch 16    1.07  0.82  0.75  0.75    1.12  0.78  0.77  0.75
    batch 64    0.78  0.73  0.72          0.75  0.74  0.74
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxgrad.grad.rules.recurrent._gates import Gate
from onnxgrad.grad.rules.recurrent._sweep import Recurrent
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

# multiplications per step from which on the operator is replaced
_WORTH = 1 << 17
# an open batch, or an open number of inputs, counts as this many
_OPEN = 16


def is_kept(cell: Recurrent, kinds: Sequence[Sequence[Gate]]) -> bool:
    """Whether a Scan is to take the operator's place: it has work enough, every slope follows from
    what is kept, and no row ends early.

    Not so of an operator that checkpointing leaves where it is and reads through a stand-in.
    """
    binding = cell.binding
    inputs = cell.x.shape[2] if cell.x.shape is not None else None
    batch, inputs = (n if isinstance(n, int) else _OPEN for n in (cell.batch, inputs))
    return (
        binding in binding.block.bindings
        and binding.operand(4) is None
        and all(gate.is_by_value for direction in kinds for gate in direction)
        and batch * cell.width * (inputs + cell.hidden) >= _WORTH
    )


def take_place(cell: Recurrent, series: Sequence[Var], finals: Sequence[Sequence[Var]]) -> None:
    """Let the operator's readers read Y from `series`, the hidden state after each step (T, B, H)
    by direction, and its final states from `finals`, (B, H) by direction.
    """
    binding = cell.binding
    parts = [op.Unsqueeze(v, [1]) for v in series]
    y = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1)
    results = [op.Transpose(y, perm=[2, 0, 1, 3]) if cell.layout else y]
    results += [cell.stacked(states, state=True) for states in finals]
    for out, new in zip(binding.outputs, results):
        if out is not None:
            returned = out.returned
            binding.block.replace(out, new)
            if not returned:
                out.swap_names(new)
