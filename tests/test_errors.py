"""Every exception of the package survives pickling, and no message prints a whole graph."""

from __future__ import annotations

import concurrent.futures
import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import train
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError, InternalError, OnnxgradError
from onnxgrad.ir.derivations import LITERAL, Held, Predicate
from onnxgrad.results import Plain, Rendered, WithPage
from onnxgrad.rewrite.trace import Rewrite
from onnxgrad.verify import Difference, Report, RunFailed
from tests.helpers import parse

REPORT = Report(False, (Difference("y", (0,), 1.0, 2.0, 0.5, 1e-6, ""),), {}, ())
FIRING = Rewrite(3, "clean", "law", "y = Neg(x)")
# by annotation: what a constructor that asks for more than a message is given
GIVEN: dict[str, Any] = {
    "int": 7,
    "float": 0.5,
    "bool": True,
    "Report": REPORT,
    "Rewrite": FIRING,
    "Rewrite | None": FIRING,
    "Sequence[Held]": [Held("clean", "law", "y = Neg(x)", Predicate(LITERAL, True))],
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
        if not module.name.endswith("__main__") and "olive." not in module.name:
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


def test_a_notebook_shows_an_answer_in_one_line_and_a_fault_with_its_place() -> None:
    """IPython calls this method, if there is one, instead of printing the frames."""
    with pytest.raises(InputError) as error:
        onnxgrad.load("none.onnx")
    (line,) = error.value._render_traceback_()
    assert line == f"InputError: {error.value}"
    assert not hasattr(InternalError("a fault"), "_render_traceback_")


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
        lambda m: onnxgrad.verify(m, m, checks=[str(m)]),
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


def test_what_does_not_survive_stays_behind() -> None:
    """A pool that cannot read an error waits for it forever."""
    error = InputError("what", lambda: None)
    error.where = "here"  # type: ignore[attr-defined]
    error.hook = threading.Lock()  # type: ignore[attr-defined]
    again = pickle.loads(pickle.dumps(error))
    assert (again.args, again.where, again.hook) == (("what", None), "here", None)


def _refuted() -> int:
    x = onnxgrad.capture("x")
    wrong = onnxgrad.rewrite(onnxgrad.P.Tanh(x))(lambda x: x)
    model = parse("g (float[4] x) => (float[4] y) { y = Tanh (x) }")
    return onnxgrad.optimize(model, passes=[wrong]).ByteSize()


def test_a_refuted_rewrite_survives_with_its_program() -> None:
    with pytest.raises(onnxgrad.RewriteRefuted) as caught:
        _refuted()
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and again.report == caught.value.report
    assert [b.op for b in again.done.program.main.bindings] == ["Identity"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pool", "executor"])
def test_a_pool_that_meets_a_refuted_rewrite_gets_it(kind: str) -> None:
    context = multiprocessing.get_context("spawn")
    with pytest.raises(onnxgrad.RewriteRefuted, match="nothing was written"):
        if kind == "pool":
            with context.Pool(1) as pool:
                pool.apply_async(_refuted).get(timeout=60)
        else:
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
                executor.submit(_refuted).result(timeout=60)


CALLING = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
g (float[3] x) => (float[3] y) { y = my.f (x) }
<domain: "my", opset_import: ["" : 20]> f (a) => (c) { c = Tanh (a) }"""


def _shown(cls: type = Plain) -> list[type[Plain]]:
    """The results that have a text, below a class."""
    below = [inner for sub in cls.__subclasses__() for inner in (sub, *_shown(sub))]
    bases = (Rendered, WithPage)
    return [c for c in below if c not in bases and (issubclass(c, bases) or hasattr(c, "parts"))]


@pytest.mark.slow
def test_every_result_survives_pickling(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, models_dir: Path
) -> None:
    """What commands show and functions return, with its programs, proofs and traces."""
    monkeypatch.chdir(tmp_path)
    made: dict[type, Any] = {}
    for cls in _shown():

        def noted(self: Any, own: Any = cls.to_dict) -> Any:
            made[type(self)] = self
            return own(self)

        monkeypatch.setattr(cls, "to_dict", noted)
    mlp, data = models_dir / "training" / "mlp.onnx", tmp_path / "d.npz"
    shutil.copy(mlp, "m.onnx")
    onnx.save(parse(CALLING), "f.onnx")
    np.savez(data, x=np.zeros((4, 16), "f"), target=np.zeros((4, 8), "f"))
    Path("onnxgrad.toml").write_text('[ci]\nmodels = ["m.onnx"]\n')
    calls = (
        "inspect m.onnx", "inspect m.onnx --weights", "diff m.onnx m.onnx", "optimize m.onnx --dry-run --verify each",
        "grad m.onnx -o g.onnx --target loss", "grad m.onnx -o g.onnx --target loss --jvp --no-verify",
        "grad m.onnx -o g.onnx --target loss --mark --checkpoint auto",
        "grad f.onnx -o g.onnx --function f --no-verify", "grad m.onnx --split s.onnx t.onnx --target loss --no-verify", "train-step m.onnx -o step --loss loss", "ci",
        f"fit step --data {data} --original m.onnx -o t.onnx",
    )  # fmt: skip
    for call in calls:
        assert main([*call.split(), "-q"]) == 0, call
    done = onnxgrad.optimize("m.onnx", report=True)
    made[type(done)] = done
    assert set(_shown()) <= set(made)
    for found in made.values():
        again = pickle.loads(pickle.dumps(found))
        assert type(again) is type(found) and again.to_dict() == found.to_dict()
    step = onnxgrad.training_step("m.onnx", "loss", train.SGD())
    history = onnxgrad.Trainer(step).fit(str(data))
    reports = (onnxgrad.verify("m.onnx", "m.onnx"), onnxgrad.check_gradient("m.onnx"))
    for one in (history, step.manifest, *reports):
        assert pickle.loads(pickle.dumps(one)) == one
    for program in (step.train, onnxgrad.load(models_dir / "bert.onnx")):  # a long one
        again = pickle.loads(pickle.dumps(program))
        assert onnxgrad.to_proto(again) == onnxgrad.to_proto(program)
