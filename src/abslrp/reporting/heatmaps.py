"""Maps of relevance as pictures, plain, laid over the image, and side by side; arrays out, PNG out."""

from __future__ import annotations

import importlib.util
import math
import os
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from abslrp.types import AbslrpError

Mode = Literal["diverging", "positive"]

# From zero outwards, evenly spaced in relevance; lightness falls steadily so that the map also reads in grey.
_FOR = np.array([(255, 255, 255), (253, 205, 172), (244, 120, 84), (208, 34, 44), (112, 4, 28)], dtype=np.float64)
_AGAINST = np.array([(255, 255, 255), (184, 214, 240), (98, 160, 218), (34, 92, 176), (10, 34, 102)], dtype=np.float64)
# Over a photograph: strong, and of middling lightness, so that they stand out from light and dark.
_FOR_INK = np.array((226, 20, 30), dtype=np.float64)
_AGAINST_INK = np.array((20, 84, 232), dtype=np.float64)
_INK, _RULE = (30, 30, 30), (150, 150, 150)


def heatmap(
    relevance: torch.Tensor | np.ndarray,
    *,
    mode: Mode = "diverging",
    percentile: float = 99.5,
    scale: float | None = None,
    size: tuple[int, int] | None = None,
) -> np.ndarray:
    """Colour a map (channel, height, width) or (height, width), channels summed, as uint8 (height, width, 3).

    Diverging: red speaks for the class, blue against, white is zero, full colour at plus and minus the given
    percentile of the magnitudes, or at ``scale`` if that is given, so that several maps share one measure. Positive:
    what speaks against is dropped. ``size`` (height, width) enlarges in sharp pixels and reduces by averaging. Values
    that are not numbers count as zero.

    >>> heatmap(np.array([[1.0, 0.0, -1.0]]))[0].tolist()
    [[112, 4, 28], [255, 255, 255], [10, 34, 102]]
    """
    values = _scaled(relevance, mode, percentile, scale, size)
    return np.round(np.where(values[..., None] >= 0, _ramp(values, _FOR), _ramp(-values, _AGAINST))).astype(np.uint8)


def overlay(
    relevance: torch.Tensor | np.ndarray,
    image: np.ndarray | Image.Image,
    *,
    alpha: float = 0.95,
    mode: Mode = "diverging",
    percentile: float = 99.5,
    scale: float | None = None,
    size: tuple[int, int] | None = None,
) -> np.ndarray:
    """Lay a map in colour over its image in pale grey, uint8 (height, width, 3) at the image's size or at ``size``.

    The colour covers the image as strongly as the relevance is, up to ``alpha``; where the map is zero the image shows.

    >>> overlay(np.array([[1.0, 0.0]]), np.zeros((1, 2, 3), dtype=np.uint8), alpha=1.0)[0].tolist()
    [[226, 20, 30], [120, 120, 120]]
    """
    if not 0 <= alpha <= 1:
        raise AbslrpError(f"alpha is {alpha}: give a number from 0 to 1.")
    photo = _photograph(image)
    height, width = size or (photo.height, photo.width)
    if (photo.height, photo.width) != (height, width):
        photo = photo.resize((width, height), Image.Resampling.LANCZOS)
    # Black becomes dark grey and white light grey: the picture keeps its shapes and leaves room for ink on either end.
    pale = 120 + np.asarray(photo.convert("L"), dtype=np.float64)[..., None] * (130 / 255)
    values = _scaled(relevance, mode, percentile, scale, (height, width))
    ink = np.where(values[..., None] >= 0, _FOR_INK, _AGAINST_INK)
    # Below 1, since faint colour over a photograph is seen less than on white.
    cover = alpha * np.abs(values)[..., None] ** 0.7
    return np.round(pale * (1 - cover) + ink * cover).astype(np.uint8)


