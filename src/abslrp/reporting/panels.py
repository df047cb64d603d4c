"""The evidence of a report, from findings to what the page shows: table, charts, matrices and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from abslrp.reporting.answer import cell_of, figure_text, p_text
from abslrp.reporting.comparison import MAIN, Cell, Column, Comparison
from abslrp.reporting.figures import Bar, Kind, Line, Point, bars, curves, scatter

if TYPE_CHECKING:
    import numpy as np

    from abslrp.experiments.findings import Curves, Findings, Standing
    from abslrp.experiments.statistics import Agreement

_LEADING = 8


@dataclass(frozen=True)
class Head:
    """A column's head; ``first`` is the order that puts the best on top, ``sorted`` the one the table comes in."""

    heading: str
    arrow: str
    first: str
    sorted: str = ""
    main: bool = True
    told: str = ""


@dataclass(frozen=True)
class Entry:
    """A cell of the table: what is printed and, for sorting, its value."""

    text: str
    value: float | None
    bold: bool = False
    star: bool = False
    interval: str = ""
    published: str = ""
    flagged: int = 0


@dataclass(frozen=True)
class Chart:
    """A chart with its heading and a sentence on it."""

    title: str
    arrow: str
    told: str
    svg: Markup
    narrow: Markup | None = None


@dataclass(frozen=True)
class Square:
    """A cell of a matrix: its text, the class that colours it, and what it says in full."""

    text: str
    style: str
    told: str = ""


@dataclass(frozen=True)
class Matrix:
    """A square table with the same names down and across."""

    title: str
    names: tuple[str, ...]
    rows: tuple[tuple[Square, ...], ...]


@dataclass(frozen=True)
class CurvePanel:
    """A method's curves: how alike its maps stay, and how near that comes to the output's change."""

    method: str
    similarity: Markup
    difference: Markup
    kind: Kind


def kind_of(standing: Standing, method: str) -> Kind:
    """How a method stands in a metric, for its colour."""
    from abslrp.experiments.findings import CONTROLS

    # A method alone is not the best of anything.
    if method == standing.best.best and len(standing.scores) > 1:
        return "best"
    if method in standing.best.tied:
        return "tied"
    return "control" if method in CONTROLS else "other"


def table_heads(comparison: Comparison, deciding: str | None) -> list[Head]:
    """The heads of the table's columns of numbers."""
    heads = []
    for column in _columns(comparison):
        first = "descending" if column.higher_is_better else "ascending"
        told = "higher is better" if column.higher_is_better else "lower is better"
        comes = first if column.metric == deciding and column.part == MAIN else ""
        heads.append(Head(column.heading, "↑" if column.higher_is_better else "↓", first, comes, column.main, told))
    return heads


def table_rows(comparison: Comparison) -> list[tuple[str, list[Entry]]]:
    """Every method with its cells."""
    return [
        (method, [_entry(comparison.cell(method, column), column.main) for column in _columns(comparison)])
        for method in comparison.methods
    ]


def _columns(comparison: Comparison) -> list[Column]:
    """The columns, of each metric the deciding one first: on a phone it is the one in sight."""
    order = list(dict.fromkeys(column.metric for column in comparison.columns))
    return sorted(comparison.columns, key=lambda column: (order.index(column.metric), not column.main))


def _entry(cell: Cell | None, main: bool) -> Entry:
    if cell is None:
        return Entry("—", None)
    return Entry(
        figure_text(cell.mean),
        cell.mean,
        cell.bold,
        cell.tied,
        f"{figure_text(cell.low)} to {figure_text(cell.high)}" if main and cell.n > 1 else "",
        "" if cell.published is None else figure_text(cell.published),
        cell.flagged if main else 0,
    )


def _bar(findings: Findings, standing: Standing, method: str) -> Bar:
    cell = cell_of(findings, standing, method)
    return Bar(method, cell.mean, cell.low, cell.high, kind_of(standing, method), cell.tied, cell.published)


def leading_chart(findings: Findings, standing: Standing) -> Chart:
    """The first few methods of the deciding metric, and the best control for comparison."""
    from abslrp.experiments.findings import CONTROLS

    names = list(standing.scores)
    shown = names[:_LEADING]
    control = next((name for name in names[_LEADING:] if name in CONTROLS), None)
    shown += [control] if control else []
    rest = len(names) - len(shown)
    told = f"The first {len(shown)} of {len(names)} methods." if rest else "All methods."
    if control:
        told = f"The first {_LEADING} of {len(names)} methods, and a control."
    wide = _bars(findings, standing, shown, step=24, width=480)
    return Chart(standing.title, _arrow(standing), told, wide, _bars(findings, standing, shown))


def metric_charts(findings: Findings) -> list[Chart]:
    """A bar chart for each metric, best method on top."""
    return [
        Chart(standing.title, _arrow(standing), _sentence(standing), _bars(findings, standing, list(standing.scores)))
        for standing in findings.standings.values()
    ]


def _bars(findings: Findings, standing: Standing, names: Sequence[str], *, step: int = 21, width: int = 360) -> Markup:
    rows = [_bar(findings, standing, method) for method in names]
    better = "higher" if standing.info.higher_is_better else "lower"
    label = f"Bar chart of {standing.title}, {better} is better; best: {standing.best.best}. The table has the numbers."
    return bars(rows, label, step=step, width=width)


def _arrow(standing: Standing) -> str:
    return "↑" if standing.info.higher_is_better else "↓"


