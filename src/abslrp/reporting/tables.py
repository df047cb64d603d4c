"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from abslrp.propagation.coverage import Coverage

_LEAST_LOSS = 1e-4
_PLACES = 5


@dataclass(frozen=True)
class ClassRow:
    """One line of a table of classes: a class of an image, its probability, and whether it was explained."""

    image: str
    label: str
    index: int
    probability: float
    explained: bool


def class_table(rows: Iterable[ClassRow], *, only_explained: bool = False) -> Table:
    """The classes of each image with their probabilities.

    >>> class_table([ClassRow("cat", "tabby", 281, 0.5, True)]).row_count
    1
    """
    table = _table(("image", "class"), ("index", "probability"))
    table.add_column("explained", justify="center")
    before = None
    for row in rows:
        if row.explained or not only_explained:
            image = "" if row.image == before else escape(row.image)
            mark = "●" if row.explained else ""
            table.add_row(image, escape(row.label), str(row.index), f"{row.probability:.1%}", mark)
            before = row.image
    return table


def method_table(methods: Mapping[str, Any]) -> Table:
    """The registered methods, each with what it does, whose it is and its options with their defaults."""
    table = _table(("method", "what it does", "options"), ())
    for name, method in sorted(methods.items()):
        options = "\n".join(f"{key}={value}" for key, value in method.options.items())
        table.add_row(
            f"[bold]{escape(name)}[/bold]", escape(f"{method.description}. {method.citation}"), escape(options)
        )
    return table


def coverage_tables(coverage: Coverage) -> Group:
    """What had a rule, what each kind of operation did to relevance, and where most of it was lost."""
    kinds = _table(("operation",), ("calls", "gained", "lost"))
    for row in coverage.rows:
        kinds.add_row(row.kind, str(row.calls), f"{row.gained:.2%}", f"{row.lost:.2%}")
    kinds.add_row("structural", str(coverage.structural), "", "")
    for title, counts in (("by gradient", coverage.by_gradient), ("stopped", coverage.stopped)):
        if counts:
            kinds.add_row(f"{title}: {escape(', '.join(counts))}", str(sum(counts.values())), "", "")
    losses = sorted(coverage.layers, key=lambda layer: layer.mass_out - layer.mass_in)[:_PLACES]
    losses = [layer for layer in losses if layer.mass_in - layer.mass_out > _LEAST_LOSS]
    if not losses:
        return Group(kinds)
    places = _table(("most is lost in", "operation"), ("lost",))
    for layer in losses:
        places.add_row(escape(layer.path or "(top)"), escape(layer.function), f"{layer.mass_in - layer.mass_out:.2%}")
    return Group(kinds, "", places)


def _table(words: Iterable[str], numbers: Iterable[str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in words:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table
