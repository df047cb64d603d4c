"""Maps of several classes and methods side by side on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from abslrp.reporting.heatmaps import grid, overlay
from abslrp.types import AbslrpError

Key = tuple[str, str]
"""What a map is of: the class as it is called on screen, and the method."""

Maps = Mapping[Key, "torch.Tensor | np.ndarray"]
_PERCENTILE = 99.5
_ROWS, _COLUMNS = ("upper", "middle", "lower"), ("left", "centre", "right")


def share(relevance: torch.Tensor | np.ndarray) -> np.ndarray:
    """A map (channel, height, width) or (height, width) as each pixel's share of all its relevance, Σ|r| = 1.

    Maps of different methods have different units; their shares can be compared.

    >>> share(np.array([[3.0, -1.0]])).tolist()
    [[0.75, -0.25]]
    """
    if isinstance(relevance, torch.Tensor):
        relevance = relevance.detach().cpu().numpy()
    values = np.nan_to_num(np.asarray(relevance, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    if values.ndim not in (2, 3) or 0 in values.shape:
        raise AbslrpError(f"a map of shape {tuple(values.shape)} is no picture: give (channel, height, width).")
    plane = values.sum(axis=0) if values.ndim == 3 else values
    # A map that is equal everywhere says nothing, and is drawn so.
    plane = plane - plane.min() if (plane >= 0).all() else plane
    total = np.abs(plane).sum()
    return plane / total if total > 0 else plane


def full_colour(shares: Sequence[np.ndarray]) -> float:
    """The share of relevance that has full colour: the median of what the maps would choose, each for itself.

    >>> full_colour([np.array([[0.5, 0.5]]), np.array([[0.9, 0.1]]), np.array([[0.6, 0.4]])]) > 0.5
    True
    """
    own = [_own(one) for one in shares]
    return float(np.median([one for one in own if one > 0] or [1.0]))


def differences(maps: Maps) -> dict[Key, np.ndarray]:
    """Every method's map of the first class less that of the second, in shares; none where there is one class.

    >>> found = differences({("cat", "a"): np.array([[1.0, 0.0, -1.0]]), ("dog", "a"): np.array([[0.0, 1.0, -1.0]])})
    >>> {key: value.tolist() for key, value in found.items()}
    {('cat less dog', 'a'): [[0.5, -0.5, 0.0]]}
    """
    classes = list(dict.fromkeys(name for name, _ in maps))
    if len(classes) < 2:
        return {}
    first, second = classes[:2]
    both = [method for name, method in maps if name == first and (second, method) in maps]
    return {
        (f"{first} less {second}", method): share(maps[first, method]) - share(maps[second, method]) for method in both
    }


def pictures(
    maps: Maps,
    picture: np.ndarray,
    *,
    opacity: float = 0.95,
    against: float = 1.0,
    one_scale: bool = True,
    compare: bool = False,
) -> dict[Key, np.ndarray]:
    """Every map over its picture (height, width, 3), red for the class and blue against it.

    ``opacity`` is how far the colour covers the picture, ``against`` how much of what speaks against the class is shown: 0
    leaves the positive part alone. With ``one_scale`` the same colour is the same share of relevance in all of them.
    ``compare`` adds the difference of the first two classes.

    >>> made = pictures({("cat", "a"): np.array([[1.0, -1.0]])}, np.zeros((1, 2, 3), dtype=np.uint8), opacity=1.0, against=0.0)
    >>> made["cat", "a"][0].tolist()
    [[226, 20, 30], [120, 120, 120]]
    """
    for name, value in (("opacity", opacity), ("against", against)):
        if not 0 <= value <= 1:
            raise AbslrpError(f"{name} is {value}: give a number from 0 to 1.")
    plain = {key: share(one) for key, one in maps.items()}
    scale = full_colour(list(plain.values()))
    shown = {key: np.where(one < 0, one * against, one) for key, one in plain.items()}
    # A difference has its own two signs, both of which count.
    shown |= differences(maps) if compare else {}
    return {
        key: overlay(one, picture, alpha=opacity, scale=scale if one_scale else _own(one) or None)
        for key, one in shown.items()
    }


def sheet(
    maps: Maps,
    picture: np.ndarray,
    *,
    title: str | None = None,
    opacity: float = 0.95,
    against: float = 1.0,
    one_scale: bool = True,
    compare: bool = False,
) -> np.ndarray:
    """The picture and all maps as one picture, a class a row and a method a column; see :func:`pictures`.

    >>> sheet({("cat", "a"): np.eye(40)}, np.zeros((40, 40, 3), dtype=np.uint8)).ndim
    3
    """
    made = pictures(maps, picture, opacity=opacity, against=against, one_scale=one_scale, compare=compare)
    if not made:
        raise AbslrpError("there is no map to draw: choose at least one class and one method.")
    cells, labels = [], []
    methods = list(dict.fromkeys(method for _, method in made))
    for name in dict.fromkeys(name for name, _ in made):
        cells.append(picture)
        labels.append(name)
        for method in methods:
            cells.append(made.get((name, method), np.full_like(picture, 255)))
            labels.append(method if (name, method) in made else "")
    return grid(cells, 1 + len(methods), labels, title, font_size=15)


def where(relevance: torch.Tensor | np.ndarray) -> str:
    """In words, the ninth of the picture that holds most of what speaks for the class, and how much of it.

    >>> where(np.eye(9)[:3].repeat(3, 0) * np.eye(9)[0]), where(np.zeros((3, 3)))
    ('100% of what speaks for it lies in the upper left', 'nothing speaks for it')
    """
    values = np.maximum(share(relevance), 0)
    if not values.any():
        return "nothing speaks for it"
    parts = [[float(cell.sum()) for cell in np.array_split(row, 3, axis=1)] for row in np.array_split(values, 3)]
    row, column = divmod(int(np.argmax(parts)), 3)
    place = "centre" if (row, column) == (1, 1) else f"{_ROWS[row]} {_COLUMNS[column]}"
    return f"{parts[row][column] / values.sum():.0%} of what speaks for it lies in the {place}"


def _own(values: np.ndarray) -> float:
    sizes = np.abs(values)
    full = float(np.percentile(sizes, _PERCENTILE))
    return full if full > 0 else float(sizes.max())
