"""Charts of a comparison as inline SVG. Colours come from the page's style, by class, so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from markupsafe import Markup, escape

Kind = Literal["best", "tied", "other", "control"]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""

_LETTER = 6.1  # The mean width of a letter at the charts' size of 11, a little generous.
_LONGEST_NAME = 24
_LINE = 13.0
_ANGLES = tuple(math.radians(degrees) for degrees in (0, 180, 45, -45, 135, -135, 20, -20, 160, -160, 90, -90, 70, -70))
_REACHES = (9, 14, 21, 30, 41, 54, 69, 86, 105)


@dataclass(frozen=True)
class Bar:
    """A method in a bar chart: its mean, the interval around it, how it stands, and the paper's number if there is one."""

    name: str
    mean: float
    low: float
    high: float
    kind: Kind = "other"
    starred: bool = False
    published: float | None = None


@dataclass(frozen=True)
class Point:
    """A method in a scatter plot."""

    name: str
    x: float
    y: float
    kind: Kind = "other"


@dataclass(frozen=True)
class Line:
    """A curve, evenly spaced from left to right; ``style`` is the class that colours it."""

    name: str
    values: Sequence[float]
    style: str


def bars(rows: Sequence[Bar], label: str, *, width: int = 360, step: int = 21) -> Markup:
    """Horizontal bars from zero in the order given, each with its interval; a diamond marks the published number.

    >>> chart = bars([Bar("abslrp", 0.32, 0.30, 0.34, "best", published=0.272)], "GAE")
    >>> 'data-mean="0.32"' in chart and 'class="published"' in chart
    True
    """
    longest = max((len(short(row.name)) for row in rows), default=0)
    # Names of the best stand in bold, which is wider.
    left, right, top = longest * _LETTER * 1.2 + 12, width - 48.0, 6.0
    bottom = top + step * len(rows)
    known = [value for row in rows for value in (row.low, row.high, row.mean, row.published) if value is not None]
    low, high = min([0.0, *known]), max([0.0, *known])
    marks = ticks(low, high, 4)
    low, high = min(low, marks[0]), max(high, marks[-1])
    scale = _Scale(low, high, left, right)
    parts = [_upright(scale(mark), top, bottom, "zero" if mark == 0 else "grid") for mark in marks]
    parts += [_text(scale(mark), bottom + 14, number(mark, marks), "tick", "middle") for mark in marks]
    for place, row in enumerate(rows):
        parts.append(_bar(row, scale, top + step * (place + 0.5), step, width))
    return _svg(width, bottom + 22, label, parts)


def scatter(
    points: Sequence[Point],
    label: str,
    axes: tuple[str, str],
    *,
    width: int = 960,
    height: int = 520,
    products: Sequence[float] = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7),
) -> Markup:
    """Points with their names, placed so that they do not cover each other, over faint curves of equal product x · y.

    >>> chart = scatter([Point("a", 0.4, 0.7, "best"), Point("b", 0.1, 0.2)], "LC and C", ("LC", "C"))
    >>> chart.count("<circle")
    2
    """
    highs = (max([0.1, *(point.x for point in points)]) * 1.08, max([0.1, *(point.y for point in points)]) * 1.08)
    lows = (min([0.0, *(point.x for point in points)]), min([0.0, *(point.y for point in points)]))
    left, right, top, bottom = 44.0, width - 12.0, 12.0, height - 42.0
    across, up = _Scale(lows[0], highs[0], left, right), _Scale(lows[1], highs[1], bottom, top)
    marks = [[mark for mark in ticks(low, high, 5) if mark <= high] for low, high in zip(lows, highs, strict=True)]
    parts = [_upright(across(mark), top, bottom, "grid") for mark in marks[0]]
    parts += [_tag("line", x1=left, x2=right, y1=up(mark), y2=up(mark), class_="grid") for mark in marks[1]]
    parts += [_text(across(mark), bottom + 15, number(mark, marks[0]), "tick", "middle") for mark in marks[0]]
    parts += [_text(left - 6, up(mark) + 4, number(mark, marks[1]), "tick", "end") for mark in marks[1]]
    parts += [part for product in products for part in _product(product, across, up, highs)]
    parts.append(_text((left + right) / 2, height - 6, f"{axes[0]} →", "axis", "middle"))
    turn = f"rotate(-90 11 {(top + bottom) / 2:.0f})"
    parts.append(_text(11, (top + bottom) / 2, f"{axes[1]} →", "axis", "middle", transform=turn))
    parts += _named(points, across, up, (left, top, right, bottom))
    return _svg(width, height, label, parts)


