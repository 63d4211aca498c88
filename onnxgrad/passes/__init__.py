"""The passes: tables of rewrite rules in `rule_passes.py` and `combine_parallel.py`, every other
pass in a file of its name, presets, and the pipeline that runs them. Importing the package imports
every module, which registers its passes.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
