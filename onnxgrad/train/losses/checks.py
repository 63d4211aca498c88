"""What a loss's options may be: one line for what they may not."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.errors import InputError

# an option that is numbers per class or element: one number, lists of them, an array; None: all 1
Numbers = Any
_LARGEST = float(np.finfo(np.float32).max)


def check_choice(loss: str, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise InputError for a word that is none of those allowed."""
    if value not in allowed:
        raise InputError(f"{loss}: {name} must be one of {', '.join(allowed)}, not {value!r}")


def check_flag(loss: str, **flags: Any) -> None:
    """Raise InputError for what is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InputError(f"{loss}: {name} must be true or false, not {value!r}")


def check_finite(loss: str, **numbers: Any) -> None:
    """Raise InputError for what is no finite number (of float32, in which most models compute)."""
    for name, value in numbers.items():
        is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not is_number or not abs(value) <= _LARGEST:
            raise InputError(f"{loss}: {name} must be a finite number, not {value!r}")


def check_within(loss: str, low: float, high: float, **numbers: Any) -> None:
    """Raise InputError for what is no number from `low` to `high`."""
    check_finite(loss, **numbers)
    for name, value in numbers.items():
        if not low <= value <= high:
            raise InputError(f"{loss}: {name} must be from {low:g} to {high:g}, not {value!r}")


def check_positive(loss: str, **numbers: Any) -> None:
    """Raise InputError for what is no finite number above 0."""
    check_finite(loss, **numbers)
    for name, value in numbers.items():
        if value <= 0:
            raise InputError(f"{loss}: {name} must be above 0, not {value!r}")


def check_numbers(loss: str, **arrays: Numbers) -> None:
    """Raise InputError for arrays with something in them that is no finite number."""
    for name, value in arrays.items():
        try:
            fine = value is None or bool((np.abs(np.asarray(value, np.float64)) <= _LARGEST).all())
        except (TypeError, ValueError):
            fine = False
        if not fine:
            raise InputError(f"{loss}: {name} must be finite numbers, not {value!r}")


def check_integer(loss: str, **numbers: Any) -> None:
    """Raise InputError for what is no integer of 32 bits: labels may be of either width."""
    for name, value in numbers.items():
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or not -(1 << 31) <= value < 1 << 31:
            raise InputError(f"{loss}: {name} must be an integer of 32 bits, not {value!r}")
