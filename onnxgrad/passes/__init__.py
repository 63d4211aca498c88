"""The passes: those that list rewrite rules in `rule_passes.py` and `parallel.py`, every other in a
file called as the pass. Every module of this package is imported, and registers its passes.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
