"""The installation: the models that onnxruntime can load, and the providers that really run."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.verify.running.child_process import Refused, RunFailed, held
from onnxgrad.verify.running.runtimes import Runtime
from onnxgrad.verify.running.session import open_session, versions
from onnxgrad.vocabulary import PROVIDERS
from onnxgrad.wording import perhaps

_PACKAGES = (
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "numpy",
    "ml_dtypes",
    "onnx-graphsurgeon",
    "onnx-ir",
    "torch",
)


# the oldest onnxruntime of `pyproject.toml`, by the oldest Python that it is for
_FLOORS = {(3, 11): "1.31", (3, 0): "1.23.2"}


def too_old(version: str) -> str:
    """Returns a warning if this version of onnxruntime is below the lowest that is supported, else
    an empty text.
    """
    floor = next(v for python, v in _FLOORS.items() if sys.version_info >= python)
    if _numbers(version) >= _numbers(floor):
        return ""
    return (
        f"onnxruntime {version} is older than {floor}, the lowest version that onnxgrad is tested "
        "with: results may be wrong, and models may not load"
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version; those behind the first other text do not count."""
    return tuple(int(n) for n in re.match(r"[\d.]*\d|", version)[0].split(".") if n)  # type: ignore[index]  # matches always


@functools.cache
def runtime_limits() -> tuple[int, int]:
    """Returns (highest IR version, highest opset) that the installed onnxruntime loads by default.
    Finds them by loading a one-node model.
    """

    def loads(ir_version: int, opset: int) -> bool:
        try:
            open_session(_probe(ir_version, opset))
        except RunFailed:
            return False
        return True

    def highest(start: int, accepts: Callable[[int], bool]) -> int:
        value = start
        while accepts(value + 1):
            value += 1
        return value

    ir_version = highest(
        8, lambda v: loads(v, 17)
    )  # every supported onnxruntime accepts IR 8 and opset 17
    return ir_version, highest(17, lambda v: loads(ir_version, v))


def _probe(ir_version: int, opset: int) -> bytes:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "probe", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    model.ir_version = ir_version
    return bytes(model.SerializeToString())


@functools.cache
def _versions_in(runtime: Runtime) -> dict[str, Any]:
    where = runtime.python or "onnxruntime"
    try:
        with held(runtime.kind) as child:
            found: dict[str, Any] = child.ask(60.0, "versions")
    except Refused as error:
        raise InputError(
            f"{where}: has no onnxruntime that can be imported ({error.words[:200]}): "
            f"{where} -m pip install onnxruntime"
        ) from None
    except RunFailed as error:
        raise InputError(
            f"{where}: is no Python with numpy and onnxruntime: {error.reason}"
        ) from error
    return found


def versions_in(runtime: Runtime) -> dict[str, Any]:
    """Returns {'onnxruntime': version, 'providers': [...]} of another runtime. Raises InputError,
    in one line, if its interpreter has no numpy or onnxruntime, or if this onnxruntime does not
    offer the provider.
    """
    known = dict(_versions_in(runtime))
    if runtime.provider not in known["providers"]:
        near = perhaps(runtime.provider, known["providers"])
        raise InputError(
            f"{runtime.python or 'onnxruntime'}: {runtime.provider} is missing{near}: onnxruntime "
            f"{known['onnxruntime']} has {', '.join(known['providers'])}"
        )
    return known


def title_of(runtime: Runtime) -> str:
    """Returns the name of another runtime in reports, with its version."""
    where = f" of {runtime.python}" if runtime.python else ""
    provider = runtime.provider.removesuffix("ExecutionProvider")
    return f"onnxruntime {versions_in(runtime)['onnxruntime']}{where}, {provider}"


def doctor_report() -> dict[str, Any]:
    """Returns versions, limits of the installed onnxruntime, and whether each provider runs a tiny
    graph, in JSON's types.

    Keys: python, packages {name: version or None}, onnxruntime, max_ir, max_opset, available
    [provider], providers {cpu, cuda: {works, why}}, problems [text].
    """
    packages = {name: _version(name) for name in _PACKAGES}
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "packages": packages,
        "problems": [],
    }
    if packages["onnxruntime"] and packages["onnxruntime-gpu"]:
        report["problems"].append(
            "onnxruntime and onnxruntime-gpu overwrite each other's files: uninstall both, then "
            "install one of them"
        )
    try:
        known = versions()
        report["problems"] += filter(None, [too_old(known["onnxruntime"])])
        max_ir, max_opset = runtime_limits()
    except OnnxgradError as error:
        report |= {"onnxruntime": None, "max_ir": None, "max_opset": None, "available": []}
        report["problems"].append(str(error))
    else:
        report |= {
            "onnxruntime": known["onnxruntime"],
            "max_ir": max_ir,
            "max_opset": max_opset,
            "available": known["providers"],
        }
    report["providers"] = {name: _works(name) for name in PROVIDERS}
    return report


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _works(provider: str) -> dict[str, Any]:
    """Runs y = x @ x on the provider."""
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[2,2] x) => (float[2,2] y) { y = '
        "MatMul(x, x) }"
    )
    x = np.array([[1, 2], [3, 4]], np.float32)
    try:
        y = open_session(onnx.parser.parse_model(text), provider=provider).run({"x": x})["y"]
    except OnnxgradError as error:
        return {"works": False, "why": str(error)}
    right = isinstance(y, np.ndarray) and np.allclose(y, x @ x)
    return {"works": right, "why": "" if right else f"wrong result {y}"}
