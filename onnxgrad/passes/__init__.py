"""The passes: tables of rewrite rules in `rule_passes.py`, every other in a file named as the pass;
presets, and the pipeline that runs them. Every module of this package is imported, and registers
its passes.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
