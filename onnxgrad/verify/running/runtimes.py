"""Other runtimes: the onnxruntime of another Python, and providers that an onnxruntime offers.

The program of a child (`child_main.py`) is sent to the other interpreter as text. There it needs
onnxruntime and numpy alone.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.named_options import split
from onnxgrad.vocabulary import PROVIDERS

_PACKAGE = Path(__file__).resolve().parents[2]
_MODULES = (
    "onnxgrad.interpreter",
    "onnxgrad.verify.running.wire",
    "onnxgrad.verify.running.results_in_files",
    "onnxgrad.verify.running.child_sessions",
    "onnxgrad.verify.running.child_main",
)
_PROVIDER = "ExecutionProvider"
_BEHIND = re.compile(rf":(?=\w+{_PROVIDER}\b)")
_OLDEST = (3, 10)


@frozen
class Runtime:
    """A provider of the onnxruntime of a Python. `python`: the interpreter's path; empty for this
    one. `options`: those of the provider.
    """

    python: str = ""
    provider: str = PROVIDERS["cpu"]
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, text: str) -> Runtime:
        """Returns the runtime of PYTHON, PROVIDER{option=value} or PYTHON:PROVIDER{option=value}.
        Raises InputError for text of another form, and if the interpreter does not exist.
        """
        python, provider, options = cls.parts(text)
        return cls(_interpreter(python) if python else "", provider, options)

    @staticmethod
    def parts(text: str) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """Returns the interpreter, the provider and its options, as the text has them."""
        name = text.partition("{")[0]
        behind = _BEHIND.search(text)
        if behind is not None:
            python, rest = text[: behind.start()], text[behind.end() :]
        elif name.endswith(_PROVIDER) and os.sep not in name:
            python, rest = "", text
        else:
            return text, PROVIDERS["cpu"], ()
        found = list(split(rest, "runtime"))
        if len(found) != 1:
            raise InputError(f"cannot read the runtime '{text}': it must name one provider")
        provider, given = found[0]
        pairs = [p.partition("=") for p in re.split(r"[,;]", given or "") if p.strip()]
        return python, provider, tuple((name.strip(), value.strip()) for name, _, value in pairs)

    @property
    def kind(self) -> str:
        """The kind of child that runs it."""
        return f"{OTHER}{self.python}\0{self.provider}"


OTHER = "runtime\0"  # the kinds of children that run other runtimes begin with it


def programs(texts: Iterable[str]) -> list[str]:
    """Returns the interpreters among runtimes: programs that would be started."""
    return [python for text in texts if (python := Runtime.parts(text)[0])]


def _interpreter(python: str) -> str:
    """Returns the absolute path of an interpreter. Raises InputError. Links stay: that of a virtual
    environment names the environment.
    """
    found = shutil.which(python) if os.sep not in python else python
    if found is None or not os.path.isfile(found) or not os.access(found, os.X_OK):
        raise InputError(f"{python}: no such interpreter (the path of a Python, or a provider)")
    return os.path.abspath(found)


def command_of(kind: str, pipe: str) -> tuple[list[str], bytes]:
    """Returns the command line that starts the other interpreter, and the program that it reads
    first from stdin.
    """
    python = kind.removeprefix(OTHER).partition("\0")[0]
    sent = _program()
    first = f"import sys; exec(sys.stdin.buffer.read({len(sent)}))"
    return [python, "-I", "-c", first, "runtime", pipe], sent


@functools.cache
def _program() -> bytes:
    """Returns the program of a child with all its modules, as one text."""
    sources = {
        name: (_PACKAGE.parent / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
        for name in _MODULES
    }
    return f"""
if sys.version_info < {_OLDEST}:
    sys.exit("Python " + ".".join(map(str, sys.version_info[:2])) + " is too old: 3.10 is needed")
import gc
gc.disable()  # imports leave no garbage; `main` enables it
from types import ModuleType
for name in ("onnxgrad", "onnxgrad.verify", "onnxgrad.verify.running"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = []
for name, source in {sources!a}.items():
    module = sys.modules[name] = ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main()
""".encode()
