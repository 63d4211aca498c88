"""Made by scripts/make_stubs.py from the declarations of onnxgrad.jobs."""

# fmt: off
# ruff: noqa: I001
from onnx import ModelProto
from onnxgrad.ir.load import M
from onnxgrad.ir.load import ModelLike
from onnxgrad.jobs.gradient_declarations import Targets
from onnxgrad.jobs.kinds import Memory
from onnxgrad.jobs.kinds import Names
from onnxgrad.jobs.kinds import Seconds
from onnxgrad.plugins.place.declaration import Devices
from onnxgrad.plugins.place.driver import PlacedModel
from typing import Any
from typing import IO
from typing import Literal
from typing import overload
import os

@overload
def place(
    model: str | os.PathLike[str] | bytes | IO[bytes],
    device: Devices = (),
    *,
    report: Literal[False] = False,
    default: str = 'cpu',
    propagate: bool = False,
    ir: bool = False,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> ModelProto: ...
@overload
def place(
    model: M,
    device: Devices = (),
    *,
    report: Literal[False] = False,
    default: str = 'cpu',
    propagate: bool = False,
    ir: bool = False,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> M: ...
@overload
def place(
    model: ModelLike,
    device: Devices = (),
    *,
    report: Literal[True],
    default: str = 'cpu',
    propagate: bool = False,
    ir: bool = False,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> PlacedModel: ...
@overload
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
@overload
def casadi_derivative(
    model: str | os.PathLike[str] | bytes | IO[bytes],
    kind: Literal['adj', 'fwd'],
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> ModelProto: ...
@overload
def casadi_derivative(
    model: M,
    kind: Literal['adj', 'fwd'],
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> M: ...
@overload
def casadi_derivative(
    model: ModelLike,
    kind: Literal['adj', 'fwd'],
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> Any: ...
@overload
def function_gradient(
    model: str | os.PathLike[str] | bytes | IO[bytes],
    name: str,
    *,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> ModelProto: ...
@overload
def function_gradient(
    model: M,
    name: str,
    *,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> M: ...
@overload
def function_gradient(
    model: ModelLike,
    name: str,
    *,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> Any: ...