def _sentence(standing: Standing) -> str:
    what = f"{standing.description[:1].upper()}{standing.description[1:]}. " if standing.description else ""
    return f"{what}{'Higher' if standing.info.higher_is_better else 'Lower'} is better; n\u00a0=\u00a0{len(standing.items)}."


def scatter_chart(standing: Standing | None, size: tuple[int, int] = (960, 520)) -> Chart | None:
    """Local consistency against contrastiveness, wide and narrow; None where the run has not both."""
    if standing is None or any(part not in standing.info.shown for part in ("LC", "C")):
        return None
    points = [
        Point(method, float(parts["LC"].mean()), float(parts["C"].mean()), kind_of(standing, method))
        for method, parts in standing.scores.items()
    ]
    axes = ("LC, local consistency", "C, contrastiveness")
    label = (
        "Scatter plot of mean local consistency and mean contrastiveness of every method. The table has the numbers."
    )
    told = "A method to believe is consistent and contrastive: up and to the right. Faint curves join equal products LC × C."
    wide = scatter(points, label, axes, width=size[0], height=size[1])
    return Chart(
        "Local consistency and contrastiveness", "", told, wide, scatter(points, label, axes, width=360, height=460)
    )


def agreement_matrix(agreement: Agreement | None, titles: Mapping[str, str]) -> Matrix | None:
    """Kendall's τ between the metrics' orders of the methods."""
    if agreement is None:
        return None
    names = tuple(titles[name] for name in agreement.metrics)
    rows = []
    for i, one in enumerate(names):
        row = []
        for j, other in enumerate(names):
            tau = float(agreement.tau[i, j])
            same = i == j
            text = "1" if same else "—" if tau != tau else f"{tau:.2f}".replace("-", "−")
            told = "" if same else f"{one} and {other}: Kendall's τ = {text}"
            row.append(Square(text, "same" if same else _shade(tau), told))
        rows.append(tuple(row))
    return Matrix("Kendall's τ between metrics", names, tuple(rows))


def _shade(tau: float) -> str:
    """One of seven steps from reverse to equal order."""
    if tau != tau:
        return "none"
    return f"tau{min(6, max(0, round((tau + 1) * 3)))}"


def pair_matrix(standing: Standing) -> Matrix | None:
    """Every method against every other: Holm's p above the diagonal, the difference of the means below it."""
    names = standing.pairs.methods
    if len(names) < 2:
        return None
    rows = []
    for i, one in enumerate(names):
        row = []
        for j, other in enumerate(names):
            p, gap = float(standing.pairs.corrected[i, j]), float(standing.pairs.differences[i, j])
            if i == j:
                row.append(Square("", "same"))
                continue
            told = f"{one} less {other}: {figure_text(gap)}, {p_text(p)} after Holm"
            row.append(Square(short_p(p) if j > i else short_gap(gap), _level(p), told))
        rows.append(tuple(row))
    return Matrix(f"{standing.title}: pairs of methods", names, tuple(rows))


def short_p(p: float) -> str:
    """A p-value for a narrow cell.

    >>> short_p(0.00002), short_p(0.0312), short_p(0.4), short_p(1.0)
    ('<.001', '.031', '.40', '1')
    """
    if p < 0.001:
        return "<.001"
    if p >= 0.995:
        return "1"
    return (f"{p:.3f}" if p < 0.1 else f"{p:.2f}").lstrip("0")


def short_gap(gap: float) -> str:
    """A difference for a narrow cell.

    >>> short_gap(-0.2204), short_gap(1.5), short_gap(0.0)
    ('−.220', '1.50', '0')
    """
    if abs(gap) < 0.0005:
        return "0"
    return f"{gap:.2f}".replace("-", "−") if abs(gap) >= 1 else figure_text(gap).replace("0.", ".", 1)


def _level(p: float) -> str:
    return "p3" if p < 0.001 else "p2" if p < 0.01 else "p1" if p < 0.05 else "p0"


def output_chart(found: Curves) -> Markup:
    """The model's output as features are masked, which is the same for all methods."""
    low, high = _bounds([found.outputs["lerf"], found.outputs["morf"]])
    high = max(high, 1.0)
    lines = [
        Line("Output, least relevant first", found.outputs["lerf"].tolist(), "lerf"),
        Line("Output, most relevant first", found.outputs["morf"].tolist(), "morf"),
    ]
    label = "Curves of the model's output while features are masked, least and most relevant first."
    return curves(lines, label, low=low, high=high, width=360, height=190, between=(0, 1))


def curve_panels(found: Curves, standing: Standing) -> list[CurvePanel]:
    """Small multiples: for every method how alike its maps stay, and that difference beside the output's."""
    outputs = found.difference()
    low, high = _bounds([outputs, *(found.difference(method) for method in found.similarity)])
    panels = []
    for method, pair in found.similarity.items():
        alike = [
            Line("Similarity, least relevant first", pair["lerf"].tolist(), "lerf"),
            Line("Similarity, most relevant first", pair["morf"].tolist(), "morf"),
        ]
        mine = found.difference(method)
        change = [Line("Output", outputs.tolist(), "output"), Line("Maps", mine.tolist(), "maps")]
        first = curves(alike, f"Similarity of {method}'s maps while features are masked.")
        second = curves(change, f"Differences of output and of {method}'s maps.", low=low, high=high, between=(0, 1))
        panels.append(CurvePanel(method, first, second, kind_of(standing, method)))
    return panels


def _bounds(arrays: Sequence[np.ndarray]) -> tuple[float, float]:
    return min(0.0, *(float(one.min()) for one in arrays)), max(0.0, *(float(one.max()) for one in arrays))
