"""NonMaxSuppression: onnx.reference wants numbers in vectors, where onnxruntime takes scalars."""

from __future__ import annotations

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, kernel


@kernel("NonMaxSuppression", why="wrong")
def non_max_suppression(
    call: Call,
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    overlap: Array | None = None,
    least: Array | None = None,
) -> Array:
    """boxes (N, B, 4), scores (N, C, B), numbers () or (1,) -> (selected, 3): batch, class, box. Of
    equal scores the first box goes first.
    """
    limit, threshold = int(_number(most)), _number(overlap)
    corners = _corners(boxes, centred=bool(call["center_point_box"]))
    found: list[tuple[int, int, int]] = []
    for n, c in np.ndindex(*scores.shape[:2]):
        left = np.argsort(-scores[n, c], kind="stable")
        if least is not None:
            left = left[scores[n, c, left] > _number(least)]
        for _ in range(limit):
            if not left.size:
                break
            first, rest = left[0], left[1:]
            found.append((n, c, int(first)))
            left = rest[~(_overlaps(corners[n, first], corners[n, rest]) > threshold)]
    return np.array(found, np.int64).reshape(-1, 3)


def _number(value: Array | None) -> float:
    return 0.0 if value is None else float(np.asarray(value).reshape(-1)[0])


def _corners(boxes: Array, *, centred: bool) -> Array:
    """(N, B, 4) as (low, low, high, high)."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if centred:
        first, second = first - second / 2, first + second / 2
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


def _overlaps(box: Array, others: Array) -> Array:
    """Intersection over union with each of others (B, 4); 0 for boxes without area."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.where((sides > 0).all(axis=1), sides.prod(axis=1), 0.0)
    area, areas = (box[2:] - box[:2]).prod(), (others[:, 2:] - others[:, :2]).prod(axis=1)
    solid = (area > 0) & (areas > 0)
    return np.where(solid, shared / np.where(solid, area + areas - shared, 1.0), 0.0)
