"""Tables of a comparison of methods: for the terminal, as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from abslrp.types import AbslrpError

if TYPE_CHECKING:
    import numpy as np

MAIN = "score"
CSV_FIELDS = ("method", "metric", "part", "mean", "low", "high", "n", "best", "tied", "flagged", "published")

_LATEX_ARROWS = {"↑": r"\uparrow", "↓": r"\downarrow"}
_LATEX = {
    **{sign: rf"\{sign}" for sign in "#$%&_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # After a line's end a star or a bracket would be read as an argument of the line's end.
    **{sign: f"{{{sign}}}" for sign in "*[]"},
    **{sign: f"${macro}$" for sign, macro in _LATEX_ARROWS.items()},
    **{"α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "ε": r"$\epsilon$", "×": r"$\times$", "−": "$-$"},
    **{"†": r"\dag{}", "—": "---", "–": "--", "…": r"\dots{}", "≥": r"$\geq$", "≤": r"$\leq$"},
}

Published = Callable[[str, str, str], "float | None"]
"""From a metric, a method and a part to a published number, or None."""


@dataclass(frozen=True)
class MetricInfo:
    """A metric as a table shows it: its direction, the part that decides, and the parts that are shown.

    ``parts`` are columns from left to right, by default the main part alone, and ``title`` heads the main part.
    """

    name: str
    higher_is_better: bool
    main: str = MAIN
    parts: tuple[str, ...] = ()
    title: str = ""

    @property
    def shown(self) -> tuple[str, ...]:
        """The parts that have a column."""
        return self.parts or (self.main,)


@dataclass(frozen=True)
class Column:
    """A column of a comparison: one part of one metric; ``main`` tells the part that decides."""

    metric: str
    part: str
    heading: str
    higher_is_better: bool
    main: bool = True


@dataclass(frozen=True)
class Cell:
    """What a method reached: the mean of ``n`` scores, its interval, and how it stands.

    ``best`` has the best mean; ``tied`` are the best and all that cannot be told from it, where there are such;
    ``flagged`` counts the images that the metric marked as doubtful; ``published`` is the paper's number.
    """

    mean: float
    low: float
    high: float
    n: int = 1
    best: bool = False
    tied: bool = False
    flagged: int = 0
    published: float | None = None

    @property
    def bold(self) -> bool:
        """Whether the number stands out: the best, or tied with it."""
        return self.best or self.tied


@dataclass(frozen=True)
class Comparison:
    """Methods in rows, parts of metrics in columns, cells by (method, metric, part); a cell may be missing.

    ``level`` is that of the intervals, ``p`` and ``corrected`` tell how ties were found, ``notes`` are lines below.
    """

    title: str
    methods: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, str, str], Cell]
    notes: tuple[str, ...] = ()
    level: float = 0.95
    p: float = 0.05
    corrected: bool = False

    def cell(self, method: str, column: Column) -> Cell | None:
        """The cell in the row of a method, or None where the method was not scored."""
        return self.cells.get((method, column.metric, column.part))


def compare(
    scores: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]],
    info: Mapping[str, MetricInfo],
    *,
    title: str = "",
    flagged: Mapping[str, Mapping[str, int]] | None = None,
    published: Published | None = None,
    notes: Sequence[str] = (),
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
    p: float = 0.05,
    corrected: bool = False,
) -> Comparison:
    """The comparison of methods from their scores (images,) by metric, method and part.

    Means have bootstrap intervals at ``level``; the main part of each metric tells the best method and those that
    Wilcoxon's test cannot tell from it at ``p``, as in D. Vukadin et al., ACM TIST, 2024, doi:10.1145/3649458.
    ``flagged`` counts doubtful images by metric and method.

    >>> import numpy as np
    >>> scores = {"focus": {"a": {"score": np.arange(8) / 8}, "b": {"score": np.zeros(8)}}}
    >>> compare(scores, {"focus": MetricInfo("focus", True)}).cells["a", "focus", "score"].best
    True
    """
    infos = [_info(metric, info) for metric in scores]
    settings = {"level": level, "draws": draws, "seed": seed}
    cells: dict[tuple[str, str, str], Cell] = {}
    for one in infos:
        doubts = (flagged or {}).get(one.name, {})
        for (method, part), cell in _cells(one, scores[one.name], settings, p, corrected).items():
            number = published(one.name, method, part) if published else None
            cells[method, one.name, part] = replace(cell, flagged=doubts.get(method, 0), published=number)
    methods = tuple(dict.fromkeys(method for metric in scores for method in scores[metric]))
    return Comparison(title, methods, _columns(infos), cells, tuple(notes), level, p, corrected)


def terminal(comparison: Comparison, *, intervals: bool = True) -> Table:
    """The comparison as a table for the terminal; intervals stand in the deciding columns.

    >>> terminal(Comparison("", ("a",), (Column("gae", "GAE", "GAE", True),), {})).row_count
    1
    """
    table = Table(
        box=None,
        header_style="bold",
        pad_edge=False,
        padding=(0, 2, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    table.title = Text(comparison.title, style="bold") if comparison.title else None
    table.add_column("method", no_wrap=True)
    for column in comparison.columns:
        table.add_column(Text(f"{column.heading} {_arrow(column)}"), justify="right")
    for method in comparison.methods:
        row = [(column, comparison.cell(method, column)) for column in comparison.columns]
        table.add_row(Text(_one_line(method)), *(_terminal_cell(cell, column.main, intervals) for column, cell in row))
    lines = _footnotes(comparison, intervals)
    table.caption = Text("\n".join(lines), style="dim") if lines else None
    return table


def markdown(comparison: Comparison, *, intervals: bool = True) -> str:
    """The comparison as a Markdown table with its notes below; intervals stand in the deciding columns.

    >>> cells = {("a", "gae", "GAE"): Cell(0.32, 0.3, 0.34, best=True, published=0.272)}
    >>> text = markdown(Comparison("", ("a",), (Column("gae", "GAE", "GAE", True),), cells), intervals=False)
    >>> print(text.splitlines()[2])
    | a | **0.320** (paper 0.272) |
    """
    columns = comparison.columns
    lines = [f"**{_plain_markdown(comparison.title)}**", ""] if comparison.title else []
    lines.append(_piped(["method", *(f"{_plain_markdown(column.heading)} {_arrow(column)}" for column in columns)]))
    lines.append(_piped(["---", *("---:" for _ in columns)]))
    for method in comparison.methods:
        row = [(column, comparison.cell(method, column)) for column in columns]
        cells = [_markdown_cell(cell, column.main, intervals) for column, cell in row]
        lines.append(_piped([_plain_markdown(method), *cells]))
    # A list keeps the notes apart, which Markdown would otherwise join into one line.
    notes = [f"- {_plain_markdown(line)}" for line in _footnotes(comparison, intervals)]
    return "\n".join([*lines, *(["", *notes] if notes else []), ""])


def csv_text(comparison: Comparison) -> str:
    """The comparison for machines: a line for each cell, numbers in full, no published number as an empty field.

    >>> cells = {("a", "gae", "GAE"): Cell(0.32, 0.3, 0.34, n=80, best=True)}
    >>> csv_text(Comparison("", ("a",), (Column("gae", "GAE", "GAE", True),), cells)).splitlines()[1]
    'a,gae,GAE,0.32,0.3,0.34,80,true,false,0,'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for method in comparison.methods:
        for column in comparison.columns:
            cell = comparison.cell(method, column)
            if cell is not None:
                numbers = (cell.mean, cell.low, cell.high, cell.n)
                standing = (str(cell.best).lower(), str(cell.tied).lower(), cell.flagged)
                published = "" if cell.published is None else cell.published
                writer.writerow((harmless(method), column.metric, column.part, *numbers, *standing, published))
    return text.getvalue()


