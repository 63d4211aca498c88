"""Writes the .pyi of onnxgrad/functions.py, surgery.py, training.py and plugins/functions.py, which
describe for editors and mypy the functions whose keywords come from declarations, and of the two
packages whose names plug-ins add to.

    python scripts/make_stubs.py

Run it again when an option changes; tests/test_functions.py compares.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import onnxgrad
from onnxgrad import functions, surgery, train, training
from onnxgrad.extensions import built_in
from onnxgrad.jobs import declarations, gradient_declarations, kinds, row_declarations
from onnxgrad.jobs.surgery import declarations as surgery_declarations
from onnxgrad.jobs.training import declarations as training_declarations
from onnxgrad.jobs.training import step_declarations
from onnxgrad.plugins import functions as plugins
from onnxgrad.plugins.place import declaration as place_declaration

PACKAGES = {onnxgrad: "names", train: "train"}  # the group of plug-ins that adds names
MODULES = (functions, surgery, training, plugins, *PACKAGES)
_BUILT_IN = "built_in('train')"
STUBS = {m: Path(str(m.__file__)).with_suffix(".pyi") for m in MODULES}
# what an overload without a report, a file or a second model accepts, and the one with it
FILE = "str | os.PathLike[str] | bytes | IO[bytes]"
SWITCHES = {
    **dict.fromkeys(
        ("OptimizedModel", "ReducedModel", "Fitted", "PlacedModel"),
        ("report", "Literal[False]", "Literal[True]"),
    ),
    "Lifted": ("lift", "Literal[False]", "Literal[True] | Names"),
    "None": ("path", "None", "str | os.PathLike[str]"),
}
EXTRA = {
    **{name: f"from typing import {name}" for name in ("IO", "Any", "Literal", "overload")},
    "os": "import os",
    "ModelProto": "from onnx import ModelProto",
    "M": "from onnxgrad.ir.load import M",
}
HEAD = '''"""Made by scripts/make_stubs.py from the declarations of onnxgrad.jobs."""

# fmt: off
# ruff: noqa: I001
'''


def declared_functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Returns the functions of a module whose keywords come from a declaration, and its classes."""
    everything = vars(module).items()
    own = {n: f for n, f in everything if getattr(f, "__module__", "") == module.__name__}
    return {n: f for n, f in own.items() if isinstance(f, type) or hasattr(f, "__wrapped__")}


def stub(found: dict[str, Callable[..., Any]], *modules: ModuleType) -> str:
    """Returns the text of a stub; names in annotations are imported as `modules` import them."""
    lines = [_class(f) if isinstance(f, type) else _function(n, f) for n, f in found.items()]
    text = re.sub("'[^'\\n]*'", "''", "\n".join(lines))  # the words of Literal are no names
    used = dict.fromkeys(re.findall(r"\b[A-Z_a-z]\w*\b", text))
    known = EXTRA | {k: v for module in modules for k, v in _imports(module).items()}
    imports = sorted({known[n] for n in used if n in known and n not in found})
    return HEAD + "\n".join(imports) + "\n\n" + "\n".join(lines) + "\n"


def _function(name: str, function: Callable[..., Any]) -> str:
    """A function; an overload for each type that it returns, if it returns the type of a model."""
    signature = inspect.signature(function)
    first, *others = str(signature.return_annotation).split(" | ")
    if first != "SameType":
        return f"def {name}{_signature(signature)}: ..."
    model = next(n for n, p in signature.parameters.items() if p.annotation == "ModelLike")
    off = {SWITCHES[t][0]: SWITCHES[t][1] for t in others}
    files = {"original": f"{FILE} | None"} if "original" in signature.parameters else {}
    overloads = [
        _signature(signature, "ModelProto", off | files | {model: FILE}),
        _signature(signature, "M", off | {model: "M"}),
    ]
    for returned in others:
        switch, _, on = SWITCHES[returned]
        off.pop(switch)  # the last of several that are on decides
        overloads.append(_signature(signature, returned, off | {switch: on}, required=switch))
    overloads.append(_signature(signature, "Any"))  # other libraries' models, switches in variables
    return "\n".join(f"@overload\ndef {name}{o}: ..." for o in overloads)


def _class(cls: type) -> str:
    """A class with its methods whose keywords come from a declaration."""
    methods = [_function(n, f) for n, f in vars(cls).items() if hasattr(f, "__wrapped__")]
    bases = ", ".join(base.__name__ for base in cls.__bases__)
    return f"class {cls.__name__}({bases}):\n{textwrap.indent(chr(10).join(methods), '    ')}"


def _signature(
    signature: inspect.Signature,
    returned: str = "",
    changed: Mapping[str, str] = MappingProxyType({}),
    required: str = "",
) -> str:
    """The text of a signature, with another result and other annotations for some parameters."""
    parts = list[str]()
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = p.empty if p.default is p.empty or p.name == required else _Text(repr(p.default))
        annotation = changed.get(p.name, p.annotation)
        annotation = p.empty if annotation is p.empty else _Text(annotation)
        parts.append(str(p.replace(default=default, annotation=annotation)))
    lines = ",\n    ".join(parts)
    return f"(\n    {lines},\n) -> {returned or signature.return_annotation}"


class _Text(str):
    """Returns the source text of an annotation or a default."""

    def __repr__(self) -> str:
        return str(self)


def _imports(module: ModuleType) -> dict[str, str]:
    """Returns the import statement for each name that a module imports or defines."""
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    found: dict[str, str] = {}
    body = ast.parse(source).body
    for node in [*body, *(inner for n in body if isinstance(n, ast.If) for inner in n.body)]:
        if isinstance(node, ast.Import):
            found |= {a.name: f"import {a.name}" for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            found |= {a.name: f"from {node.module} import {a.name}" for a in node.names}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, f"from {module.__name__} import {node.target.id}")
        elif isinstance(node, ast.ClassDef):
            found.setdefault(node.name, f"from {module.__name__} import {node.name}")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            found.setdefault(name, f"from {module.__name__} import {name}")
    return found


def _package(module: ModuleType) -> Iterator[str]:
    """Yields the public imports of a package, those for types included, and the plug-ins' names."""
    for node in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If):
            yield from map(ast.unparse, node.body)
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("onnxgrad.train"):
            yield ast.unparse(node)
        elif isinstance(node, ast.Assign | ast.AugAssign) and "__all__" in ast.unparse(node):
            yield ast.unparse(node).replace(_BUILT_IN, str([*built_in(PACKAGES[module])]))
    for name, place in built_in(PACKAGES[module]).items():
        yield "from {} import {} as {name}".format(*place.split(":"), name=name)


def text(module: ModuleType = functions) -> str:
    """Returns the up-to-date stub of a module."""
    if module in PACKAGES:
        return HEAD + "\n".join(_package(module)) + "\n"
    jobs = (declarations, gradient_declarations, row_declarations, surgery_declarations)
    jobs += (place_declaration,)
    return stub(
        declared_functions(module), kinds, *jobs, step_declarations, training_declarations, module
    )


if __name__ == "__main__":
    for made, path in STUBS.items():
        path.write_text(text(made), encoding="utf-8")
        print(f"wrote {path}")
