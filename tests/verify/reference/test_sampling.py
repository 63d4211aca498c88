"""The reference's GridSample and DeformConv against onnxruntime's."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.verify.reference.test_kernels import agrees


@pytest.mark.parametrize(
    ("mode", "padding", "aligned"),
    [*product(["linear", "nearest"], ["zeros", "border", "reflection"], [0, 1])],
)
def test_volumes(mode: str, padding: str, aligned: int) -> None:
    grid = np.random.default_rng(0).uniform(-2.3, 2.3, (2, 3, 4, 2, 3)).astype(np.float32)
    agrees(
        f"""g (float[2,3,4,5,6] x, float[2,3,4,2,3] g) => (float[2,3,3,4,2] y) {{
              y = GridSample <mode = "{mode}", padding_mode = "{padding}", align_corners = {aligned}> (x, g) }}""",
        g=grid,
    )


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_nearest_halfway_and_at_pixels(padding: str) -> None:
    ticks = np.arange(-2, 2.01, 0.125, dtype=np.float32)
    grid = np.stack(np.meshgrid(ticks, ticks), axis=-1)[None]
    agrees(
        f"""g (float[1,2,4,8] x, float[1,33,33,2] g) => (float[1,2,33,33] y) {{
              y = GridSample <mode = "nearest", padding_mode = "{padding}"> (x, g) }}""",
        g=grid,
    )


@pytest.mark.parametrize("rest", ["", ", b", ", , m", ", b, m"])
def test_deform_conv(rest: str) -> None:
    agrees(
        f"""g (float[2,4,5,6] x, float[6,2,3,2] w, float[2,24,3,4] o, float[6] b, float[2,12,3,4] m)
              => (float[2,6,3,4] y, float[6] c, float[2,12,3,4] n) {{
              y = DeformConv <group = 2, offset_group = 2, strides = [2, 1], dilations = [1, 2], pads = [1, 0, 1, 0]>
                (x, w, o{rest})
              c = Identity(b)
              n = Identity(m) }}"""
    )