def harmless(name: str) -> str:
    """A name as it may stand in CSV: what a spreadsheet would compute is marked as text.

    >>> harmless("=1+1"), harmless("abslrp"), harmless("a=b")
    ("'=1+1", 'abslrp', 'a=b')
    """
    return f"'{name}" if name.lstrip().startswith(("=", "+", "-", "@")) or name.startswith("\t") else name


def latex(comparison: Comparison) -> str:
    r"""The comparison as the paper prints its tables: three decimals, the best bold, a star where it is not alone.

    The document needs ``booktabs`` and ``xcolor``; a published number stands in grey brackets.

    >>> cells = {("a_b", "gae", "GAE"): Cell(0.32, 0.3, 0.34, best=True, published=0.272)}
    >>> text = latex(Comparison("", ("a_b",), (Column("gae", "GAE", "GAE", True),), cells))
    >>> print(text.splitlines()[7].strip())
    a\_b & \textbf{0.320} \textcolor{gray}{(0.272)} \\
    """
    columns = comparison.columns
    head = ["Method", *(f"{_plain_latex(column.heading)} (${_LATEX_ARROWS[_arrow(column)]}$)" for column in columns)]
    lines = [r"% \usepackage{booktabs,xcolor}", r"\begin{table}", r"  \centering"]
    if comparison.title:
        lines.insert(2, rf"  \caption{{{_plain_latex(comparison.title)}}}")
    lines.append(rf"  \begin{{tabular}}{{l{'c' * len(columns)}}}")
    lines += [r"    \toprule", f"    {_row_latex(head)}", r"    \midrule"]
    for method in comparison.methods:
        cells = [_latex_cell(comparison.cell(method, column), column.main) for column in columns]
        lines.append(f"    {_row_latex([_plain_latex(method), *cells])}")
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    notes = _footnotes(comparison, intervals=False)
    if any(cell.published is not None for cell in comparison.cells.values()):
        notes.append("Grey: the number published in the paper.")
    # A paragraph for each note: inside a float nothing else breaks the line.
    lines += [rf"  \par {{\footnotesize {_plain_latex(line)}\par}}" for line in notes]
    return "\n".join([*lines, r"\end{table}", ""])


