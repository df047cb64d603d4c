"""What :mod:`abslrp.inputs.imputation` does on a grid, each step in one kernel; used on CUDA where Triton is installed.

Values are (planes, height, width), ties and what pixels cost are shared by ``channels`` planes in a row. ``KIND`` tells what
a grid is applied to: 0 the values as they are, 1 a damped step from them, 2 that step with what the blocks found.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _value(V, OWN, FAR, base, ties, far, y, x, height, width, half, inside, damped, farther, KIND: tl.constexpr):
    """What the grid is applied to, at a place that may lie outside."""
    good = inside & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    place = y * width + x
    v = tl.load(V + base + place, mask=good, other=0.0)
    if KIND > 0:
        own = tl.load(OWN + ties + place, mask=good, other=0.0)
        v = tl.where(own > 1e-6, damped * v / tl.where(own > 1e-6, own, 1.0), 0.0)
    if KIND == 2:
        v += farther * tl.load(FAR + far + (y // 2) * half + x // 2, mask=good, other=0.0)
    return v


@triton.jit
def _tie(TIE, ties, y, x, height, width, inside):
    good = inside & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    return tl.load(TIE + ties + y * width + x, mask=good, other=0.0)


@triton.jit
def _applied(
    V, OWN, RIGHT, BELOW, FALLING, RISING, FAR,
    base, ties, far, y, x, height, width, half, inside, damped, farther, KIND: tl.constexpr,
):  # fmt: skip
    """(A v) at a place."""
    found = _tie(OWN, ties, y, x, height, width, inside) * _value(
        V, OWN, FAR, base, ties, far, y, x, height, width, half, inside, damped, farther, KIND
    )
    for way in tl.static_range(4):
        # A tie is kept where it begins: to the right, below, below to the right, below to the left.
        down = 0 if way == 0 else 1
        aside = 0 if way == 1 else (-1 if way == 3 else 1)
        TIE = RIGHT if way == 0 else (BELOW if way == 1 else (FALLING if way == 2 else RISING))
        found -= _tie(TIE, ties, y, x, height, width, inside) * _value(
            V, OWN, FAR, base, ties, far, y + down, x + aside, height, width, half, inside, damped, farther, KIND
        )
        found -= _tie(TIE, ties, y - down, x - aside, height, width, inside) * _value(
            V, OWN, FAR, base, ties, far, y - down, x - aside, height, width, half, inside, damped, farther, KIND
        )
    return found


@triton.jit
def times(V, OWN, RIGHT, BELOW, FALLING, RISING, OUT, total, height, width, channels, BLOCK: tl.constexpr):
    """OUT = A v."""
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < total
    size = height * width
    plane = offset // size
    place = offset - plane * size
    y = place // width
    found = _applied(
        V, OWN, RIGHT, BELOW, FALLING, RISING, V,
        plane * size, plane // channels * size, 0, y, place - y * width, height, width, 1, inside, 1.0, 1.0, 0,
    )  # fmt: skip
    tl.store(OUT + offset, found, mask=inside)


@triton.jit
def left(
    W,
    OWN,
    RIGHT,
    BELOW,
    FALLING,
    RISING,
    OUT,
    total,
    height,
    width,
    half_height,
    half,
    channels,
    damped,
    BLOCK: tl.constexpr,
):
    """OUT = what a damped step leaves of w, summed over blocks of 2 × 2."""
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < total
    plane = offset // (half_height * half)
    block = offset - plane * (half_height * half)
    size = height * width
    base, ties = plane * size, plane // channels * size
    found = tl.zeros((BLOCK,), tl.float32)
    for quarter in tl.static_range(4):
        y = block // half * 2 + quarter // 2
        x = block % half * 2 + quarter % 2
        here = inside & (y < height) & (x < width)
        wanted = tl.load(W + base + y * width + x, mask=here, other=0.0)
        found += wanted - _applied(
            W, OWN, RIGHT, BELOW, FALLING, RISING, W,
            base, ties, 0, y, x, height, width, half, here, damped, 1.0, 1,
        )  # fmt: skip
    tl.store(OUT + offset, found, mask=inside)


@triton.jit
def back(
    W, OWN, RIGHT, BELOW, FALLING, RISING, FAR, OUT, total, height, width, half_height, half, channels, damped, farther,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """OUT = the damped step, what the blocks found, and a damped step from there."""
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < total
    size = height * width
    plane = offset // size
    place = offset - plane * size
    y = place // width
    x = place - y * width
    base, ties, far = plane * size, plane // channels * size, plane * (half_height * half)
    found = _value(W, OWN, FAR, base, ties, far, y, x, height, width, half, inside, damped, farther, 2)
    wanted = tl.load(W + offset, mask=inside, other=0.0) - _applied(
        W, OWN, RIGHT, BELOW, FALLING, RISING, FAR,
        base, ties, far, y, x, height, width, half, inside, damped, farther, 2,
    )  # fmt: skip
    own = _tie(OWN, ties, y, x, height, width, inside)
    found += tl.where(own > 1e-6, damped * wanted / tl.where(own > 1e-6, own, 1.0), 0.0)
    tl.store(OUT + offset, found, mask=inside)
