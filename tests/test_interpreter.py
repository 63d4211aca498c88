"""A folder full of a stranger's modules, one for each name that a command may import: none is run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onnxgrad import interpreter
from onnxgrad.interpreter import interrupts_held, python_command
from onnxgrad.passes.user_laws import run_plugins
from tests.every_command import (
    COMMANDS,
    console_script,
    files_below,
    installed_modules,
    plant,
    prepare,
    run,
)
from tests.helpers import ROOT

# workers with proofs, a session in our own process
QUICK = [w for w in COMMANDS if w.startswith("ci") or "--engine graph" in w]


def leftovers(program: list[str], commands: list[str], scratch: Path) -> dict[str, object]:
    """What went wrong, by command, in a folder of planted modules and with an empty home."""
    folder, home = scratch / "folder", scratch / "home"
    prepare(folder)
    home.mkdir()
    names = installed_modules()
    mark = plant(folder, names)
    assert len(names) > 200 and {"types", "multiprocessing", "numpy", "onnxruntime"} <= set(names)
    wrong: dict[str, object] = {}
    for words in commands:
        before = files_below(folder)
        done = run(program, words, folder, home)
        made = files_below(folder) - before
        if (
            done.returncode not in (0, 1)
            or made != COMMANDS[words]
            or mark.exists()
            or files_below(home)
        ):
            ran = mark.read_text() if mark.exists() else ""
            mark.unlink(missing_ok=True)
            wrong[words] = (
                done.returncode,
                made ^ COMMANDS[words],
                ran,
                files_below(home),
                done.stderr,
            )
            shutil.rmtree(home)
            home.mkdir()
    return wrong


@pytest.mark.slow
def test_no_module_of_the_working_folder_is_run(tmp_path: Path) -> None:
    """Nor is a file left in the folder or at home that was not asked for."""
    assert leftovers(console_script(tmp_path), QUICK, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "module"])
def test_no_module_of_the_working_folder_is_run_by_any_command(tmp_path: Path, how: str) -> None:
    isolated = [sys.executable, "-I", "-m", "onnxgrad"]
    program = console_script(tmp_path) if how == "script" else isolated
    assert leftovers(program, list(COMMANDS), tmp_path) == {}


def test_the_planted_modules_would_be_seen(tmp_path: Path) -> None:
    """Python's own rule for `-m`, which SECURITY.md tells."""
    prepare(tmp_path / "folder")
    mark = plant(tmp_path / "folder", ["argparse"])
    run([sys.executable, "-m", "onnxgrad"], "help start", tmp_path / "folder", tmp_path)
    assert mark.read_text() == "argparse\n"


def search_path(*, cwd: Path, package: bool = False) -> list[str]:
    """The path of a process that is started in `cwd` from a process with this one's."""
    before = os.getcwd()
    os.chdir(cwd)
    try:
        command = python_command("print(*sys.path, sep='\\n')", package=package)
        return subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    finally:
        os.chdir(before)


def test_the_path_is_ours_without_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "here")
    for name in ("here", "other", "é\udc80{}"):
        (tmp_path / name).mkdir()
    strange = str(tmp_path / "é\udc80{}")
    ours = ["", str(link), str(tmp_path / "other"), *sys.path, str(tmp_path / "here"), "."]
    monkeypatch.setattr(sys, "path", ours)
    assert search_path(cwd=tmp_path / "here") == ours[2:-2]
    monkeypatch.setattr(sys, "path", [strange, *sys.path])
    code = python_command("print(ascii(sys.path[0]))", package=True)
    assert subprocess.run(code, capture_output=True, text=True, check=True).stdout.strip() == ascii(
        strange
    )


def test_the_folder_of_installed_packages_may_be_the_working_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = next(p for p in sys.path if p.endswith("site-packages"))
    assert site in search_path(cwd=Path(site))


def test_this_package_is_found_wherever_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the repository's own folder, by `python -m`."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p or ".").resolve() != ROOT])
    code = python_command("print(sys.modules['onnxgrad'].__file__)", package=True)
    found = subprocess.run(code, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(found) == Path(interpreter.__file__).parent / "__init__.py"


def test_flags_that_isolation_would_drop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    code = "print(sys.flags.isolated, sys.flags.utf8_mode, sys.dont_write_bytecode, sys.pycache_prefix, *sys.argv)"
    done = subprocess.run(
        python_command(code, "a", "-b"), capture_output=True, text=True, check=True
    )
    expected = f"1 {sys.flags.utf8_mode} True {tmp_path} -c a -b"
    assert done.stdout.strip() == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals of POSIX")
def test_an_interrupt_at_the_start_of_a_process_waits() -> None:
    code = (
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
        "from onnxgrad.interpreter import ignore_interrupts\nignore_interrupts()\nprint('on')"
    )
    with interrupts_held():
        process = subprocess.Popen(
            python_command(code, package=True), stdout=subprocess.PIPE, text=True
        )
    assert process.communicate() == ("on\n", None) and process.returncode == 0


def test_a_plugin_finds_the_modules_beside_it_last(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 3\n")
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('the wrong one')\n")
    (tmp_path / "plugin.py").write_text(
        "import beside, colorsys, sys\nassert beside.VALUE == 3\nPATH = list(sys.path)\n"
    )
    before = list(sys.path)
    try:
        assert run_plugins([str(tmp_path / "plugin.py")]) == []
    finally:
        sys.modules.pop("beside", None)
    assert sys.path == before


@pytest.mark.parametrize(("given", "kept"), [(None, "1"), ("0", "0")])
def test_telemetry_is_off_unless_the_user_says_otherwise(given: str | None, kept: str) -> None:
    env = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    env |= {} if given is None else {"ORT_DISABLE_TELEMETRY": given}
    code = python_command(
        "import os; print(os.environ['ORT_DISABLE_TELEMETRY'], 'onnxruntime' in sys.modules)",
        package=True,
    )
    done = subprocess.run(code, capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split() == [kept, "False"]
