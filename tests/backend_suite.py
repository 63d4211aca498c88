"""The ONNX backend test suite as data: every case that needs no download, with its inputs and expected outputs.

Node cases are made in memory by onnx, which takes 4 s, so they are kept in pytest's cache; the others are files inside
the onnx package. tests/suite_table.py says which of them onnxruntime gets right.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.helpers import ROOT

MAX_IR = 13  # the newest IR version that onnxruntime reads since 1.31, the oldest that the tests run with

FLOATS = frozenset(
    {TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE}
)


@dataclass(frozen=True, eq=False)
class Case:
    """One case. A value is an ndarray, a list (sequence) or None (empty optional); `outputs` in graph order."""

    name: str
    kind: str  # node, simple, pytorch-operator, pytorch-converted, light
    model: onnx.ModelProto
    inputs: dict[str, Any]
    outputs: list[Any]
    rtol: float = 1e-3
    atol: float = 1e-7


def clamp_ir(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` whose IR version is at most MAX_IR."""
    clamped = onnx.ModelProto()
    clamped.CopyFrom(model)
    clamped.ir_version = min(model.ir_version, MAX_IR)
    return clamped


def usable() -> Iterator[Case]:
    """Every case, ordered by kind and name. The list is read once per process."""
    yield from _cases()


def case(name: str) -> Case:
    """The case of that name; KeyError if there is none."""
    return _by_name()[name]


@functools.cache
def _by_name() -> dict[str, Case]:
    return {c.name: c for c in _cases()}


def _kept() -> Path:
    """The file of the cases that this onnx, this numpy and this module make."""
    source = zlib.crc32(Path(__file__).read_bytes())
    name = f"backend_suite-{onnx.__version__}-{np.__version__}-{source:08x}.pickle"
    return ROOT / ".pytest_cache" / name


@functools.cache
def _cases() -> tuple[Case, ...]:
    """Those kept, or made and kept for the next process."""
    path = _kept()
    if path.is_file():
        kept: tuple[Case, ...] = pickle.loads(path.read_bytes())
        return kept
    made = _made()
    with contextlib.suppress(OSError):  # a checkout that may not be written to
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(pickle.dumps(made))
        partial.replace(path)
    return made


def _made() -> tuple[Case, ...]:
    from onnx.backend.test.loader import load_model_tests

    found: list[Case] = []
    test: Any  # onnx's TestCase, most of whose fields are optional
    state = np.random.get_state()  # making the cases seeds numpy's global generator
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # overflowing casts and log(0) inside onnx's own case generators
        for test in load_model_tests(kind="node"):
            if test.data_sets is None:  # files, before onnx 1.23
                found.append(_stored(test, "node"))
                continue
            ((inputs, outputs),) = test.data_sets
            found.append(_case(test, "node", test.model, _by_position(test.model, inputs), outputs))
        for kind in ("simple", "pytorch-operator", "pytorch-converted"):
            found += [_stored(test, kind) for test in load_model_tests(kind=kind)]
        for test in load_model_tests(kind="real"):
            path = Path(onnx.__file__).parent.parent / test.url
            if path.is_file():  # the "light" ones are in the package, any other is a download
                model = onnx.load(path)
                found.append(_case(test, "light", model, *_light_data(model, path)))
    np.random.set_state(state)
    return tuple(sorted(found, key=lambda c: (c.kind, c.name)))


def _case(
    test: Any, kind: str, model: onnx.ModelProto, inputs: dict[str, Any], outputs: Any
) -> Case:
    return Case(test.name, kind, model, inputs, [_plain(o) for o in outputs], test.rtol, test.atol)


def _stored(test: Any, kind: str) -> Case:
    folder = Path(test.model_dir)
    model = onnx.load(folder / "model.onnx")
    return _case(test, kind, model, *_stored_data(model, folder / "test_data_set_0"))


def _by_position(model: onnx.ModelProto, inputs: Any) -> dict[str, Any]:
    return dict(zip((i.name for i in model.graph.input), map(_plain, inputs)))


def _plain(value: Any) -> Any:
    """TensorProto to ndarray, scalars to 0-d arrays; sequences and None as they are."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if value is None else np.asarray(value)


def _stored_data(model: onnx.ModelProto, folder: Path) -> tuple[dict[str, Any], list[Any]]:
    def read(prefix: str, values: Any) -> list[Any]:
        files = [folder / f"{prefix}_{i}.pb" for i in range(len(values))]
        return [_load(f.read_bytes(), v.type) for f, v in zip(files, values) if f.is_file()]

    return _by_position(model, read("input", model.graph.input)), read("output", model.graph.output)


def _load(data: bytes, type_: onnx.TypeProto) -> Any:
    if type_.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if type_.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(TensorProto.FromString(data))


def _light_data(model: onnx.ModelProto, path: Path) -> tuple[dict[str, Any], list[Any]]:
    """The ramp that onnx's own runner feeds to these models, and the output stored beside the model."""
    weights = {w.name for w in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name not in weights:
            shape = tuple(d.dim_value or 1 for d in value.type.tensor_type.shape.dim)
            size = int(np.prod(shape))
            feeds[value.name] = (np.arange(size).reshape(shape) / size).astype(np.float32)
    return feeds, [onnx.load_tensor(path.with_name(f"{path.stem}_output_0.pb"))]
