"""What argparse makes of the words of an option, and complains of."""

from __future__ import annotations

import argparse

from onnxgrad.errors import InputError
from onnxgrad.limits import MOST_SECONDS, read_size
from onnxgrad.options import providers_of
from onnxgrad.vocabulary import MOST_THREADS

# of a number on the command line: Python refuses to read those of thousands, int64 those of 20
DIGITS = 18


def natural(text: str) -> int:
    """For argparse: 0, 1, 2, ..."""
    if not text.isdecimal() or len(text) > DIGITS:
        raise argparse.ArgumentTypeError(
            f"a whole number of at most {DIGITS} digits is wanted, not {text[:40]!r}"
        )
    return int(text)


def providers(text: str) -> str:
    """For argparse: one of the providers, or several with commas between them."""
    try:
        return ",".join(providers_of(text))
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def threads(text: str) -> int:
    """For argparse: of onnxruntime."""
    count = natural(text)
    if not 1 <= count <= MOST_THREADS:
        raise argparse.ArgumentTypeError(
            f"a number from 1 to {MOST_THREADS} is wanted, not {count}"
        )
    return count


def positive(text: str) -> float:
    """For argparse: a positive number."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"a positive number is wanted, not {text[:40]!r}")
    return value


def memory(text: str) -> int:
    """For argparse: a size in bytes, such as 512MiB."""
    try:
        return read_size(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive_count(text: str) -> int:
    """For argparse: 1, 2, 3, ..."""
    if not text.isdecimal() or len(text) > DIGITS or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on is wanted, not {text[:40]!r}")
    return int(text)
