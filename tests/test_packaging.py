"""pyproject.toml and the installed distribution say what README.md promises."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest
import tomllib

import onnxgrad
from onnxgrad import wording
from onnxgrad.version import __version__
from tests.helpers import ROOT


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def name_of(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0]


def test_version_is_written_once(pyproject: dict[str, Any]) -> None:
    assert "version" not in pyproject["project"] and pyproject["project"]["dynamic"] == ["version"]
    assert onnxgrad.__version__ is __version__
    literal = re.compile(rf"""["']{re.escape(__version__)}["']""")
    holders = [
        p.name
        for p in sorted((ROOT / "onnxgrad").rglob("*.py"))
        if literal.search(p.read_text(encoding="utf-8"))
    ]
    assert holders == ["version.py"]
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_installed_version_is_this_one() -> None:
    try:
        installed = metadata.version("onnxgrad")
    except metadata.PackageNotFoundError:
        pytest.skip("onnxgrad is not installed here, only on the path")
    assert installed == __version__


def test_console_script_is_callable(pyproject: dict[str, Any]) -> None:
    assert pyproject["project"]["scripts"] == {"onnxgrad": "onnxgrad.__main__:main"}
    module, attribute = pyproject["project"]["scripts"]["onnxgrad"].split(":")
    assert callable(getattr(import_module(module), attribute))


def test_the_workflow_installs_on_every_version_that_is_named(pyproject: dict[str, Any]) -> None:
    named = [
        c.rpartition(" ")[2]
        for c in pyproject["project"]["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", c)
    ]
    assert pyproject["project"]["requires-python"] == f">={named[0]}"
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    (matrix,) = re.findall(
        r"python: \[(.*)\]", workflow.partition("  installed:")[2].partition("  site:")[0]
    )
    assert re.findall(r"[\d.]+", matrix) == named


def test_base_dependencies_bring_no_onnxruntime(pyproject: dict[str, Any]) -> None:
    names = {name_of(r) for r in pyproject["project"]["dependencies"]}
    assert names == {"onnx", "numpy", "onnx-graphsurgeon", "rich", "tomli"}


def test_extras(pyproject: dict[str, Any]) -> None:
    extras = pyproject["project"]["optional-dependencies"]
    others = {
        "train",
        "plot",
        "tensorboard",
        "mpi",
        "dask",
        "onnxscript",
        "olive",
        "test",
        "dev",
        "docs",
        "peers",
    }
    assert set(extras) == {"cpu", "gpu"} | others
    assert {name_of(r) for r in extras["cpu"]} == {"onnxruntime"}
    assert {name_of(r) for r in extras["gpu"]} == {"onnxruntime-gpu"} and all(
        "[cuda,cudnn]" in r for r in extras["gpu"]
    )
    # Both wheels write the same files, so an extra that can be combined with `gpu` must not bring the other one.
    assert "onnxruntime" not in {name_of(r) for extra in others for r in extras[extra]}


def test_hints_install_what_the_extras_name(pyproject: dict[str, Any]) -> None:
    """No index has this package's extras, so that hints name the packages themselves."""
    extras = pyproject["project"]["optional-dependencies"]
    for extra, packages in wording._PACKAGES.items():
        named = {re.split(r"[\s<>=!~;]", r, maxsplit=1)[0] for r in extras[extra]}
        assert set(shlex.split(packages)) == named, extra
    for path in (ROOT / "onnxgrad").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"onnxgrad\[\w|install '?\[", text), f"{path}: an extra on no index"


def test_the_sbom_names_every_script_of_others(pyproject: dict[str, Any]) -> None:
    """In CycloneDX, by PEP 770; with the versions of ORIGINS.md and the bytes that are shipped."""
    (listed,) = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["sbom-files"]
    sbom = json.loads((ROOT / listed).read_text(encoding="utf-8"))
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    origins = (ROOT / "ORIGINS.md").read_text(encoding="utf-8")
    table = origins.partition("## Libraries inside the page")[2].partition("\n## ")[0]
    files = {}
    for library in sbom["components"]:
        (licence,) = (found["license"]["id"] for found in library["licenses"])
        row = next(r for r in table.splitlines() if library["name"] in r)
        assert library["version"] in row and licence in row
        assert library["purl"].endswith(f"@{library['version']}")
        assert licence in pyproject["project"]["license"]
        files |= {f["name"]: f["hashes"][0]["content"] for f in library["components"]}
    vendor = [p for p in (ROOT / listed).parent.iterdir() if p.suffix in (".js", ".css")]
    assert files == {
        p.relative_to(ROOT).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in vendor
    }


@pytest.mark.slow
def test_the_wheel_carries_the_sbom(tmp_path: Path) -> None:
    pytest.importorskip(
        "hatchling", reason="building needs hatchling, which the extra `dev` brings"
    )
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if ".dist-info/sboms/" in n)
        assert json.loads(archive.read(name))["components"]


def test_every_requirement_has_a_floor_that_can_be_tested(pyproject: dict[str, Any]) -> None:
    from scripts.lowest import lowest

    found = list(lowest())
    project, extras = pyproject["project"], pyproject["project"]["optional-dependencies"]
    asked = [*project["dependencies"], *extras["cpu"], *extras["test"]]
    assert len(found) == len([r for r in asked if "python_version < '3.11'" not in r])
    assert len({line.split("==")[0] for line in found}) == len(found)
    assert all(re.fullmatch(r"[a-z-]+==[0-9.]+", line) for line in found)


def test_the_pages_name_every_base_dependency_and_both_commands(pyproject: dict[str, Any]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = (ROOT / "onnxgrad/help/install.md").read_text(encoding="utf-8")
    assert [
        r for r in pyproject["project"]["dependencies"] if f"`{name_of(r)}`" not in section
    ] == []
    assert "-m onnxgrad optimize models/mobilenet_v2.raw.onnx -o out.onnx" in readme
    assert ".venv/bin/python -m pytest" in readme


def test_the_source_distribution_holds_what_the_documents_name(pyproject: dict[str, Any]) -> None:
    included = set(pyproject["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    wanted = {
        ".ci",
        ".editorconfig",
        ".github",
        ".pre-commit-config.yaml",
        "LICENSE",
        "*.md",
        "pyproject.toml",
    }
    assert wanted <= included and [n for n in included - {"*.md"} if not (ROOT / n).exists()] == []


def test_types_are_shipped() -> None:
    assert (ROOT / "onnxgrad" / "py.typed").is_file()


def test_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert (
        "Apache License" in text
        and "Version 2.0, January 2004" in text
        and "END OF TERMS AND CONDITIONS" in text
    )
    assert (ROOT / "scripts/clients/js/LICENSE").read_text(encoding="utf-8") == text


@pytest.mark.slow
def test_the_source_distribution_runs_its_own_tests(tmp_path: Path) -> None:
    """Among them those that read models/, tests/data, scripts/ and pyproject.toml."""
    pytest.importorskip(
        "hatchling", reason="building needs hatchling, which the extra `dev` brings"
    )
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (archive,) = tmp_path.glob("onnxgrad-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert {p.name for p in (ROOT / "models").rglob("*.onnx")} == {
        p.name for p in unpacked.glob("models/**/*.onnx")
    }
    run = [
        "test_architecture.py",
        "test_packaging.py",
        "test_readme.py",
        "ir/test_round_trip.py",
        "cli/commands/test_inspect.py",
    ]
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "PYTHONPATH"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(f"tests/{name}" for name in run)],
        cwd=unpacked, env={**env, "PYTHONPATH": str(unpacked)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:]