def _info(metric: str, info: Mapping[str, MetricInfo]) -> MetricInfo:
    if metric not in info:
        raise AbslrpError(f"nothing is known of the metric {metric!r}: describe it by a MetricInfo")
    if info[metric].name != metric:
        raise AbslrpError(f"the metric {metric!r} is described as {info[metric].name!r}: give both the same name")
    return info[metric]


def _cells(
    info: MetricInfo,
    scores: Mapping[str, Mapping[str, np.ndarray]],
    settings: Mapping[str, Any],
    p: float,
    corrected: bool,
) -> dict[tuple[str, str], Cell]:
    """Mean, interval and standing of every method in the shown parts of one metric, by (method, part)."""
    # Scipy takes its time to load, and only this needs it: a finished comparison is written without.
    from abslrp.experiments import statistics

    for method, parts in scores.items():
        for part in {*info.shown, info.main} - set(parts):
            raise AbslrpError(f"{method!r} has no part {part!r} of {info.name!r}: it has {', '.join(parts) or 'none'}")
    try:
        main = {method: parts[info.main] for method, parts in scores.items()}
        top = statistics.best(main, info.higher_is_better, p, corrected=corrected)
        ranges = {(m, part): statistics.interval(scores[m][part], **settings) for m in scores for part in info.shown}
    except AbslrpError as error:
        raise AbslrpError(f"{info.name}: {error}") from error
    return {
        (method, part): Cell(
            one.mean,
            one.low,
            one.high,
            n=len(scores[method][part]),
            # A method alone is not the best of anything.
            best=part == info.main and method == top.best and len(scores) > 1,
            tied=part == info.main and method in top.starred,
        )
        for (method, part), one in ranges.items()
    }


