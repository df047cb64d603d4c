"""What the page shows and hands out, as text, HTML and files; everything that came from outside is escaped."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from abslrp.app.uploads import Picked
from abslrp.app.workshop import Chosen, ClassChance, Workshop, options_of
from abslrp.inputs.models import DEFAULT_MODEL
from abslrp.propagation.coverage import Coverage
from abslrp.reporting.figures import Line, curves
from abslrp.reporting.heatmaps import save_png, write_whole
from abslrp.reporting.side_by_side import Key, pictures, sheet, where
from abslrp.reporting.words import Line as TextLine
from abslrp.reporting.words import marked, page
from abslrp.text import TextAttribution
from abslrp.types import AbslrpError

Told = Callable[[float, str], None]
"""Hears how far work is, from 0 to 1, and what it is at."""

_LOSSES = 5
_LEAST_LOSS = 1e-4
_PARTS = ("score", "LC", "LC_R", "LC_F", "C")
_MEANING = {
    "score": "LC times C",
    "LC": "local consistency: the mean of the next two, 0 at least",
    "LC_R": "do maps change as the output does, when features are masked",
    "LC_F": "does relevance lie where masking hurts the output",
    "C": "in a mosaic of four images, does relevance lie on this one",
}


@dataclass(frozen=True)
class View:
    """Everything that decides what is seen: the image, the model, the classes, the methods and how they are drawn."""

    picked: Picked
    chosen: Chosen
    classes: tuple[int, ...]
    methods: tuple[str, ...]
    opacity: float = 0.95
    against: float = 1.0
    one_scale: bool = True
    compare: bool = False

    @property
    def drawn(self) -> dict[str, Any]:
        """How maps are drawn, as :func:`abslrp.reporting.side_by_side.sheet` takes it."""
        return {
            "opacity": self.opacity,
            "against": self.against,
            "one_scale": self.one_scale,
            "compare": self.compare,
        }


def labels(shop: Workshop, view: View) -> dict[int, ClassChance]:
    return {index: shop.chance(view.chosen, view.picked, index) for index in view.classes}


def maps(
    shop: Workshop, view: View, told: Told = lambda done, what: None
) -> tuple[dict[Key, np.ndarray], dict[str, str]]:
    """The maps of a view, and why some methods have none; ``told`` hears how far it is."""
    for given, what in ((view.classes, "class"), (view.methods, "method")):
        if not given:
            raise AbslrpError(f"no {what} is chosen: tick at least one.")
    named, work = labels(shop, view), [(index, method) for index in view.classes for method in view.methods]
    made: dict[Key, np.ndarray] = {}
    failed: dict[str, str] = {}
    for number, (index, method) in enumerate(work):
        told(number / len(work), f"{method} for {named[index].label}")
        try:
            made[named[index].called, method] = shop.map_of(view.chosen, view.picked, index, method)
        except (AbslrpError, RuntimeError) as error:
            failed[method] = " ".join(str(error).split())
    if not made:
        raise AbslrpError(next(iter(failed.values())))
    return made, failed


def maps_html(shop: Workshop, view: View, told: Told = lambda done, what: None) -> str:
    """A row for every class with a picture for every method, and a sentence for every method that does not fit the model."""
    made, failed = maps(shop, view, told)
    shown = pictures(made, _display(shop, view), **view.drawn)
    heads = {
        one.called: f"{escape(one.label)} <small>{one.chance:.1%}, class {one.index}</small>"
        for one in labels(shop, view).values()
    }
    parts = []
    for name in dict.fromkeys(name for name, _ in shown):
        head = heads.get(name, f"{escape(name)} <small>red: more for the first</small>")
        figures = [
            _figure(shown[name, method], method, _alt(name, method, made.get((name, method))))
            for other, method in shown
            if other == name
        ]
        parts.append(f'<section><h3>{head}</h3><div class="maps">{"".join(figures)}</div></section>')
    parts += [f'<p class="message error">{escape(method)}: {escape(why)}</p>' for method, why in failed.items()]
    return f'<div class="views">{"".join(parts)}{_legend(view)}</div>'


def _alt(name: str, method: str, relevance: np.ndarray | None) -> str:
    if relevance is None:
        return f"{method}: {name}"
    return f"Map of {method} for {name}: {where(relevance)}"


def _figure(picture: np.ndarray, caption: str, alt: str) -> str:
    return (
        f'<figure><img src="{data_uri(picture)}" alt="{escape(alt)}" title="{escape(alt)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _legend(view: View) -> str:
    said = (
        "Red speaks for the class, blue against it." if view.against > 0 else "Only what speaks for the class is shown."
    )
    scale = (
        "One scale: the same colour is the same share of a map's relevance in all of them."
        if view.one_scale
        else "Every map has a scale of its own: compare places, not strengths."
    )
    return f'<p class="legend">{said} {scale}</p>'


def data_uri(picture: np.ndarray | Image.Image) -> str:
    """A picture inside the page, without a file."""
    buffer = io.BytesIO()
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    # Without subsampling, since colour is what a map says.
    image.save(buffer, format="JPEG", quality=90, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def preview_html(picked: Picked, size: int = 320) -> str:
    """The image as it was brought, small."""
    small = picked.image.copy()
    small.thumbnail((size, size))
    alt = f"The chosen image, {picked.name}"
    caption = f"<figcaption>{escape(picked.name)}</figcaption>"
    return f'<figure class="preview"><img src="{data_uri(small)}" alt="{escape(alt)}">{caption}</figure>'


def message_html(text: str = "", *, error: bool = False) -> str:
    """A sentence that is read out when it changes.

    >>> message_html("<b>", error=True)
    '<div class="message error" role="alert">&lt;b&gt;</div>'
    """
    kind, role = ("message error", "alert") if error else ("message", "status")
    return f'<div class="{kind}" role="{role}">{escape(text)}</div>'


def coverage_html(coverage: Coverage, model: str) -> str:
    """Which operations had a rule, what each did to relevance, and where most of it was lost."""
    rows = [(row.kind, str(row.calls), f"{row.gained:.2%}", f"{row.lost:.2%}") for row in coverage.rows]
    rows.append(("structural (only moves elements)", str(coverage.structural), "", ""))
    for title, counts in (("by gradient", coverage.by_gradient), ("stopped", coverage.stopped)):
        if counts:
            rows.append((f"{title}: {', '.join(counts)}", str(sum(counts.values())), "", ""))
    losses = sorted(coverage.layers, key=lambda layer: layer.mass_out - layer.mass_in)[:_LOSSES]
    lost = [
        (layer.path or "(top)", layer.function, f"{layer.mass_in - layer.mass_out:.2%}")
        for layer in losses
        if layer.mass_in - layer.mass_out > _LEAST_LOSS
    ]
    said = f"{coverage.arrived:.1%} of the relevance of {model}'s predicted class arrived at this image under absLRP."
    tables = table_html("What had a rule", ("operation", "calls", "gained", "lost"), rows)
    if lost:
        tables += table_html("Most is lost in", ("module", "operation", "lost"), lost)
    return f'<p>{escape(said)}</p><div class="tables">{tables}</div>'


def parts_html(found: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """GAE of one image by method, best first, with the curves behind LC_R."""
    ranked = sorted(found, key=lambda method: -float(found[method]["score"]))
    rows = [(method, *(f"{float(found[method][part]):.3f}" for part in _PARTS)) for method in ranked]
    heads = ("method", *("GAE" if part == "score" else part for part in _PARTS))
    meaning = "".join(
        f"<dt>{'GAE' if part == 'score' else part}</dt><dd>{escape(said)}</dd>" for part, said in _MEANING.items()
    )
    charts = _curves_html("the model", "output", "outputs", found[ranked[0]])
    charts += "".join(_curves_html(method, "similarity of maps", "similarity", found[method]) for method in ranked)
    return (
        f"{table_html('GAE of this image, 1 is best', heads, rows)}<dl>{meaning}</dl>"
        f'<div class="charts">{charts}</div>'
        '<p class="legend">Solid: least relevant features masked first; dashed: most relevant first. One image is one image: '
        "<code>abslrp evaluate</code> tells which method to believe.</p>"
    )


def _curves_html(whose: str, what: str, part: str, parts: Mapping[str, np.ndarray]) -> str:
    pair = [Line(f"{what}, {mode}", parts[f"{part}_{mode}"].tolist(), mode) for mode in ("lerf", "morf")]
    values = np.concatenate([parts[f"{part}_{mode}"] for mode in ("lerf", "morf")])
    chart = curves(
        pair,
        f"{whose}: {what} while features are masked",
        low=min(0.0, float(values.min())),
        high=max(1.0, float(values.max())),
        width=220,
        height=140,
        between=(0, 1),
    )
    return f"<figure>{chart}<figcaption>{escape(whose)}: {what}</figcaption></figure>"


def table_html(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column names its rows.

    >>> table_html("a", ["b"], [["<c>"]])
    '<div class="scroll"...<tbody><tr><th scope="row">&lt;c&gt;</th></tr></tbody></table></div>'
    """
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    table = f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    # Wide tables scroll by themselves, also by keys, and leave the page where it is.
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">{table}</div>'


