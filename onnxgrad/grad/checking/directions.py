"""Several directions at once, in CasADi's layout: of three, two are noise, and the one between them
is what is checked.
"""

from __future__ import annotations

import numpy as np

from onnxgrad.grad.checking.vectors import Flat


def side_by_side(v: Flat) -> Flat:
    """The matrix of three directions, v in their middle: [rows, 3 columns] of a matrix [rows,
    columns], [elements, 3] of all else.
    """
    one = v if v.ndim == 2 else v.reshape(-1, 1)
    first, last = np.random.default_rng(1).standard_normal((2, *one.shape))
    return np.concatenate([first, one, last], axis=1)


def middle(matrix: Flat, shape: tuple[int, ...]) -> Flat:
    """The direction in the middle, in its shape."""
    columns = matrix.shape[1] // 3
    return matrix[:, columns : 2 * columns].reshape(shape)
