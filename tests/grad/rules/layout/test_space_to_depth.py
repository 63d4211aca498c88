"""SpaceToDepth and DepthToSpace against central differences."""

from __future__ import annotations

from tests.grad.numeric import check_op, normal


def test_space_and_depth() -> None:
    check_op("y = SpaceToDepth <blocksize = 2> (x)", {"x": normal(1, 3, 4, 6)})
    for mode in ("DCR", "CRD"):
        check_op(
            f'y = DepthToSpace <blocksize = 2, mode = "{mode}"> (x)', {"x": normal(2, 8, 3, 2)}
        )