def words_html(found: Sequence[TextAttribution], names: Sequence[str]) -> str:
    """A text under several methods, its words on their colours."""
    parts = []
    for one in found:
        chance = float(one.outputs.double().softmax(0)[one.target])
        head = f"{escape(one.method)} <small>{escape(names[one.target])} {chance:.1%}</small>"
        strongest = int(one.relevance.abs().argmax())
        said = f"strongest word: {one.words[strongest]} ({float(one.relevance[strongest]):+.3g})"
        parts.append(
            f'<section><h3>{head}</h3><p class="words">{marked(one)}</p><p class="legend">{escape(said)}</p></section>'
        )
    return f'<div class="views">{"".join(parts)}<p class="legend">Red speaks for the class, blue against it.</p></div>'


def write_files(shop: Workshop, view: View, folder: Path, told: Told = lambda done, what: None) -> list[str]:
    """The view as a picture, its maps as numbers, and a program that makes both again."""
    (made, failed), named, stem = maps(shop, view, told), labels(shop, view), Path(view.picked.name).stem or "view"
    view = replace(view, methods=tuple(method for method in view.methods if method not in failed))
    drawn = sheet(made, _display(shop, view), title=_title(view), **view.drawn)
    picture = save_png(drawn, folder / f"{stem}.png")
    stacked = np.stack(list(made.values()))
    stored: dict[str, Any] = {
        "maps": stacked.reshape(len(view.classes), len(view.methods), *stacked.shape[1:]),
        "classes": np.array(view.classes),
        "class_names": np.array([named[index].label for index in view.classes]),
        "methods": np.array(view.methods),
        "outputs": shop.outputs(view.chosen, view.picked).numpy(),
    }
    numbers = write_whole(folder / f"{stem}.npz", lambda file: np.savez_compressed(file, **stored))
    program = write_whole(folder / f"{stem}.py", lambda file: file.write(snippet(shop, view).encode("utf-8")))
    return [str(picture), str(numbers), str(program)]


