"""The first screen of a report in words: which method to believe, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abslrp.reporting.comparison import MAIN, Cell

if TYPE_CHECKING:
    from abslrp.experiments.findings import Findings, Standing

_FEW, _TOO_FEW = 30, 6
_LEVEL = 0.05
_NAMED = 3


@dataclass(frozen=True)
class Verdict:
    """What one metric says: its best method, those level with it, and where the method that the report believes stands."""

    title: str
    arrow: str
    best: str
    cell: Cell
    tied: tuple[str, ...]
    place: int | None
    of: int
    control: bool = False


@dataclass(frozen=True)
class Answer:
    """A headline, sentences that give the numbers, cautions, and every metric's own verdict."""

    headline: str
    sentences: tuple[str, ...]
    cautions: tuple[str, ...]
    verdicts: tuple[Verdict, ...]


def answer(findings: Findings) -> Answer:
    """Put the findings of a run into words that claim no more than the tests do."""
    deciding = findings.deciding
    if not findings.standings:
        return Answer("This run has no scores yet.", (), tuple(findings.notes), ())
    headline = _headline(findings, deciding) if deciding else _headline_of_many(findings)
    sentences = _sentences(findings, deciding) if deciding else _sentences_of_many(findings)
    verdicts = tuple(_verdict(findings, one) for one in findings.standings.values())
    return Answer(headline, tuple(sentences), tuple(_cautions(findings)), verdicts)


def p_text(p: float) -> str:
    """A p-value in words.

    >>> p_text(0.0312), p_text(0.00001), p_text(1.0)
    ('p = 0.031', 'p < 0.001', 'p = 1')
    """
    return "p < 0.001" if p < 0.001 else "p = 1" if p >= 0.9995 else f"p = {p:.2g}" if p >= 0.1 else f"p = {p:.3f}"


def unbroken(text: str) -> str:
    """A sentence whose p-values do not fall apart at the end of a line.

    >>> unbroken("so (p = 0.03)") == "so (p\\u00a0=\\u00a00.03)"
    True
    """
    return text.replace("p = ", "p\u00a0=\u00a0").replace("p < ", "p\u00a0<\u00a0")


def figure_text(value: float) -> str:
    """A score with three decimals and a true minus.

    >>> figure_text(-0.0746), figure_text(-0.0001)
    ('−0.075', '0.000')
    """
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "−")


def listed(names: Sequence[str], most: int = _NAMED, join: str = "and") -> str:
    """Names in a row, and how many more there are.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"]), listed(["a", "b", "c"], join="or")
    ('a and b', 'a, b, c and 2 more', 'a, b or c')
    """
    shown = list(names[:most])
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return f" {join} ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def counted(count: int, noun: str) -> str:
    """A number and its noun.

    >>> counted(1, "image"), counted(3, "image")
    ('1 image', '3 images')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def cell_of(findings: Findings, standing: Standing, method: str) -> Cell:
    """The deciding cell of a method in the comparison."""
    return findings.comparison.cells[method, standing.info.name, MAIN]


def _model(findings: Findings) -> str:
    """The model's name without the package that it comes from."""
    return findings.model.rpartition(":")[2] or findings.model


def _controls() -> frozenset[str]:
    from abslrp.experiments.findings import CONTROLS

    return CONTROLS


def _headline(findings: Findings, deciding: Standing) -> str:
    best, tied = deciding.best.best, deciding.best.tied
    if len(deciding.scores) == 1:
        return f"Only {best} was scored on {_model(findings)}: there is nothing to compare it with."
    if len(deciding.items) < _TOO_FEW:
        return f"{best} leads on {_model(findings)}, but {counted(len(deciding.items), 'image')} cannot settle it."
    controls = [name for name in (best, *tied) if name in _controls()]
    if controls:
        return f"On {_model(findings)} no method does better than the control {controls[0]}."
    if len(deciding.items) < _FEW and not tied:
        return f"For {_model(findings)}, {best} leads, but {len(deciding.items)} images leave doubt."
    if len(tied) >= _NAMED:
        return f"For {_model(findings)}, {best} leads, but {len(tied)} other methods cannot be told from it."
    return f"For {_model(findings)}, believe {listed([best, *tied], join='or')}."


def _headline_of_many(findings: Findings) -> str:
    everywhere = [
        method
        for method in findings.comparison.methods
        if method not in _controls()
        and all(method in (one.best.best, *one.best.tied) for one in findings.standings.values())
    ]
    if everywhere:
        return f"For {_model(findings)}, believe {listed(everywhere, join='or')}: level with the best by every metric."
    return f"For {_model(findings)}, the metrics do not agree on one method."


