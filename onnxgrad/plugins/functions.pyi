"""Made by scripts/make_stubs.py from the declarations of onnxgrad.jobs."""

# fmt: off
# ruff: noqa: I001
from onnxgrad.ir.load import ModelLike
from onnxgrad.jobs.gradient_declarations import Targets
from onnxgrad.jobs.kinds import Memory
from onnxgrad.jobs.kinds import Names
from onnxgrad.jobs.kinds import Seconds
from onnxgrad.plugins.place.declaration import Devices
from typing import Any
from typing import Literal

def place(
    model: ModelLike,
    device: Devices = (),
    *,
    report: bool = False,
    default: str = 'cpu',
    propagate: bool = False,
    ir: bool = False,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> Any: ...
def casadi_derivative(
    model: ModelLike,
    kind: Literal['adj', 'fwd'],
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> Any: ...
def function_gradient(
    model: ModelLike,
    name: str,
    *,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> Any: ...