def snippet(shop: Workshop, view: View) -> str:
    """A program that makes exactly this view again, without the page."""
    spec, weights = view.chosen.model or None, view.chosen.weights
    # The page tells no paths: files are named as it names them, and looked for where the program runs.
    if spec in shop.shelf.image_models:
        spec = f"hf:./{spec}"
    given = ", ".join([*([repr(spec)] if spec else []), *([f"weights={weights!r}"] if weights else [])])
    source = "sample_images()" if view.picked.sample else "read_image"
    image = f"{source}[{view.picked.name!r}]" if view.picked.sample else f"{source}({view.picked.name!r})"
    named = {index: one.called for index, one in labels(shop, view).items()}
    methods = {method: options_of(method) for method in view.methods}
    reader = "" if view.picked.sample else "from abslrp.inputs.images import read_image\n"
    loader = "load_model, sample_images" if view.picked.sample else "load_model"
    stem = Path(view.picked.name).stem or "view"
    return f'''"""A view of abslrp's page, made again."""

import abslrp
{reader}from abslrp.inputs.models import {loader}
from abslrp.reporting.heatmaps import save_png
from abslrp.reporting.side_by_side import sheet

loaded = load_model({given})
image = {image}
classes = {named!r}
methods = {methods!r}
drawn = {view.drawn!r}

x = loaded.transform(image)[None]
maps = {{
    (name, method): abslrp.explain(loaded.model, x, index, method, **options).maps[0].numpy()
    for index, name in classes.items()
    for method, options in methods.items()
}}
title = {_title(view)!r}
print(save_png(sheet(maps, loaded.transform.display(image), title=title, **drawn), {stem + ".png"!r}))
'''


def write_words(found: Sequence[TextAttribution], names: Sequence[str], model: str, folder: Path) -> list[str]:
    """A text under several methods as a page, and a program that makes it again."""
    lines = [TextLine(one, f"{one.method}, {names[one.target]}") for one in found]
    shown = write_whole(folder / "words.html", lambda file: file.write(page(lines, model).encode("utf-8")))
    program = write_whole(folder / "words.py", lambda file: file.write(text_snippet(found, model).encode("utf-8")))
    return [str(shown), str(program)]


def text_snippet(found: Sequence[TextAttribution], model: str) -> str:
    """A program that explains the text again."""
    return f'''"""A text of abslrp's page, explained again."""

import abslrp
from abslrp.inputs.sentences import load_text_classifier

classifier = load_text_classifier({model!r})
for method in {[one.method for one in found]!r}:
    print(method, abslrp.explain_text(classifier.model, classifier.tokenizer, {found[0].text!r}, {found[0].target}, method))
'''


def _title(view: View) -> str:
    return f"{view.chosen.model or DEFAULT_MODEL}: red speaks for the class, blue against"


def _display(shop: Workshop, view: View) -> np.ndarray:
    picture: np.ndarray = shop.model(view.chosen).transform.display(view.picked.image)
    return picture
