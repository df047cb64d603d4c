"""Pictures small enough to lie inside a page, as data URIs."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image, ImageDraw

from abslrp.reporting.heatmaps import Mode, heatmap, overlay

_QUALITY = 82


def photograph(image: np.ndarray, size: int = 160) -> str:
    """An image (height, width, 3) as a thumbnail whose longer edge is ``size`` at most.

    >>> photograph(np.zeros((40, 40, 3), dtype=np.uint8)).startswith("data:image/jpeg;base64,")
    True
    """
    return _uri(_fitted(image, size))


def laid_over(relevance: np.ndarray, image: np.ndarray, size: int = 160, *, positive: bool = False) -> str:
    """A map (height, width) over its image; one that is nowhere negative is drawn from its lowest place on.

    >>> laid_over(np.eye(8), np.zeros((8, 8, 3), dtype=np.uint8))[:15]
    'data:image/jpeg'
    """
    small = np.asarray(_fitted(image, size))
    # Averaged before it is coloured: mixed afterwards, red and blue would give a purple that means nothing.
    values, mode = _drawable(_reduced(relevance, small.shape[:2]), positive)
    return _uri(Image.fromarray(overlay(values, small, mode=mode)))


def alone(relevance: np.ndarray, size: int = 160, *, positive: bool = False, full: float | None = None) -> str:
    """A map (height, width) by itself, red for and blue against; ``full`` times its largest value has full colour.

    >>> alone(np.eye(8))[:15]
    'data:image/jpeg'
    """
    height, width = relevance.shape
    factor = min(1.0, size / max(height, width))
    values = _reduced(relevance, (max(1, round(height * factor)), max(1, round(width * factor))))
    scale = full * float(np.abs(values).max()) if full and np.any(values) else None
    return _uri(Image.fromarray(heatmap(values, mode="positive" if positive else "diverging", scale=scale)))


def outlined(image: np.ndarray, place: int) -> np.ndarray:
    """A mosaic with a frame around one of its quarters, counted row by row.

    >>> outlined(np.zeros((40, 40, 3), dtype=np.uint8), 3)[39, 39].tolist()
    [255, 255, 255]
    """
    picture = Image.fromarray(image).convert("RGB")
    wide, high = picture.width // 2, picture.height // 2
    left, top = (place % 2) * wide, (place // 2) * high
    right, bottom = (picture.width if place % 2 else wide) - 1, (picture.height if place // 2 else high) - 1
    line = max(2, picture.width // 75)
    draw = ImageDraw.Draw(picture)
    # Dark within light: it stands out from any photograph.
    draw.rectangle((left, top, right, bottom), outline=(255, 255, 255), width=line)
    draw.rectangle(
        (left + line, top + line, right - line, bottom - line), outline=(16, 16, 16), width=max(1, line // 2)
    )
    return np.asarray(picture)


def _drawable(relevance: np.ndarray, positive: bool) -> tuple[np.ndarray, Mode]:
    if positive:
        return relevance, "positive"
    # A map without a sign has no zero of its own: what counts is how far it rises above its lowest place.
    return (relevance, "diverging") if (relevance < 0).any() else (relevance - relevance.min(), "positive")


def _reduced(relevance: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """A map (height, width) averaged down to a size; a smaller one stays as it is."""
    height, width = size
    values = np.nan_to_num(np.asarray(relevance, dtype=np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    if values.shape[0] <= height and values.shape[1] <= width:
        return values
    return np.asarray(Image.fromarray(values).resize((width, height), Image.Resampling.BOX))


def _fitted(image: np.ndarray, size: int) -> Image.Image:
    picture = Image.fromarray(np.ascontiguousarray(image)).convert("RGB")
    factor = size / max(picture.size)
    if factor >= 1:
        return picture
    return picture.resize(
        (max(1, round(picture.width * factor)), max(1, round(picture.height * factor))), Image.Resampling.LANCZOS
    )


def _uri(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    # Without subsampling, since colour is what a map says.
    picture.save(buffer, format="JPEG", quality=_QUALITY, subsampling=0, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
