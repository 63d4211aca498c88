"""Every exception of the package survives pickling, and no message prints a whole graph."""

from __future__ import annotations

import concurrent.futures
import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
from typing import Any

import pytest

import onnxgrad
from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.rewrite.trace import Firing
from onnxgrad.verify import Difference, Report, RunFailed
from tests.helpers import parse

REPORT = Report(False, (Difference("y", (0,), 1.0, 2.0, 0.5, 1e-6, ""),), {}, ())
FIRING = Firing(3, "clean", "law", "y = Neg(x)")
# by annotation: what a constructor that asks for more than a message is given
GIVEN: dict[str, Any] = {
    "int": 7,
    "float": 0.5,
    "bool": True,
    "Report": REPORT,
    "Firing": FIRING,
    "Firing | None": FIRING,
}


def _made(cls: type[Exception]) -> Exception:
    if cls.__init__ in (Exception.__init__, OnnxgradError.__init__):
        return cls("what, where, what to do")
    parameters = [
        p
        for p in list(inspect.signature(cls.__init__).parameters.values())[1:]
        if p.default is p.empty
    ]
    plain = [
        p for p in parameters if p.kind is not p.KEYWORD_ONLY and p.kind is not p.VAR_POSITIONAL
    ]
    return cls(*(GIVEN.get(str(p.annotation), "words") for p in plain))


def _exceptions() -> list[type[Exception]]:
    for module in pkgutil.walk_packages(onnxgrad.__path__, "onnxgrad."):
        if not module.name.endswith("__main__") and not module.name.startswith("onnxgrad.olive."):
            importlib.import_module(module.name)
    found: dict[type[Exception], None] = {}
    work: list[type] = [Exception]
    while work:
        for cls in work.pop().__subclasses__():
            work.append(cls)
            if cls.__module__.startswith("onnxgrad."):
                found[cls] = None
    return sorted(found, key=lambda cls: f"{cls.__module__}.{cls.__qualname__}")


EXCEPTIONS = _exceptions()


def _same(a: BaseException, b: BaseException) -> bool:
    return type(a) is type(b) and a.args == b.args and str(a) == str(b) and a.__dict__ == b.__dict__


@pytest.mark.parametrize("cls", EXCEPTIONS, ids=[c.__qualname__ for c in EXCEPTIONS])
def test_pickling(cls: type[Exception]) -> None:
    error = _made(cls)
    if isinstance(error.args[0], str):
        error.args = (
            f"m.onnx: {error.args[0]}",
            *error.args[1:],
        )  # as the command line names the file
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert _same(pickle.loads(pickle.dumps(error, protocol)), error)
    assert _same(copy.copy(error), error) and _same(copy.deepcopy(error), error)


def test_the_sweep_sees_them_all() -> None:
    names = {cls.__name__ for cls in EXCEPTIONS}
    assert {
        "InputError",
        "RunFailed",
        "RewriteRefuted",
        "Refused",
        "TypeMismatch",
        "Decline",
        "Unsupported",
    } <= names


def test_a_subclass_with_a_constructor_of_its_own() -> None:
    class Own(OnnxgradError):
        def __init__(self, a: int, *, b: int) -> None:
            super().__init__(f"{a} and {b}")
            self.b = b

    globals()["Own"] = Own
    Own.__qualname__ = "Own"
    again = pickle.loads(pickle.dumps(Own(1, b=2)))
    assert (type(again), str(again), again.b, again.exit_code) == (Own, "1 and 2", 2, 3)


def _fail() -> None:
    raise RunFailed("run", "a worker's words")


@pytest.mark.slow
def test_a_process_pool_sends_them() -> None:
    context = multiprocessing.get_context("spawn")
    with (
        concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool,
        pytest.raises(
            onnxgrad.RunFailed, match="could not run the model: a worker's words"
        ) as error,
    ):
        pool.submit(_fail).result(timeout=60)
    assert (error.value.stage, error.value.reason) == ("run", "a worker's words")


def test_exported() -> None:
    assert {"RunFailed", "RewriteRefuted", "Unsupported", "InputError", "NotProved"} <= set(
        onnxgrad.__all__
    )
    assert all(hasattr(onnxgrad, name) for name in onnxgrad.__all__)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: onnxgrad.optimize(
            parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"), preset=str(m)
        ),
        lambda m: onnxgrad.optimize(m, passes=str(m)),
        lambda m: onnxgrad.optimize(m, merge=str(m)),
        lambda m: onnxgrad.gradient(m, names=str(m)),
        lambda m: onnxgrad.gradient(m, adjoint=m),
        lambda m: onnxgrad.gradient(m, str(m)),
        lambda m: onnxgrad.gradient(m, target=str(m)),
        lambda m: onnxgrad.verify(m, m, provider=str(m)),
        lambda m: onnxgrad.verify(m, m, legs=[str(m)]),
        lambda m: onnxgrad.verify(str(m), m),
        lambda m: onnxgrad.load(str(m)),
    ],
)
def test_no_message_prints_a_graph(call: Any) -> None:
    nodes = "\n".join(f"v{i + 1} = Neg(v{i})" for i in range(400))
    model = parse(f"g (float[2] v0) => (float[2] v400) {{ {nodes} }}")
    with pytest.raises(InputError) as error:
        call(model)
    assert len(str(error.value)) < 2000
