"""Dead bindings and constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.ir.program import Program
from onnxgrad.passes.base import Pass, nested, register, roots
from onnxgrad.rewrite.trace import Trace


@register
@dataclass(frozen=True)
class RemoveUnused(Pass):
    """y = f(x), y read by nobody: gone; so are initializers that nothing reads. Graph inputs
    always stay.
    """

    name: ClassVar[str] = "remove-unused"

    def run(self, program: Program, trace: Trace) -> None:
        """Remove unused bindings and initializers everywhere; one firing for each kind in each
        block.
        """
        for root in roots(program):
            # inner blocks first: what they no longer capture may be unused outside
            for block in reversed([root, *nested(root)]):
                if trace.stopped:
                    return
                bindings = block.remove_unused()
                # below IR 4 an initializer that is an input is its default, so it is part of the
                # interface as well
                unused = [v for v in block.initializers.values() if not (v.use_count or v.is_input)]
                for v in unused:
                    block.remove_initializer(v)
                for kind, removed in (("binding", bindings), ("initializer", len(unused))):
                    if removed:
                        trace.of(f"unused_{kind}").applied += removed
                        trace.fired(f"unused_{kind}", f"{removed} in {block.name}")
                # a law meets a constant at its readers; only a branch is looked at as a whole
                trace.unseen += bool(unused) and block.owner is None
