"""onnxgrad/extensions.py: an installed package adds to onnxgrad by its metadata alone."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest

import onnxgrad
from onnxgrad import extensions
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.errors import InputError
from onnxgrad.grad.registry import find
from onnxgrad.jobs.ci import accepted
from tests.cli.conftest import Result, run
from tests.helpers import ROOT, parse

__all__ = ["run"]
Run = Callable[..., Result]

METADATA = "Metadata-Version: 2.1\nName: cubes\nVersion: 1.0\n"
POINTS = """
[console_scripts]
other = cubes:nothing

[onnxgrad.commands]
hello = cubes.hello:COMMAND

[onnxgrad.passes]
simplify-cubes = cubes.laws:SimplifyCubes
cubes-of-sums = cubes.laws:product_of_itself

[onnxgrad.laws]
cubes = cubes.laws:read

[onnxgrad.gradients]
my.cubes = cubes.rules:register
broken = cubes.broken:register
absent = cubes.rules:no_such
"""
FILES = {
    "cubes/__init__.py": "",
    "cubes/rules.py": """
import onnxgrad

def register():
    onnxgrad.vjp("my.cubes::Cube", lambda g, y, x: g * 3.0 * x * x)
    onnxgrad.kernel("my.cubes::Cube")(lambda x: x**3)
""",
    "cubes/hello.py": """
from onnxgrad.cli.arguments import Command, row

COMMAND = Command(
    "greet", (("hello world", "a greeting"), ("hello world --loud", "a loud one")),
    (row("name"), row("--loud", action="store_true")), module="cubes.hello",
)

def run(args, out):
    out.show(args.name.upper() if args.loud else args.name)
    return 0
""",
    "cubes/laws.py": """
from dataclasses import dataclass
from onnxgrad import P, RulePass, capture, op, rewrite

x = capture("x")

@rewrite(P.Mul(x, x))
def product_of_itself(x):
    '''x * x = x ** 2'''
    return op.Pow(x, 2.0)

class Theirs:
    '''A rule in another form, for which `read` has a law.'''

def read(given, name):
    return (product_of_itself,) if isinstance(given, Theirs) else ()

@dataclass(frozen=True)
class SimplifyCubes(RulePass):
    '''x * x = x ** 2.'''
    name = "simplify-cubes"
    laws = [product_of_itself]
""",
    "cubes/broken.py": "raise OSError('no licence')",
    "cubes-1.0.dist-info/METADATA": METADATA,
    "cubes-1.0.dist-info/entry_points.txt": POINTS,
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages that has `cubes`."""
    folder = tmp_path / "site"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    for known in (extensions.installed, extensions.packages):
        known.cache_clear()
    yield folder
    for known in (extensions.installed, extensions.packages):
        known.cache_clear()
    COMMANDS.pop("hello", None)
    for name in [name for name in sys.modules if name.split(".")[0] == "cubes"]:
        del sys.modules[name]


def of(domain: str) -> onnx.ModelProto:
    header = f'<ir_version: 10, opset_import: ["" : 20, "{domain}" : 1]>'
    return parse(f"{header} g (float[3] x) => (float[3] y) {{ y = {domain}.Cube (x) }}")


def test_nothing_of_a_package_is_imported_before_its_name_is_used(site: Path) -> None:
    code = """if True:
        import contextlib, io, sys
        import onnxgrad
        from onnxgrad.cli.app import main
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["--help"]) == main(["grad", "--help"]) == 0
        assert "importlib.metadata" not in sys.modules
        onnxgrad.optimize
        print([m for m in sys.modules if m.startswith(("cubes", "onnxgrad.plugins."))])
        """
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{site}", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # the commands of our own plug-ins are in the list that --help prints
    ours = [place.partition(":")[0] for place in extensions.built_in("commands").values()]
    assert all(any(m in place for place in ours) for m in literal_eval(done.stdout)), done.stdout


