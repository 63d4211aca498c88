"""Better and differentiated ONNX files, proved by running them in onnxruntime.

`onnxgrad help` in a shell (or `python -m onnxgrad help`) lists the topics of the documentation, and
`onnxgrad help TOPIC` prints one. `help(onnxgrad.optimize)` shows a function with an example;
`gradient`, `verify`, `training_step`, `rewrite` and `vjp` are good to read next.

The public names are in `surface`, which takes a quarter of a second to import. It is imported when
the first name is used (PEP 562), so that `import onnxgrad` and `onnxgrad --help` are quick.
"""

from onnxgrad import startup as _startup  # noqa: F401  # first: the other imports are slow

# isort: split
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxgrad.surface import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name not in ("__all__", "__version__"):
        raise AttributeError(name)  # Python and its tools look these up on every module
    surface = import_module("onnxgrad.surface")
    extensions = import_module("onnxgrad.extensions")
    globals().update({public: getattr(surface, public) for public in surface.__all__})
    globals()["__all__"] = sorted([*surface.__all__, *extensions.built_in("names")])
    if name not in globals():
        globals()[name] = extensions.attribute("names", __name__, name)
    return globals()[name]


def __dir__() -> list[str]:
    return list(__getattr__("__all__"))


class _Package(ModuleType):
    """Keeps the functions `rewrite` and `verify` when the subpackages of these names are
    imported.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in ("rewrite", "verify") and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