def grid(
    images: Sequence[np.ndarray | Image.Image],
    columns: int,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    *,
    groups: Sequence[str] | None = None,
    cell: tuple[int, int] | None = None,
    font_size: int = 18,
) -> np.ndarray:
    """Set pictures side by side on white, row by row, each with its label below; uint8 (height, width, 3).

    ``cell`` (height, width) is the room for each picture, by default that of the largest; smaller ones are centred,
    larger ones are scaled down to fit. Labels too long for their cell go over two lines and then end in dots. ``groups``
    names the group of each picture: neighbours of one group stand under a line with its name, and are not parted where
    they fit into a row.

    >>> grid([np.zeros((40, 60, 3), dtype=np.uint8)] * 3, columns=2, labels=["a", "b", "c"]).ndim
    3
    """
    if not images or columns < 1:
        raise AbslrpError(f"a grid of {len(images)} pictures in {columns} columns is empty: give at least one of each.")
    for given, what in ((labels, "label"), (groups, "group")):
        if given is not None and len(given) != len(images):
            raise AbslrpError(f"{len(given)} {what}s for {len(images)} pictures: give one {what} each.")
    pictures = [_photograph(image) for image in images]
    high, wide = cell or (max(one.height for one in pictures), max(one.width for one in pictures))
    words = "".join([*(labels or []), *(groups or []), title or ""])
    font, heading = font_for(words, font_size), font_for(words, round(font_size * 1.5))
    gap, line = max(8, font_size), round(font_size * 1.3)
    texts = [_wrapped(text, wide, font) for text in labels or []]
    caption = line * max((len(text) for text in texts), default=0) + (gap // 2 if texts else 0)
    above = line + gap // 2 if groups else 0
    margin = 2 * gap
    columns = min(columns, len(pictures))
    places = _places(groups or [""] * len(pictures), columns)
    rows = places[-1][0] + 1
    width = 2 * margin + columns * wide + (columns - 1) * gap
    titles = _wrapped(title, width - 2 * margin, heading) if title else []
    top = margin + (round(line * 1.5) * len(titles) + gap // 2 if titles else 0)
    high_row = above + high + caption
    sheet = Image.new("RGB", (width, top + rows * high_row + (rows - 1) * gap + margin), "white")
    draw = ImageDraw.Draw(sheet)
    for number, text in enumerate(titles):
        draw.text((margin, margin + number * round(line * 1.5)), text, fill=_INK, font=heading)
    for first, last, name in _runs(groups or [], places):
        left, upper = margin + places[first][1] * (wide + gap), top + places[first][0] * (high_row + gap)
        across = (last - first) * (wide + gap) + wide
        draw.text((left, upper), _shortened(name, across, font), fill=_INK, font=font)
        draw.line((left, upper + line, left + across - 1, upper + line), fill=_RULE, width=max(1, font_size // 9))
    for number, picture in enumerate(pictures):
        row, column = places[number]
        left, upper = margin + column * (wide + gap), top + row * (high_row + gap) + above
        fitted = _fitted(picture, high, wide)
        sheet.paste(fitted, (left + (wide - fitted.width) // 2, upper + (high - fitted.height) // 2))
        for count, text in enumerate(texts[number] if texts else []):
            position = (left + wide / 2, upper + high + gap // 4 + count * line)
            draw.text(position, text, fill=_INK, font=font, anchor="ma")
    return np.asarray(sheet)


def save_png(picture: np.ndarray | Image.Image, path: str | os.PathLike[str], *, colours: int | None = None) -> Path:
    """Write a picture as PNG in one step, so that no half-written file is ever seen; missing folders are made.

    ``colours``, up to 256, makes a small file of as many colours, chosen to suit the picture.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_png(np.zeros((2, 2, 3), dtype=np.uint8), Path(folder, "maps", "a.png")).name
    'a.png'
    """
    image = _photograph(picture)
    if colours is not None:
        if not 2 <= colours <= 256:
            raise AbslrpError(f"colours is {colours}: give a whole number from 2 to 256, or None for all of them.")
        image = _with_colours(image, colours)
    return write_whole(path, lambda file: image.save(file, format="PNG", optimize=True))


def write_whole(path: str | os.PathLike[str], write: Any) -> Path:
    """Let ``write`` fill a file beside ``path`` and put it in its place when it is whole.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "a.txt"), lambda file: file.write(b"done")).read_text()
    'done'
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                write(file)
            # A temporary file is private; what is put in its place has the rights of any other new file.
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise AbslrpError(f"{path} cannot be written ({reason}): choose another folder or free the disk.") from error
    return path


def _with_colours(image: Image.Image, colours: int) -> Image.Image:
    """The image in a palette of its own, dithered; what is white stays white."""
    palette = image.quantize(colours, kmeans=1)
    reduced = image.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)
    white = (np.asarray(image) == 255).all(axis=-1)
    if not white.any():
        return reduced
    # Pillow matches colours roughly and would give the paper a tint.
    entries = np.array(reduced.getpalette(), dtype=np.uint8).reshape(-1, 3)
    brightest = entries.sum(axis=1, dtype=np.int64).argmax()
    entries[brightest] = 255
    kept = Image.fromarray(np.where(white, brightest, np.asarray(reduced)).astype(np.uint8))
    kept.putpalette(entries.tobytes())
    return kept


def _places(groups: Sequence[str], columns: int) -> list[tuple[int, int]]:
    """Row and column of each picture. A group that fits into a row is not parted, a longer one starts with half a row.

    >>> _places(["a", "a", "b", "b", "c"], 3)
    [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    """
    places: list[tuple[int, int]] = []
    at = 0
    for _, members in groupby(groups):
        size = len(list(members))
        left = columns - at % columns
        if size > left and (size <= columns or 2 * left < columns):
            at += left
        places += [divmod(at + number, columns) for number in range(size)]
        at += size
    return places


def _runs(groups: Sequence[str], places: Sequence[tuple[int, int]]) -> list[tuple[int, int, str]]:
    """First and last of the neighbours that are of one group and in one row, and the group."""
    runs = groupby(range(len(groups)), key=lambda number: (groups[number], places[number][0]))
    return [(run[0], run[-1], name) for (name, _), run in ((key, list(members)) for key, members in runs)]


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


def _scaled(
    relevance: torch.Tensor | np.ndarray,
    mode: str,
    percentile: float,
    scale: float | None,
    size: tuple[int, int] | None,
) -> np.ndarray:
    """The map (height, width) between -1 and 1, full at the scale."""
    if mode not in ("diverging", "positive"):
        raise AbslrpError(f"mode {mode!r} is unknown: use 'diverging' or 'positive'.")
    if not 0 < percentile <= 100:
        raise AbslrpError(f"percentile is {percentile}: give a number above 0 and up to 100.")
    if scale is not None and not (scale > 0 and math.isfinite(scale)):
        raise AbslrpError(f"scale is {scale}: give a number above 0, the relevance that has full colour.")
    values = _plane(relevance)
    if mode == "positive":
        values = np.maximum(values, 0)
    full = scale or _robust_maximum(np.abs(values), percentile)
    if size is not None and values.shape != size:
        height, width = size
        values = np.asarray(Image.fromarray(values.astype(np.float32)).resize((width, height), Image.Resampling.BOX))
    return np.clip(values / full, -1, 1) if full > 0 else np.zeros_like(values)


def _plane(relevance: torch.Tensor | np.ndarray) -> np.ndarray:
    if isinstance(relevance, torch.Tensor):
        relevance = relevance.detach().to("cpu", torch.float64).numpy()
    values = np.asarray(relevance, dtype=np.float64)
    if values.ndim not in (2, 3) or 0 in values.shape:
        raise AbslrpError(f"a map of shape {tuple(values.shape)} is no picture: give (channel, height, width).")
    finite = values[np.isfinite(values)]
    bound = float(np.abs(finite).max()) if finite.size else 0.0
    values = np.nan_to_num(values, nan=0.0, posinf=bound, neginf=-bound)
    return values if values.ndim == 2 else values.sum(axis=0)


def _robust_maximum(magnitudes: np.ndarray, percentile: float) -> float:
    full = float(np.percentile(magnitudes, percentile))
    # A map with fewer non-zero pixels than the percentile leaves out is still a map.
    return full if full > 0 else float(magnitudes.max())


def _ramp(values: np.ndarray, stops: np.ndarray) -> np.ndarray:
    positions = np.linspace(0, 1, len(stops))
    return np.stack([np.interp(values, positions, stops[:, channel]) for channel in range(3)], axis=-1)


def _photograph(image: np.ndarray | Image.Image) -> Image.Image:
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
        raise AbslrpError(
            f"a picture of shape {tuple(image.shape)} and type {image.dtype} is none: give uint8 (height, width, 3)."
        )
    return Image.fromarray(np.ascontiguousarray(image)).convert("RGB")


def _fitted(picture: Image.Image, high: int, wide: int) -> Image.Image:
    factor = min(high / picture.height, wide / picture.width)
    if factor >= 1:
        return picture
    return picture.resize(
        (max(1, round(picture.width * factor)), max(1, round(picture.height * factor))), Image.Resampling.LANCZOS
    )


def font_for(words: str, size: int) -> Any:
    """Pillow's own font; for letters beyond ASCII, which it lacks, the one that comes with matplotlib, where it is."""
    found = None if words.isascii() else importlib.util.find_spec("matplotlib")
    if found is not None and found.submodule_search_locations:
        file = Path(found.submodule_search_locations[0], "mpl-data", "fonts", "ttf", "DejaVuSans.ttf")
        if file.is_file():
            return ImageFont.truetype(str(file), size)
    return ImageFont.load_default(size)


def _wrapped(text: str, width: int, font: Any) -> list[str]:
    """Break a label into its own lines, each of those into at most two of the given width."""
    return [part for line in text.split("\n") for part in _two_lines(line, width, font)]


def _two_lines(text: str, width: int, font: Any) -> list[str]:
    if font.getlength(text) <= width:
        return [text]
    words, first = text.split(" "), ""
    while words and font.getlength(f"{first} {words[0]}".strip()) <= width:
        first = f"{first} {words.pop(0)}".strip()
    if not first:
        return [_shortened(text, width, font)]
    return [first, _shortened(" ".join(words), width, font)]


def _shortened(text: str, width: int, font: Any) -> str:
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