def test_a_command_is_found_by_its_name(site: Path, run: Run) -> None:
    assert run("hello", "world", "--loud").out == "WORLD\n"
    assert "a loud one" in run("hello", "--help").out
    assert "unknown command 'helo' (did you mean 'hello'?)" in run("helo").err


@pytest.mark.parametrize("name", ["simplify-cubes", "cubes-of-sums"])
def test_a_pass_or_a_law_is_found_by_its_name(site: Path, run: Run, name: str) -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = Mul (x, x) }")
    done = onnxgrad.optimize(model, passes=name, report=True)
    assert [(r.pass_name, r.rule) for r in done.rewrites] == [(name, "product_of_itself")]
    assert "x * x = x ** 2" in run("passes", name).out


def test_rules_of_another_package_are_read_by_its_plugin(site: Path) -> None:
    theirs = importlib.import_module("cubes.laws").Theirs
    model = parse("g (float[3] x) => (float[3] y) { y = Mul (x, x) }")
    done = onnxgrad.optimize(model, passes=[theirs()], report=True)
    assert [(r.pass_name, r.rule) for r in done.rewrites] == [("own-laws", "product_of_itself")]
    with pytest.raises(InputError, match=r"a pass is a name, .* not type"):
        onnxgrad.optimize(model, passes=[theirs])


def test_a_gradient_rule_is_found_by_the_domain_of_its_operator(site: Path, run: Run) -> None:
    assert "cubes" not in sys.modules
    assert onnxgrad.check_gradient(of("my.cubes"), adjoint="input").verdict == "agrees"
    assert "cubes.rules" in run("ops", "my.cubes::Cube").out


def test_a_rule_of_the_caller_stays(site: Path) -> None:
    onnxgrad.vjp("my.cubes::Cube", lambda g, y, x: g * 5.0)
    assert find("my.cubes::Other") is None and "cubes.rules" in sys.modules
    nodes = onnxgrad.gradient(of("my.cubes"), adjoint="input").graph.node
    assert [node.op_type for node in nodes] == ["Cube", "Mul"]


def test_the_rules_of_a_package_are_registered_again_in_the_next_test(site: Path) -> None:
    for _ in range(2):
        with onnxgrad.temporary_rules():
            assert (
                onnxgrad.gradient(of("my.cubes"), adjoint="input").graph.output[-1].name == "x_grad"
            )


@pytest.mark.parametrize(
    ("domain", "why"),
    [
        (
            "broken",
            "plug-in 'broken' of onnxgrad.gradients, cubes.broken:register: OSError: no lic",
        ),
        ("absent", "plug-in 'absent' of onnxgrad.gradients, cubes.rules:no_such: AttributeError"),
        ("unknown", "no gradient rule for unknown::Cube"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named(site: Path, domain: str, why: str) -> None:
    with pytest.raises(InputError, match=why.replace("(", r"\(")):
        onnxgrad.gradient(of(domain), adjoint="input")


def test_ci_runs_again_if_a_package_has_another_version(site: Path) -> None:
    assert accepted.versions()["cubes"] == "1.0"
    metadata = next(site.glob("*.dist-info")) / "METADATA"
    metadata.write_text(METADATA.replace("1.0", "1.1"), encoding="utf-8")
    extensions.packages.cache_clear()
    assert accepted.versions()["cubes"] == "1.1"
    assert "cubes" not in sys.modules


def test_metadata_in_the_working_folder_is_ignored(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a stranger's, beside a model."""
    monkeypatch.chdir(site)
    with pytest.raises(InputError, match=r"no gradient rule for my\.cubes::Cube"):
        onnxgrad.gradient(of("my.cubes"), adjoint="input")


def test_the_first_of_two_packages_has_the_name(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "late-1.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text(METADATA.replace("cubes", "late"), encoding="utf-8")
    (other / "entry_points.txt").write_text(POINTS.replace("cubes.rules", "late"), encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(other.parent)])
    assert extensions.installed("gradients")["my.cubes"] == "cubes.rules:register"
