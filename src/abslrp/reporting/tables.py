"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from abslrp.propagation.coverage import Coverage
    from abslrp.registry import Method
    from abslrp.sanity import Sanity

_LEAST_LOSS = 1e-4
_PLACES = 5
_WIDE = 120
INSENSITIVE = "insensitive to the weights"
MARK = "\u00a0†"
_TRUTH = ("true", "false")
_FAMILIES = ("relevance propagation", "class activation map", "gradient", "perturbation", "attention", "control")


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


def by_family(methods: Mapping[str, Method]) -> list[Method]:
    """Methods in the order in which they are shown: family by family, controls last.

    >>> from abslrp.registry import methods
    >>> [method.name for method in by_family(methods())][-2:]
    ['constant', 'random']
    """
    known = [*_FAMILIES, *(one.family for one in methods.values() if one.family not in _FAMILIES)]
    return sorted(methods.values(), key=lambda one: (one.family == "control", known.index(one.family)))


def method_table(methods: Mapping[str, Method], width: int) -> Table:
    """The methods by family: what each does and needs, whether its map depends on the class, and whose it is.

    A terminal narrower than 120 letters gets the facts of a method below each other instead of side by side.
    """
    wide = width >= _WIDE
    table = _table(
        ("method", "needs", "class-specific", "what it does", "citation")
        if wide
        else ("method", "what it does, whose it is, what it needs"),
        (),
    )
    table.columns[0].no_wrap = True
    family = None
    for method in by_family(methods):
        if method.family != family:
            if family is not None:
                table.add_row()
            table.add_row(f"[bold]{escape(method.family)}[/bold]")
            family = method.family
        cells = [f"{escape(method.description)}{'' if method.sensitive else MARK}", escape(method.citation)]
        if wide:
            cells = [", ".join(method.needs), _yes(method.class_specific), *cells]
        else:
            facts = [f"needs {need}" for need in method.needs]
            facts += [] if method.class_specific else ["the same for every class"]
            below = [line for line in (cells[1].strip("—"), "; ".join(facts)) if line]
            cells = ["\n".join([cells[0], *(f"[dim]{line}[/dim]" for line in below)])]
        table.add_row(f"  {escape(method.name)}", *cells)
    return table


def method_details(method: Method, choices: Mapping[str, Sequence[str]]) -> Group:
    """One method with its options, their defaults and, where the values are words, all of them."""
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_row("family", escape(method.family))
    facts.add_row("needs", ", ".join(method.needs) or "nothing")
    facts.add_row("class-specific", _yes(method.class_specific))
    facts.add_row("inside the model", _yes(method.at))
    facts.add_row("sanity", "depends on the weights" if method.sensitive else INSENSITIVE)
    facts.add_row("citation", escape(method.citation))
    options = _table(("option", "default", "choices"), ())
    for name, default in method.options.items():
        known = choices.get(name, ()) if isinstance(default, str) else _TRUTH if isinstance(default, bool) else ()
        shown = "found by itself" if default is None else str(default).lower() if known is _TRUTH else str(default)
        options.add_row(escape(name), escape(shown), ", ".join(known))
    head = f"[bold]{escape(method.name)}[/bold]: {escape(method.description)}"
    return Group(head, facts, *(("", options) if method.options else ()))


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


def sanity_table(sanity: Sanity) -> Table:
    """How much of each method's maps stays when weights are shuffled from the head down to a layer."""
    table = _table(("weights shuffled down to" if sanity.cascade else "weights shuffled of",), sanity.correlations)
    for number, depth in enumerate(sanity.depths):
        table.add_row(escape(depth), *(f"{found[number]:.2f}" for found in sanity.correlations.values()))
    return table


def _table(words: Iterable[str], numbers: Iterable[str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in words:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"
