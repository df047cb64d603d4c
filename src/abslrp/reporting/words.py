"""Words of texts in colour, red for the class and blue against it: in the terminal, as one HTML page, as a picture."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from PIL import Image, ImageDraw
from rich.text import Text

from abslrp.reporting.heatmaps import font_for, heatmap
from abslrp.types import AbslrpError

if TYPE_CHECKING:
    from torch import Tensor

_INK, _PAPER, _GREY = (20, 20, 20), (255, 255, 255), (110, 110, 110)
_DARK = 140.0
Colour = tuple[int, int, int]


class Explained(Protocol):
    """A text with the relevance of its words, and where they stand in it."""

    @property
    def text(self) -> str: ...

    @property
    def relevance(self) -> Tensor: ...

    @property
    def spans(self) -> tuple[tuple[int, int], ...]: ...


@dataclass(frozen=True)
class Line:
    """A text to draw, and what is said above it."""

    explained: Explained
    caption: str = ""


def strengths(one: Explained) -> list[float]:
    """Relevance of the words from −1 to 1, over the largest magnitude of the text; what is not finite counts as 0.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> strengths(SimpleNamespace(relevance=torch.tensor([4.0, -2.0, float("nan")])))
    [1.0, -0.5, 0.0]
    """
    values = one.relevance.detach().double().cpu().nan_to_num(0.0, 0.0, 0.0)
    largest = float(values.abs().max()) if len(values) else 0.0
    return [value / largest if largest else 0.0 for value in values.tolist()]


def colours(one: Explained) -> list[tuple[Colour, Colour]]:
    """For each word the colour behind it and one in which it can be read there."""
    values = strengths(one)
    behind = heatmap(np.array([values]), scale=1.0)[0] if values else np.zeros((0, 3), dtype=np.uint8)
    return [((int(r), int(g), int(b)), _ink((int(r), int(g), int(b)))) for r, g, b in behind]


def _ink(behind: Colour) -> Colour:
    light = 0.299 * behind[0] + 0.587 * behind[1] + 0.114 * behind[2]
    return _PAPER if light < _DARK else _INK


def pieces(one: Explained) -> list[tuple[str, int | None]]:
    """The text cut at its words: each piece with the number of its word, or None for what stands between.

    >>> from types import SimpleNamespace
    >>> pieces(SimpleNamespace(text="a fine film.", spans=((0, 1), (2, 6), (7, 11))))
    [('a', 0), (' ', None), ('fine', 1), (' ', None), ('film', 2), ('.', None)]
    """
    found: list[tuple[str, int | None]] = []
    at = 0
    for number, (start, end) in enumerate(one.spans):
        found += [(one.text[at:start], None), (one.text[start:end], number)]
        at = end
    return [piece for piece in [*found, (one.text[at:], None)] if piece[0]]


def terminal(one: Explained, colour: bool = True) -> Text:
    """The text for the terminal: words on their colour, or followed by their strength where there is no colour.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> one = SimpleNamespace(text="a fine film", spans=((0, 1), (2, 6), (7, 11)), relevance=torch.tensor([0.0, 2.0, -1.0]))
    >>> terminal(one, colour=False).plain
    'a(+0.00) fine(+1.00) film(-0.50)'
    """
    shown, values, painted = Text(), strengths(one), colours(one)
    for piece, number in pieces(one):
        if number is None:
            shown.append(" ".join(piece.split("\n")))
        elif colour:
            behind, ink = painted[number]
            shown.append(piece, style=f"rgb({','.join(map(str, ink))}) on rgb({','.join(map(str, behind))})")
        else:
            # The sum with zero turns −0.00 into +0.00.
            shown.append(f"{piece}({round(values[number], 2) + 0.0:+.2f})")
    return shown


_STYLE = """
:root { color-scheme: light; }
body { font: 17px/2 system-ui, sans-serif; margin: 2rem auto; max-width: 50rem; padding: 0 1rem; color: #141414; background: #fff; }
h1 { font-size: 1.25rem; line-height: 1.3; }
h2 { font-size: .85rem; font-weight: 400; line-height: 1.4; color: #6e6e6e; margin: 1.6rem 0 0; }
p { margin: .2rem 0; overflow-wrap: anywhere; white-space: pre-wrap; }
span { border-radius: .2em; padding: .15em .1em; }
footer { font-size: .85rem; line-height: 1.4; color: #6e6e6e; margin-top: 2rem; }
""".strip()


def page(lines: Sequence[Line], title: str = "Words") -> str:
    """All texts as one HTML page that needs nothing else; whatever a text holds stays text.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> one = SimpleNamespace(text="<b>fine", spans=((0, 7),), relevance=torch.tensor([1.0]))
    >>> "<b>" in page([Line(one)])
    False
    """
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
    ]
    for line in lines:
        parts += [f"<h2>{html.escape(line.caption)}</h2>"] if line.caption else []
        parts.append(f"<p>{marked(line.explained)}</p>")
    said = "Red speaks for the class, blue against; full colour is the strongest word of each text. Point at a word for its number."
    return "\n".join([*parts, f"<footer>{said}</footer>", "</body></html>", ""])


def marked(one: Explained) -> str:
    """The text as HTML, every word on its colour with its strength as a title; whatever it holds stays text."""
    painted, values, shown = colours(one), strengths(one), []
    for piece, number in pieces(one):
        if number is None:
            shown.append(html.escape(piece))
        else:
            behind, ink = (f"#{r:02x}{g:02x}{b:02x}" for r, g, b in painted[number])
            style = f"background:{behind};color:{ink}"
            shown.append(f'<span style="{style}" title="{values[number]:+.3f}">{html.escape(piece)}</span>')
    return "".join(shown)


def picture(lines: Sequence[Line], title: str = "", *, width: int = 1000, font_size: int = 26) -> np.ndarray:
    """All texts below each other on white, uint8 (height, width, 3); lines too long for the width are broken between words."""
    if not lines:
        raise AbslrpError("there is no text to draw: give at least one.")
    letters = title + "".join(line.caption + line.explained.text for line in lines)
    font, small, large = (font_for(letters, round(font_size * factor)) for factor in (1.0, 0.62, 1.0))
    margin, high = font_size, round(font_size * 1.55)
    placed = [_placed(line.explained, font, width - 2 * margin) for line in lines]
    captions = [_broken(line.caption, small, width - 2 * margin) if line.caption else [] for line in lines]
    heads = _broken(title, large, width - 2 * margin) if title else []
    step, gap = round(font_size * 0.85), round(font_size * 0.5)
    heights = [
        len(c) * step + (1 + max(row for row, *_ in p)) * high + gap for c, p in zip(captions, placed, strict=True)
    ]
    sheet = Image.new("RGB", (width, 2 * margin + len(heads) * high + sum(heights)), "white")
    draw = ImageDraw.Draw(sheet)
    top = margin
    for head in heads:
        draw.text((margin, top), head, fill=_INK, font=large)
        top += high
    for line, words, said in zip(lines, placed, captions, strict=True):
        for caption in said:
            draw.text((margin, top), caption, fill=_GREY, font=small)
            top += step
        _draw_words(draw, line.explained, words, (margin, top), high, font)
        top += (1 + max(row for row, *_ in words)) * high + gap
    return np.asarray(sheet)


Placed = tuple[int, float, str, "int | None"]
"""Row and distance from the left of a piece, the piece, and its word."""


def _placed(one: Explained, font: object, width: int) -> list[Placed]:
    """Where each piece stands; a word alone wider than the line is cut."""
    found: list[Placed] = []
    row, left = 0, 0.0
    for piece, number in pieces(one):
        shown = " ".join(piece.split("\n"))
        if number is None and not left:
            shown = shown.lstrip()
        for part in _cut(shown, font, width):
            wide = _length(part, font)
            if left and left + wide > width:
                row, left, part = row + 1, 0.0, part.lstrip()
                wide = _length(part, font)
            if part:
                found.append((row, left, part, number))
                left += wide
    return found


def _cut(text: str, font: object, width: int) -> list[str]:
    parts = [""]
    for letter in text:
        if parts[-1] and _length(parts[-1] + letter, font) > width:
            parts.append("")
        parts[-1] += letter
    return parts


def _length(text: str, font: object) -> float:
    return float(font.getlength(text))  # type: ignore[attr-defined]


def _broken(text: str, font: object, width: int) -> list[str]:
    """A text in lines of at most this width, broken at blanks."""
    rows = [""]
    for word in text.split():
        longer = f"{rows[-1]} {word}".strip()
        if rows[-1] and _length(longer, font) > width:
            rows.append(word)
        else:
            rows[-1] = longer
    return [part for row in rows for part in _cut(row, font, width)]


def _draw_words(
    draw: ImageDraw.ImageDraw,
    one: Explained,
    words: Sequence[Placed],
    corner: tuple[int, int],
    high: int,
    font: object,
) -> None:
    painted = colours(one)
    pad = max(1, round(high * 0.08))
    boxed = [(row, number is not None) for row, _, _, number in words]
    for k, (row, left, part, number) in enumerate(words):
        x, y = corner[0] + left, corner[1] + row * high
        if number is not None:
            # No room is taken from a neighbour that touches, such as the word before a comma.
            before, after = (0 <= n < len(words) and boxed[n] == (row, True) for n in (k - 1, k + 1))
            box = (x - pad * (not before), y + pad, x + _length(part, font) + (-1 if after else pad), y + high - pad)
            draw.rounded_rectangle(box, radius=2 * pad, fill=painted[number][0])
        ink = painted[number][1] if number is not None else _INK
        draw.text((x, y + high / 2), part, fill=ink, font=font, anchor="lm")  # type: ignore[arg-type]