def curves(
    lines: Sequence[Line],
    label: str,
    *,
    low: float = 0.0,
    high: float = 1.0,
    width: int = 168,
    height: int = 118,
    between: tuple[int, int] | None = None,
) -> Markup:
    """Curves over the steps of masking; ``between`` shades the area between two of them, by their numbers.

    >>> chart = curves([Line("LeRF", [1, 0.8, 0], "lerf"), Line("MoRF", [1, 0.2, 0], "morf")], "output", between=(0, 1))
    >>> chart.count("<polyline"), chart.count("<polygon")
    (2, 1)
    """
    left, right, top, bottom = 28.0, width - 5.0, 7.0, height - 18.0
    up = _Scale(low, high if high > low else low + 1.0, bottom, top)
    marks = [mark for mark in ticks(up.low, up.high, 3) if up.low - 1e-9 <= mark <= up.high + 1e-9]
    paths = []
    for line in lines:
        across = _Scale(0, max(1, len(line.values) - 1), left, right)
        paths.append([(across(step), up(value)) for step, value in enumerate(line.values)])
    parts = [
        _tag("line", x1=left, x2=right, y1=up(mark), y2=up(mark), class_="zero" if mark == 0 else "grid")
        for mark in marks
    ]
    parts += [_text(left - 5, up(mark) + 4, number(mark, marks), "tick", "end") for mark in marks]
    steps = max((len(line.values) for line in lines), default=1) - 1
    parts.append(_text(left, height - 4, "0", "tick", "middle"))
    parts.append(_text(right, height - 4, f"step {steps}", "tick", "end"))
    if between is not None:
        first, second = (paths[number] for number in between)
        parts.append(_tag("polygon", points=_joined([*first, *reversed(second)]), class_="area"))
    for line, path in zip(lines, paths, strict=True):
        given = " ".join(f"{value:.4g}" for value in line.values)
        parts.append(
            _tag("polyline", _title(line.name), points=_joined(path), class_=f"line {line.style}", data_values=given)
        )
    return _svg(width, height, label, parts)


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers from at most ``low`` to at least ``high``, about ``count`` steps apart.

    >>> ticks(0, 0.34, 4)
    [0.0, 0.1, 0.2, 0.3, 0.4]
    """
    span = high - low
    if not span > 0 or not math.isfinite(span):
        low, high, span = min(low, 0.0), max(low, 0.0) + 1.0, 1.0
    rough = span / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 10) + 0.0 for place in range(first, last + 1)]


def number(value: float, marks: Sequence[float]) -> str:
    """A number on an axis, with as many decimals as its neighbours need.

    >>> number(0.5, [0.0, 0.25, 0.5]), number(2.0, [0.0, 2.0])
    ('0.50', '2')
    """
    step = min((b - a for a, b in pairwise(marks)), default=1.0)
    decimals = next((d for d in range(6) if abs(round(step, d) - step) < 1e-9), 6)
    return f"{value:.{decimals}f}".replace("-", "−")


def short(name: str) -> str:
    """A name cut to fit beside its bar.

    >>> short("abslrp"), short("a-name-that-nobody-can-read")
    ('abslrp', 'a-name-that-nobody-can-…')
    """
    plain = " ".join(name.split())
    return plain if len(plain) <= _LONGEST_NAME else plain[: _LONGEST_NAME - 1] + "…"


@dataclass(frozen=True)
class _Scale:
    """From values between low and high to places between start and end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        return self.start + share * (self.end - self.start)