def _sentences(findings: Findings, deciding: Standing) -> list[str]:
    best, title = deciding.best.best, deciding.title
    cell, n = cell_of(findings, deciding, best), len(deciding.items)
    ranged = f"95% interval {figure_text(cell.low)} to {figure_text(cell.high)}"
    said = [f"{best} has a mean {title} of {figure_text(cell.mean)} ({ranged}) over {counted(n, 'image')}."]
    if deciding.best.tied:
        level = [f"{name} ({p_text(deciding.best.p_values[name])})" for name in deciding.best.tied]
        said.append(f"It cannot be told from {listed(level)}.")
    rest = [name for name in deciding.scores if name != best and name not in deciding.best.tied]
    if rest:
        said.append(_behind(deciding, rest[0]))
    elif len(deciding.scores) > 1:
        said.append("No method can be told from it.")
    return said + _above_control(deciding)


def _behind(deciding: Standing, other: str) -> str:
    """How far the first method that can be told from the best lies behind it, image by image."""
    from abslrp.experiments.statistics import interval

    mine, theirs = deciding.main[deciding.best.best], deciding.main[other]
    sign = 1 if deciding.info.higher_is_better else -1
    ahead = sign * (mine - theirs)
    worse, better = float((ahead > 0).mean()), float((ahead < 0).mean())
    gap = interval(ahead)
    return (
        f"The next that can be told from it, {other}, is {figure_text(gap.mean)} behind (95% interval of the difference "
        f"{figure_text(gap.low)} to {figure_text(gap.high)}, {p_text(deciding.best.p_values[other])}) and does worse on "
        f"{worse:.0%} of the images, better on {better:.0%}."
    )


def _above_control(deciding: Standing) -> list[str]:
    """What the best score is worth, seen from a map that knows nothing."""
    controls = [name for name in deciding.scores if name in _controls()]
    best = deciding.best.best
    if not controls or best in controls or controls[0] in deciding.best.tied:
        return []
    mean, p = figure_text(float(deciding.main[controls[0]].mean())), p_text(deciding.best.p_values[controls[0]])
    return [f"The control {controls[0]}, a map that knows nothing, has {mean} ({p})."]


def _sentences_of_many(findings: Findings) -> list[str]:
    said = []
    for one in findings.standings.values():
        cell = cell_of(findings, one, one.best.best)
        also = f", level with {listed(one.best.tied)}" if one.best.tied else ""
        said.append(f"{one.title}: {one.best.best} ({figure_text(cell.mean)}){also}.")
    return said


def _verdict(findings: Findings, standing: Standing) -> Verdict:
    best, leader = standing.best.best, findings.leader
    arrow = "↑" if standing.info.higher_is_better else "↓"
    place = standing.place(leader) if leader else None
    cell = cell_of(findings, standing, best)
    tied, of = standing.best.tied, len(standing.scores)
    return Verdict(standing.title, arrow, best, cell, tied, place, of, best in _controls())


def _cautions(findings: Findings) -> list[str]:
    said = []
    n, deciding = findings.images, findings.deciding
    if n < _TOO_FEW:
        said.append(
            f"With {counted(n, 'image')} no test can tell two methods apart at p = {_LEVEL:g}: score at least "
            f"{_TOO_FEW}, better a few hundred."
        )
    elif n < _FEW:
        said.append(f"{n} images are few: methods that lie close may change places on others. Score a few hundred.")
    for name, (done, planned) in findings.missing.items():
        title = findings.standings[name].title if name in findings.standings else name
        said.append(f"The run is not finished: {title} has {done} of {planned} scores of every method.")
    if deciding is not None and n >= _TOO_FEW:
        said += _after_correction(deciding)
    said += _doubts(findings, deciding)
    return [*said, *findings.notes, *map(str, findings.facts.get("notes") or ())]


def _after_correction(deciding: Standing) -> list[str]:
    best = deciding.best
    also = [m for m in best.p_values if m not in best.tied and deciding.corrected(best.best, m) >= _LEVEL]
    if not also:
        return []
    pairs = len(deciding.scores) * (len(deciding.scores) - 1) // 2
    return [f"Corrected for all {pairs} pairs after Holm, {listed(also)} cannot be told from {best.best} either."]


def _doubts(findings: Findings, deciding: Standing | None) -> list[str]:
    if deciding is None:
        return []
    best = deciding.best.best
    flagged = findings.flagged.get(deciding.info.name, {}).get(best, 0)
    if flagged * 10 < len(deciding.items) or not flagged:
        return []
    return [f"{flagged} of the {len(deciding.items)} scores of {best} are flagged as doubtful; see the table."]
