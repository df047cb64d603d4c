"""What results look like in a notebook: pictures of maps, tables of scores."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from abslrp.reporting.heatmaps import grid, heatmap, overlay
from abslrp.types import AbslrpError

if TYPE_CHECKING:
    from abslrp.types import Attribution, Scores

MOST = 16
_COLUMNS = 4
_SMALLEST = 112


def overlays(a: Attribution, images: Any = None, **settings: Any) -> np.ndarray:
    """Every map over its image, uint8 (batch, height, width, 3); see :meth:`abslrp.Attribution.overlay`."""
    _check(a)
    given = _photographs(a, images)
    return np.stack([overlay(one, photo, **settings) for one, photo in zip(a.maps, given, strict=True)])


def picture(a: Attribution, *, plain: bool = False, **settings: Any) -> np.ndarray:
    """The maps as one picture: a single one by itself, several as a grid with their classes, at most 16.

    Maps lie over their inputs unless these are unknown or ``plain`` is asked for.

    >>> from abslrp.types import Attribution
    >>> a = Attribution(torch.ones(3, 1, 8, 8), torch.tensor([0, 1, 1]), torch.zeros(3, 2), "abslrp")
    >>> picture(a).shape[2]
    3
    """
    _check(a)
    few = a[:MOST]
    over = few.inputs is not None and not plain
    cells = list(overlays(few, **settings)) if over else [heatmap(one, **settings) for one in few.maps]
    if len(a) == 1:
        return cells[0]
    chances = few.outputs.double().softmax(1)
    labels = [f"class {k} {float(chances[row, k]):.0%}" for row, k in enumerate(few.targets.tolist())]
    more = f", the first {MOST} of {len(a)}" if len(a) > MOST else ""
    large = [_enlarged(cell) for cell in cells]
    return grid(large, _COLUMNS, labels, f"{a.method}{more}: red speaks for the class, blue against", font_size=14)


def drawable(a: Attribution) -> bool:
    """Whether maps are pictures: (batch, channel, height, width), with more than a point."""
    return a.maps.ndim == 4 and a.maps.shape[2] > 1 and a.maps.shape[3] > 1


def png(made: np.ndarray) -> bytes:
    """A picture as a PNG file.

    >>> png(np.zeros((2, 2, 3), dtype=np.uint8))[1:4]
    b'PNG'
    """
    buffer = io.BytesIO()
    Image.fromarray(made).save(buffer, format="PNG")
    return buffer.getvalue()


def show(made: np.ndarray) -> None:
    """Show a picture: in the notebook if there is one, else in the machine's own viewer."""
    image = Image.fromarray(made)
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ModuleNotFoundError:
        image.show()
        return
    if get_ipython() is None:
        image.show()
    else:
        display(image)


def scores_html(scores: Scores) -> str:
    """A table of means with the best of each metric in bold, and how many maps were flagged.

    >>> from abslrp.types import Score, Scores
    >>> one = Score("gae", "<a>", torch.tensor([0.25, 0.75]), ("a", "b"), True, {}, ((), ("constant",)))
    >>> "<strong>0.500</strong> <small>1 flagged</small>" in scores_html(Scores({"gae": {"<a>": one}}))
    True
    """
    methods = list(dict.fromkeys(method for rows in scores.values() for method in rows))
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in ["method", *map(str, _heads(scores))])
    rows = []
    for method in methods:
        cells = "".join(f"<td>{_cell(scores, metric, method)}</td>" for metric in scores)
        rows.append(f'<tr><th scope="row" style="text-align:left">{escape(method)}</th>{cells}</tr>')
    count = max((len(one) for rows_of in scores.values() for one in rows_of.values()), default=0)
    return (
        f"<table><caption>means over {count} {'item' if count == 1 else 'items'}</caption><thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _heads(scores: Scores) -> list[str]:
    return [f"{metric} {'↑' if next(iter(rows.values())).higher_is_better else '↓'}" for metric, rows in scores.items()]


def _cell(scores: Scores, metric: str, method: str) -> str:
    one = scores[metric].get(method)
    if one is None:
        return "—"
    means = [other.mean for other in scores[metric].values()]
    best = one.mean == (max(means) if one.higher_is_better else min(means))
    said = f"<strong>{one.mean:.3f}</strong>" if best else f"{one.mean:.3f}"
    return f"{said} <small>{one.flagged} flagged</small>" if one.flagged else said


def _check(a: Attribution) -> None:
    if not drawable(a):
        raise AbslrpError(
            f"maps of shape {tuple(a.maps.shape)} are no pictures: draw those of images (batch, channel, height, width)."
        )


def _photographs(a: Attribution, images: Any) -> Sequence[np.ndarray | Image.Image]:
    """Pictures to lie under the maps: as given, or the inputs, stretched from their darkest to their lightest."""
    if images is None:
        if a.inputs is None:
            raise AbslrpError("this attribution does not know its images: give them, a.overlay(images).")
        return [_stretched(one) for one in a.inputs]
    given = [images] if isinstance(images, (Image.Image, np.ndarray)) and _single(images) else list(images)
    if len(given) != len(a):
        raise AbslrpError(f"{len(given)} images for {len(a)} maps: give one each.")
    return [_stretched(one) if isinstance(one, torch.Tensor) else one for one in given]


def _single(image: Image.Image | np.ndarray) -> bool:
    return isinstance(image, Image.Image) or image.ndim < 4


def _stretched(one: torch.Tensor) -> np.ndarray:
    """An input (channel, height, width) as grey, whatever its normalisation was."""
    grey = one.detach().float().mean(0).cpu().numpy()
    low, high = (float(np.percentile(grey, p)) for p in (1, 99))
    values = np.clip((grey - low) / (high - low), 0, 1) if high > low else np.full_like(grey, 0.5)
    made: np.ndarray = np.round(values * 255).astype(np.uint8)
    return made


def _enlarged(cell: np.ndarray) -> np.ndarray:
    factor = -(-_SMALLEST // min(cell.shape[:2]))
    return cell.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else cell