def _bar(row: Bar, scale: _Scale, middle: float, step: int, width: int) -> Markup:
    half = step * 0.31
    start, end = sorted((scale(0.0), scale(row.mean)))
    told = f"{row.name}: {row.mean:.3f}, interval {row.low:.3f} to {row.high:.3f}"
    if row.published is not None:
        told += f"; the paper has {row.published:.3f}"
    star = "*" if row.starred else ""
    parts = [
        _title(told),
        _text(scale.start - 8, middle + 4, short(row.name), "name", "end"),
        _tag("rect", x=start, y=middle - half, width=max(end - start, 0.5), height=2 * half, rx=1.5, class_="bar"),
        _tag("line", x1=scale(row.low), x2=scale(row.high), y1=middle, y2=middle, class_="whisker"),
        _upright(scale(row.low), middle - 3, middle + 3, "whisker"),
        _upright(scale(row.high), middle - 3, middle + 3, "whisker"),
        _text(width - 10, middle + 4, f"{row.mean:.3f}".replace("-", "−"), "value", "end"),
        _text(width - 9, middle + 4, star, "value", "start") if star else Markup(""),
    ]
    if row.published is not None:
        x, reach = scale(row.published), 4.2
        corners = [(x - reach, middle), (x, middle - reach), (x + reach, middle), (x, middle + reach)]
        parts.append(_tag("polygon", points=_joined(corners), class_="published"))
    return _tag(
        "g",
        Markup("").join(parts),
        class_=f"row {row.kind}",
        data_method=row.name,
        data_mean=row.mean,
        data_low=row.low,
        data_high=row.high,
    )


def _product(product: float, across: _Scale, up: _Scale, highs: tuple[float, float]) -> list[Markup]:
    """The curve x · y = product, with its number where it leaves the chart at the top or on the right."""
    begin, end = product / highs[1], highs[0]
    if begin >= end * 0.98:
        return []
    places = [begin * (end / begin) ** (step / 40) for step in range(41)]
    path = [(across(x), up(product / x)) for x in places]
    x, y = path[-1]
    return [
        _tag("polyline", points=_joined(path), class_="product"),
        _text(x - 2, y - 3, f"{product:g}", "tick faint", "end"),
    ]


def _named(points: Sequence[Point], across: _Scale, up: _Scale, frame: Box) -> list[Markup]:
    places = [(across(point.x), up(point.y)) for point in points]
    groups = together(places)
    centres = [places[group[0]] for group in groups]
    words = [[short(points[member].name) for member in group] for group in groups]
    parts: list[Markup] = []
    for (x, y), box in zip(centres, (boxes := label_boxes(centres, words, frame)), strict=True):
        near = _nearest(box, x, y)
        if math.dist(near, (x, y)) > 9:
            parts.append(_tag("line", x1=x, y1=y, x2=near[0], y2=near[1], class_="leader"))
    for group, box in zip(groups, boxes, strict=True):
        for line, member in enumerate(group):
            point, (x, y) = points[member], places[member]
            told = _title(f"{point.name}: {point.x:.3f}, {point.y:.3f}")
            dot = _tag("circle", told, cx=x, cy=y, r=4.2, class_="dot")
            name = _text(box[0] + 1, box[1] + _LINE * (line + 1) - 3.5, short(point.name), "name", "start")
            style = f"point {point.kind}"
            parts.append(_tag("g", dot + name, class_=style, data_method=point.name, data_x=point.x, data_y=point.y))
    return parts


def together(places: Sequence[tuple[float, float]], reach: float = 7.0) -> list[list[int]]:
    """Points that lie on each other, by number: they share one label, a line each.

    >>> together([(0, 0), (50, 0), (3, 1)])
    [[0, 2], [1]]
    """
    groups: list[list[int]] = []
    for number, place in enumerate(places):
        home = next((group for group in groups if math.dist(places[group[0]], place) <= reach), None)
        if home is None:
            groups.append([number])
        else:
            home.append(number)
    return groups


