"""Words in colour: the same colours as maps, nothing of the text lost, nothing of it taken for markup."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from rich.console import Console

from abslrp.reporting import words
from abslrp.reporting.heatmaps import heatmap
from abslrp.types import AbslrpError


@dataclass(frozen=True)
class One:
    text: str
    spans: tuple[tuple[int, int], ...]
    relevance: torch.Tensor


def one(text: str, values: list[float]) -> One:
    spans = tuple(match.span() for match in re.finditer(r"\S+", text))
    return One(text, spans, torch.tensor(values))


FINE = one("a  fine <b>film</b>\nbut & long", [0.1, 2.0, -1.0, 0.0, float("nan"), -2.0])


def test_colours_are_those_of_maps_and_can_be_read() -> None:
    found = words.colours(FINE)
    expected = heatmap(np.array([[0.05, 1.0, -0.5, 0.0, 0.0, -1.0]]), scale=1.0)[0]
    assert [behind for behind, _ in found] == [tuple(map(int, colour)) for colour in expected]
    for behind, ink in found:
        assert abs(sum(behind) - sum(ink)) > 250
    red, blue = found[1][0], found[5][0]
    assert red[0] > red[2] and blue[2] > blue[0] and found[3][0] == (255, 255, 255)


def test_a_text_without_relevance_is_white() -> None:
    assert {behind for behind, _ in words.colours(one("a film", [0.0, 0.0]))} == {(255, 255, 255)}


def test_the_page_holds_the_text_and_no_markup_of_it() -> None:
    evil = '</title><script>alert("1")</script>'
    page = words.page([words.Line(FINE, evil), words.Line(one(evil, [1.0]))], evil)
    body = page.split("<body>")[1]
    assert "<script" not in page and "<b>" not in page and "http://" not in page and "https://" not in page
    shown = re.search(r"<p>(.*?)</p>", body, flags=re.DOTALL)
    assert shown is not None and html.unescape(re.sub(r"<[^>]*>", "", shown[1])) == FINE.text
    assert '<span style="background:#70041c;color:#ffffff" title="+1.000">fine</span>' in body
    assert '<span style="background:#0a2266;color:#ffffff" title="-1.000">long</span>' in body


def test_the_terminal_without_colour_tells_numbers() -> None:
    said = words.terminal(FINE, colour=False).plain
    assert said == "a(+0.05)  fine(+1.00) <b>film</b>(-0.50) but(+0.00) &(+0.00) long(-1.00)"


def test_the_terminal_with_colour_keeps_the_text_and_its_brackets() -> None:
    tricky = one("[red]a film[/red] [bold", [1.0, -1.0, 0.5])
    console = Console(force_terminal=True, color_system="truecolor", width=80, no_color=False)
    with console.capture() as caught:
        console.print(words.terminal(tricky))
    said = caught.get()
    assert "48;2;112;4;28m" in said and "48;2;10;34;102m" in said
    assert re.sub(r"\x1b\[[^m]*m", "", said).strip() == tricky.text


@pytest.mark.parametrize("text", ["a fine film " * 30, "long" * 200, "žluťoučký film 電影"])
def test_the_picture_breaks_lines_and_stays_inside(text: str) -> None:
    text = text.strip()
    count = len(text.split())
    drawn = words.picture([words.Line(one(text, [1.0] * count), "positive 99 %")], "title", width=500)
    assert drawn.shape[1] == 500 and drawn.dtype == np.uint8
    for edge in (drawn[:, :4], drawn[:, -4:], drawn[:4], drawn[-4:]):
        assert (edge == 255).all()
    full = np.array([112, 4, 28])
    assert (drawn == full).all(-1).any()
    placed = words._placed(one(text, [1.0] * count), words.font_for(text, 26), 448)
    assert "".join(part for *_, part, _ in placed).replace(" ", "") == text.replace(" ", "")
    assert max(row for row, *_ in placed) >= (2 if len(text) > 100 else 0)


def test_nothing_to_draw_gets_one_sentence() -> None:
    with pytest.raises(AbslrpError, match="there is no text to draw"):
        words.picture([])
