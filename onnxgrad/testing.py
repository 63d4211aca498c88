"""Registers rules for the duration of one test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onnxgrad.grad.registry import LOOKED_FOR, RULES
from onnxgrad.laws.bodies.table import BODIES
from onnxgrad.options import known_keywords
from onnxgrad.passes.base import PASSES
from onnxgrad.verify.reference.kernels import KERNELS, WHY
from onnxgrad.verify.reference.user_operators import OWN
from onnxgrad.verify.running.libraries import LIBRARIES


@known_keywords
@contextmanager
def temporary_rules() -> Iterator[None]:
    """Restores gradient rules, passes, kernels of the float64 reference and libraries of custom
    operators when the block ends.

    Registrations inside (`vjp`, `vjp_all`, `zero`, `body`, `register`, `kernel`, `custom_ops`, a
    plugin that was run) are removed and replaced ones restored, also after an error. Blocks may be
    nested. The registry belongs to the process, so threads must not register at the same time. As
    a fixture for every test::

        @pytest.fixture(autouse=True)
        def rules_of_one_test():
            with onnxgrad.temporary_rules():
                yield
    """
    tables: list[dict[Any, Any]] = [RULES, LOOKED_FOR, BODIES, PASSES, KERNELS, WHY, OWN, LIBRARIES]
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, known in zip(tables, before, strict=True):
            table.clear()
            table.update(known)