def label_boxes(places: Sequence[tuple[float, float]], names: Sequence[Sequence[str]], frame: Box) -> list[Box]:
    """Where the names of points go, some lines each: near their own, off the others, inside the frame.

    >>> first, second = label_boxes([(50, 50), (52, 50)], [["a"], ["b"]], (0, 0, 200, 100))
    >>> first[2] <= second[0] or second[2] <= first[0] or first[3] <= second[1] or second[3] <= first[1]
    True
    """
    taken: dict[int, Box] = {}
    # The more lines a label has, the harder it is to place: those choose first, then in the order given.
    for turn in sorted(range(len(places)), key=lambda number: -len(names[number])):
        (x, y), lines = places[turn], names[turn]
        wide, high = max(map(len, lines)) * _LETTER + 2, _LINE * len(lines)
        best, least = (x, y - high, x + wide, y), math.inf
        for reach in _REACHES:
            for angle in _ANGLES:
                box = _beside(x + reach * math.cos(angle), y - reach * math.sin(angle), wide, high, angle)
                cost = reach + _cost(box, (x, y), list(taken.values()), places, frame)
                if cost < least:
                    best, least = box, cost
            if least < reach + 9:  # Farther out it only gets worse.
                break
        taken[turn] = best
    return [taken[number] for number in range(len(places))]


def _beside(x: float, y: float, wide: float, high: float, angle: float) -> Box:
    """A box that touches (x, y) with the edge or corner that faces the point it was moved from."""
    side, rise = math.cos(angle), math.sin(angle)
    left = x if side > 0.2 else x - wide if side < -0.2 else x - wide / 2
    top = y - high if rise > 0.6 else y if rise < -0.6 else y - high / 2
    return left, top, left + wide, top + high


def _cost(
    box: Box, own: tuple[float, float], taken: Sequence[Box], places: Sequence[tuple[float, float]], frame: Box
) -> float:
    outside = max(frame[0] - box[0], frame[1] - box[1], box[2] - frame[2], box[3] - frame[3], 0.0)
    covered = sum(_overlap(box, other) for other in taken)
    dots = sum(_overlap(box, (x - 5, y - 5, x + 5, y + 5)) for x, y in places)
    end = _nearest(box, *own)
    # The line from the point to its name should not run through what is written elsewhere, nor through other points.
    way = [(own[0] + (end[0] - own[0]) * k / 8, own[1] + (end[1] - own[1]) * k / 8) for k in range(1, 8)]
    crossed = sum(b[0] <= x <= b[2] and b[1] <= y <= b[3] for x, y in way for b in taken)
    crossed += sum(math.dist(step, place) < 4.5 for step in way for place in places if place != own)
    return 1000 * (outside > 0) + 100 * outside + 3 * covered + 1.5 * dots + 12 * crossed


def _nearest(box: Box, x: float, y: float) -> tuple[float, float]:
    return min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])


def _overlap(one: Box, other: Box) -> float:
    across, down = min(one[2], other[2]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[1], other[1])
    return across * down if across > 0 and down > 0 else 0.0


def _svg(width: float, height: float, label: str, parts: Sequence[Markup]) -> Markup:
    box = f"0 0 {width:.0f} {height:.0f}"
    return _tag("svg", Markup("").join(parts), viewBox=box, role="img", aria_label=label, class_="chart")


def _upright(x: float, top: float, bottom: float, style: str) -> Markup:
    return _tag("line", x1=x, x2=x, y1=top, y2=bottom, class_=style)


def _text(x: float, y: float, text: str, style: str, anchor: str, **attributes: str) -> Markup:
    return _tag("text", escape(text), x=x, y=y, class_=style, text_anchor=anchor, **attributes)


def _title(text: str) -> Markup:
    return Markup("<title>{}</title>").format(text)


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _tag(tag: str, content: str = "", /, **attributes: str | float) -> Markup:
    """An element; whatever is not Markup is escaped."""
    written = "".join(f' {_attribute(name)}="{_written(value, name)}"' for name, value in attributes.items())
    return Markup(f"<{tag}{written}>{escape(content)}</{tag}>" if content else f"<{tag}{written}/>")


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _written(value: str | float, name: str) -> str:
    if isinstance(value, str):
        return str(escape(value))
    # Places need no more than a tenth of a pixel; data keeps its digits.
    return f"{value:.6g}" if name.startswith("data_") else f"{round(value, 1):g}"
