# SPDX-License-Identifier: Apache-2.0
"""Strided views that an op must read in place or copy, and never misread."""

from __future__ import annotations

from hypothesis import strategies as st

from .checks import randn, tensors

# Each makes a view out of n(*shape), which gives a contiguous tensor of random numbers.
LAYOUTS = {
    "transposed": lambda n: n(96, 7).t(),
    "every second column": lambda n: n(5, 192)[..., ::2],
    "last dim dropped": lambda n: n(2, 3, 4, 96, 5)[..., 0],
    "slice of a fused qkv": lambda n: n(5, 3 * 96)[:, 96:192],
    "every second row": lambda n: n(4, 64, 96)[:, ::2, :],
    "permuted outer dims": lambda n: n(3, 5, 4, 96).permute(2, 0, 1, 3),
    "permuted into the rows": lambda n: n(3, 96, 5).permute(0, 2, 1),
    "expanded rows": lambda n: n(1, 96).expand(6, 96),
    "expanded in the middle": lambda n: n(3, 1, 96).expand(3, 4, 96),
    "expanded columns": lambda n: n(6, 1).expand(6, 96),
    "overlapping rows": lambda n: n(2000).as_strided((9, 96), (7, 1)),
    "size 1 with an odd stride": lambda n: n(4, 700).as_strided((4, 1, 96), (700, 13, 1)),
    "one dimension": lambda n: n(96),
    "one column, strided": lambda n: n(6, 9)[:, 4:5],
    "six dimensions": lambda n: n(2, 1, 3, 1, 2, 96)[:, :, ::2],
    "odd row stride": lambda n: n(5, 97)[:, 1:],
}
GRAD_LAYOUTS = {
    "transposed": lambda n: n(264, 9).t(),
    "every second column": lambda n: n(9, 528)[:, ::2],
    "slice of a fused qkv": lambda n: n(9, 3 * 264)[:, 264:528],
    "every second row": lambda n: n(2, 6, 264)[:, ::2],
    "expanded rows": lambda n: n(1, 264).expand(9, 264),
    "misaligned": lambda n: n(9 * 264 + 3)[3:].view(9, 264),
    "one dimension": lambda n: n(264),
}
OPCHECK_LAYOUTS = {
    "contiguous": lambda n: n(6, 40),
    "transposed": lambda n: n(40, 6).t(),
    "sliced": lambda n: n(6, 120)[:, 40:80],
    "every second row": lambda n: n(2, 6, 40)[:, ::2],
    "expanded": lambda n: n(1, 40).expand(6, 40),
    "misaligned": lambda n: n(6 * 40 + 1)[1:].view(6, 40),
    "one dimension": lambda n: n(40),
    "no rows": lambda n: n(0, 40),
    "no columns": lambda n: n(3, 0),
}


def views(layout, count, device, dtype):
    """`count` tensors of one layout, all different."""
    return [layout(lambda *s, seed=i: randn(*s, dtype=dtype, device=device, seed=seed)) for i in range(count)]


def draw_shape(draw):
    """Up to three outer dimensions and a row, for hypothesis."""
    return [*draw(st.lists(st.integers(1, 5), max_size=3)), draw(st.integers(1, 300))]


def draw_views(draw, shape, count, device, dtype):
    """`count` tensors of this shape, each the same view of a buffer of its own: any order, steps and lead."""
    order = draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else list(range(len(shape)))
    steps = [draw(st.sampled_from((1, 1, 2, 3))) for _ in shape]
    lead = draw(st.integers(0, 9))
    storage = [shape[i] * steps[i] for i in order]
    strides, size = [0] * len(shape), 1
    for i, extent in zip(reversed(order), reversed(storage), strict=True):
        strides[i], size = size * steps[i], size * extent
    buffers = tensors(device, dtype, *[size + lead] * count)
    return [buffer.as_strided(shape, strides, lead) for buffer in buffers]