def _columns(infos: Iterable[MetricInfo]) -> tuple[Column, ...]:
    """The columns of all metrics; a heading that two metrics share gets the metric's title before it."""
    shown = [(one, part, (one.title or one.name) if part == one.main else part) for one in infos for part in one.shown]
    count = Counter(heading for *_, heading in shown)
    return tuple(
        Column(
            one.name,
            part,
            heading if count[heading] == 1 else f"{one.title or one.name} {part}",
            one.higher_is_better,
            part == one.main,
        )
        for one, part, heading in shown
    )


def _footnotes(comparison: Comparison, intervals: bool) -> list[str]:
    cells = [cell for column in comparison.columns for cell in _of(comparison, column)]
    main = [cell for column in comparison.columns if column.main for cell in _of(comparison, column)]
    how = f"Wilcoxon signed-rank test at p={comparison.p:g}{', corrected after Holm' if comparison.corrected else ''}"
    counts = sorted({cell.n for cell in cells})
    many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}" if counts else ""
    lines = [
        (bool(counts), f"Means of {many} scores."),
        (intervals and bool(main), f"[low,high]: {comparison.level:.0%} bootstrap interval of the mean."),
        (any(cell.tied for cell in cells), f"* A difference from the best mean is not confirmed by the {how}."),
        (any(cell.flagged for cell in main), "† Number of images that the metric flagged as doubtful."),
    ]
    return [line for holds, line in lines if holds] + list(comparison.notes)


def _of(comparison: Comparison, column: Column) -> list[Cell]:
    cells = (comparison.cell(method, column) for method in comparison.methods)
    return [cell for cell in cells if cell is not None]


def _arrow(column: Column) -> str:
    return "↑" if column.higher_is_better else "↓"


def _number(value: float) -> str:
    # The sum with zero turns −0.000 into 0.000.
    return f"{round(value, 3) + 0.0:.3f}"


def _asides(cell: Cell, main: bool, intervals: bool) -> list[str]:
    dagger = f"†{cell.flagged}" if cell.flagged and main else ""
    # Without a blank inside, a narrow terminal does not break the interval.
    interval = f"[{_number(cell.low)},{_number(cell.high)}]" if intervals and main else ""
    published = "" if cell.published is None else f"(paper {_number(cell.published)})"
    return [aside for aside in (dagger, interval, published) if aside]


def _terminal_cell(cell: Cell | None, main: bool, intervals: bool) -> Text:
    if cell is None:
        return Text("—", style="dim")
    number = Text(_number(cell.mean) + "*" * cell.tied, style="bold" if cell.bold else "")
    return Text(" ").join([number, *(Text(aside, style="dim") for aside in _asides(cell, main, intervals))])


def _markdown_cell(cell: Cell | None, main: bool, intervals: bool) -> str:
    if cell is None:
        return "—"
    number = f"**{_number(cell.mean)}**" if cell.bold else _number(cell.mean)
    number += r"\*" * cell.tied
    return " ".join([number, *map(_plain_markdown, _asides(cell, main, intervals))])


def _latex_cell(cell: Cell | None, main: bool) -> str:
    if cell is None:
        return "--"
    number = rf"\textbf{{{_latex_number(cell.mean)}}}" if cell.bold else _latex_number(cell.mean)
    dagger = rf"$^{{\dagger {cell.flagged}}}$" if cell.flagged and main else ""
    published = "" if cell.published is None else rf" \textcolor{{gray}}{{({_latex_number(cell.published)})}}"
    return f"{number}{'*' * cell.tied}{dagger}{published}"


def _latex_number(value: float) -> str:
    # A minus outside of mathematics would be printed as a hyphen.
    return _number(value).replace("-", "$-$")


def _piped(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row_latex(cells: Iterable[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _plain_markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#~&$])", r"\\\1", _one_line(text))


def _plain_latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in _one_line(text))
