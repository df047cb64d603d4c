"""Kernels in Triton's language; :mod:`abslrp.propagation.kernels` says what they compute and calls them."""

# mypy: ignore-errors
# ruff: noqa: E501, RUF059

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _share(part, h, eps, AGREE: tl.constexpr):
    """part⁺ / (|h| + ε), of what agrees with h's sign where so told."""
    if AGREE:
        part = tl.where(h < 0, -part, part)
    return tl.maximum(part, 0.0) / (tl.abs(h) + eps)


@triton.jit
def _terms(
    a, b, c, d, e, base, segment, offset, inside, inner, eps, first, second,
    b0, b1, b2, c0, c1, c2, d0, d1, d2, e0, e1, e2,
    KIND: tl.constexpr, AGREE: tl.constexpr, BIAS: tl.constexpr, CENTRED: tl.constexpr, WEIGHTED: tl.constexpr, GAIN: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """The factors of the results and c, at some elements of a segment."""
    x = tl.load(a + base + offset, mask=inside, other=0.0)
    if KIND == 0 or KIND == 1:
        size = tl.abs(x) + eps
        g = 1.0 / size
        handed = g
        if SUMS:
            total = tl.load(b + base + offset, mask=inside, other=0.0)
            if KIND == 1:
                signed = x
                if BIAS:
                    row = offset // inner
                    signed = x - tl.load(
                        c + segment * c0 + row * c1 + (offset - row * inner) * c2, mask=inside, other=0.0
                    )
                if AGREE:
                    signed = tl.where(x < 0, -signed, signed)
                found = signed + total
                found = tl.where(found <= total * 9.5367431640625e-07, 0.0, found)
                total = found * first
            handed = total / size
        return g, g, handed
    if KIND == 2:
        row = offset // inner
        y = tl.load(b + segment * b0 + row * b1 + (offset - row * inner) * b2, mask=inside, other=0.0)
        x = x * first
        y = y * second
        f = _share(x, x + y, eps, AGREE)
        g = _share(y, x + y, eps, AGREE)
        return f, g, f + g
    if KIND == 3:
        row = offset // inner
        column = offset - row * inner
        moved = x
        f = 1.0 + 0.0 * x
        std = tl.sqrt(tl.load(b + segment * b0 + row * b1 + column * b2, mask=inside, other=1.0) + second)
        if CENTRED:
            moved = x - tl.load(c + segment * c0 + row * c1 + column * c2, mask=inside, other=0.0)
        if WEIGHTED:
            gain = 1.0 / std
            if GAIN:
                gain = tl.load(d + segment * d0 + row * d1 + column * d2, mask=inside, other=0.0) / std
            part = moved * gain
            h = part
            if BIAS:
                h = part + tl.load(e + segment * e0 + row * e1 + column * e2, mask=inside, other=0.0)
            f = _share(part, h, eps, AGREE)
        if CENTRED:
            own = x
            if AGREE:
                own = tl.where(moved < 0, -x, x)
            f = f * (tl.maximum(own, 0.0) / (tl.abs(moved) + std * eps))
        return f, f, f
    return x, x, tl.abs(x)


@triton.jit
def sums(
    R, a, b, c, d, e, partial, length, inner, groups, per, eps, first, second,
    b0, b1, b2, c0, c1, c2, d0, d1, d2, e0, e1, e2,
    KIND: tl.constexpr, AGREE: tl.constexpr, BIAS: tl.constexpr, CENTRED: tl.constexpr, WEIGHTED: tl.constexpr, GAIN: tl.constexpr, JOINT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """ΣR⁺, ΣcR⁺, ΣR⁻, ΣcR⁻ (or Σ|R| and Σc|R|) of a part of a segment."""
    program = tl.program_id(0)
    segment = (program // groups).to(tl.int64)
    start = (program % groups) * per
    base = segment * length
    s0 = tl.zeros((), tl.float64)
    s1 = tl.zeros((), tl.float64)
    s2 = tl.zeros((), tl.float64)
    s3 = tl.zeros((), tl.float64)
    for place in range(start, start + per, BLOCK):
        offset = place + tl.arange(0, BLOCK)
        inside = offset < length
        r = tl.load(R + base + offset, mask=inside, other=0.0)
        f, g, handed = _terms(
            a, b, c, d, e, base, segment, offset, inside, inner, eps, first, second,
            b0, b1, b2, c0, c1, c2, d0, d1, d2, e0, e1, e2, KIND, AGREE, BIAS, CENTRED, WEIGHTED, GAIN, True,
        )  # fmt: skip
        given = handed * r
        if JOINT:
            s0 += tl.sum(tl.abs(r), 0).to(tl.float64)
            s1 += tl.sum(tl.where(inside, tl.abs(given), 0.0), 0).to(tl.float64)
        else:
            s0 += tl.sum(tl.maximum(r, 0.0), 0).to(tl.float64)
            s1 += tl.sum(tl.where(inside, tl.maximum(given, 0.0), 0.0), 0).to(tl.float64)
            s2 += tl.sum(tl.minimum(r, 0.0), 0).to(tl.float64)
            s3 += tl.sum(tl.where(inside, tl.minimum(given, 0.0), 0.0), 0).to(tl.float64)
    tl.store(partial + program * 4, s0)
    tl.store(partial + program * 4 + 1, s1)
    tl.store(partial + program * 4 + 2, s2)
    tl.store(partial + program * 4 + 3, s3)


@triton.jit
def _ratio(partial, begin, number: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """What was got over what is handed out, and 0 where that is nothing, or 2⁻¹⁰³ of what was got at most."""
    rows = tl.arange(0, WIDE)
    place = partial + (begin + rows) * 4 + number
    got = tl.sum(tl.load(place, mask=rows < ROWS, other=0.0), 0)
    handed = tl.sum(tl.load(place + 1, mask=rows < ROWS, other=0.0), 0)
    lost = tl.abs(handed) <= tl.maximum(tl.abs(got) * 9.860761315262648e-32, 2.2250738585072014e-308)
    return tl.where(lost, 0.0, got / tl.where(lost, 1.0, handed))


@triton.jit
def scaled(
    R, a, b, c, d, e, partial, out, other, neighbours, length, inner, groups, per, eps, first, second,
    b0, b1, b2, c0, c1, c2, d0, d1, d2, e0, e1, e2,
    KIND: tl.constexpr, AGREE: tl.constexpr, BIAS: tl.constexpr, CENTRED: tl.constexpr, WEIGHTED: tl.constexpr, GAIN: tl.constexpr, JOINT: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The results, each times k⁺ or k⁻ by the sign of R; a factor goes in as two numbers, so that rounding it shifts nothing."""
    program = tl.program_id(0)
    segment = (program // groups).to(tl.int64)
    start = (program % groups) * per
    base = segment * length
    begin = (segment // neighbours) * ROWS
    up = _ratio(partial, begin, 0, ROWS, WIDE)
    up_high = up.to(tl.float32)
    up_low = (up - up_high.to(tl.float64)).to(tl.float32)
    down_high = up_high
    down_low = up_low
    if not JOINT:
        down = _ratio(partial, begin, 2, ROWS, WIDE)
        down_high = down.to(tl.float32)
        down_low = (down - down_high.to(tl.float64)).to(tl.float32)
    for place in range(start, start + per, BLOCK):
        offset = place + tl.arange(0, BLOCK)
        inside = offset < length
        r = tl.load(R + base + offset, mask=inside, other=0.0)
        f, g, handed = _terms(
            a, b, c, d, e, base, segment, offset, inside, inner, eps, first, second,
            b0, b1, b2, c0, c1, c2, d0, d1, d2, e0, e1, e2, KIND, AGREE, BIAS, CENTRED, WEIGHTED, GAIN, False,
        )  # fmt: skip
        high = tl.where(r > 0, up_high, down_high)
        low = tl.where(r > 0, up_low, down_low)
        value = f * r
        tl.store(out + base + offset, value * high + value * low, mask=inside)
        if KIND == 2:
            value = g * r
            tl.store(other + base + offset, value * high + value * low, mask=inside)


@triton.jit
def _cleaned(total, size):
    """A sum of terms that cancel, with rounding noise and what is no number taken for 0; ``size`` is the terms' absolute sum."""
    known = (tl.abs(total) - size * 9.5367431640625e-07 > 0) & (tl.abs(total) < float("inf"))
    return tl.where(known, total, 0.0)


@triton.jit
def gelu_factor(X, H, out, length, eps, AGREE: tl.constexpr, BLOCK: tl.constexpr):
    """½ [|x| f′(|x|) + σ x f′(x)] / (|h| + ε) for f = GELU, σ = 1 unless AGREE."""
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < length
    x = tl.load(X + offset, mask=inside, other=0.0)
    h = tl.load(H + offset, mask=inside, other=0.0)
    size = tl.abs(x)
    chance = 0.5 + 0.5 * tl.erf(size * 0.7071067811865476)
    dense = size * tl.exp(size * size * -0.5) * 0.3989422804014327
    steep = (chance + dense) * size
    own = tl.where(x < 0, (1.0 - chance - dense) * x, steep)
    if AGREE:
        own = tl.where(h < 0, -own, own)
    found = _cleaned(steep + own, tl.abs(steep) + tl.abs(own))
    tl.store(out + offset, 0.5 * found / (tl.abs(h) + eps), mask=inside)


@triton.jit
def softmax_factor(X, H, out, width, eps, MASKED: tl.constexpr, WIDE: tl.constexpr):
    """½ (x h + |x| hₐ) / (h + ε) of a row, hₐ = softmax(|x|); masked places take no part."""
    offset = tl.arange(0, WIDE)
    place = tl.program_id(0).to(tl.int64) * width + offset
    inside = offset < width
    h = tl.load(H + place, mask=inside, other=0.0)
    x = tl.load(X + place, mask=inside, other=0.0)
    seen = h >= MASKED
    x = tl.where(seen, x, 0.0)
    size = tl.abs(x)
    most = tl.max(size, 0)
    weight = tl.where(seen, tl.exp(size - most), 0.0)
    other = weight / tl.sum(weight, 0) * size
    own = x * h
    found = 0.5 * _cleaned(own + other, tl.abs(own) + other) / (h + eps)
    tl.store(out + place, tl.where(seen, found, 0.0), mask=inside)


@triton.jit
def chosen(X, A, B, out, length, width, a_row, b_row, BLOCK: tl.constexpr):
    """x · a where x > 0, x · b elsewhere; rows of a and b may lie apart."""
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < length
    x = tl.load(X + offset, mask=inside, other=0.0)
    row = offset // width
    column = offset - row * width
    above = tl.load(A + row * a_row + column, mask=inside & (x > 0), other=0.0)
    below = tl.load(B + row * b_row + column, mask=inside & (x < 0), other=0.0)
    tl.store(out + offset, x * (above + below), mask=inside)


@triton.jit
def halves(X, A, B, length, BLOCK: tl.constexpr):
    """a ← ½ (a |x| + b x)."""
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < length
    x = tl.load(X + offset, mask=inside, other=0.0)
    a = tl.load(A + offset, mask=inside, other=0.0)
    b = tl.load(B + offset, mask=inside, other=0.0)
    tl.store(A + offset, 0.5 * (a * tl.abs(x) + b * x), mask=inside)
