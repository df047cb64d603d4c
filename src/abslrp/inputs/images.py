"""Image files to RGB images, and RGB images to what a network sees."""

from __future__ import annotations

import functools
import glob
import io
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from abslrp.inputs.plain import shown
from abslrp.types import AbslrpError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")
"""The endings by which :func:`find_images` knows image files in a folder; a file named outright may have any."""

FORMATS = (
    *("PNG", "JPEG", "MPO", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF"),
    *("ICO", "ICNS", "PCX", "PSD", "SGI", "QOI", "DDS", "XBM", "TGA"),
)
"""What Pillow may decode: not EPS, for which it starts another program, nor formats that it hands to others."""

MOST_PIXELS = 178_956_970
"""More are refused before anything is unpacked; it is Pillow's own bound, which other libraries lift."""

_BAND = 2**22
_LARGE = 2**24

Box = tuple[float, float, float, float]
"""The edges (x0, y0, x1, y1) of a rectangle in pixels; the image's own are (0, 0, width, height)."""

INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}


def read_image(path: str | os.PathLike[str]) -> Image.Image:
    """Read an image file as RGB: turned as its EXIF says, transparency on white, 16 bit scaled to 8.

    Of a file with several frames or pages it is the first.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("LA", (4, 2), (0, 0)).save(f"{folder}/clear.png")
    ...     image = read_image(f"{folder}/clear.png")
    >>> image.mode, image.size, image.getpixel((0, 0))
    ('RGB', (4, 2), (255, 255, 255))
    """
    path = Path(path)
    if os.path.isdir(path):
        raise AbslrpError(f"{path} is a folder, not an image: name a file in it.")
    if not os.path.exists(path):
        raise AbslrpError(f"{shown(path, 300)} does not exist: name an image file.")
    if not os.path.isfile(path):
        raise AbslrpError(f"{path} is no plain file: name an image file.")
    if path.stat().st_size == 0:
        raise AbslrpError(f"{path} is empty: name an image file with something in it.")
    return decode_image(path, str(path))


def decode_image(source: Path | bytes, name: str) -> Image.Image:
    """Decode a file or its bytes as :func:`read_image` does; what is wrong is told of ``name``."""
    try:
        with open_image(source) as image:
            image.load()
            _turn_upright(image)
            return to_rgb(image)
    except UnidentifiedImageError:
        raise AbslrpError(f"{name} is not an image that Pillow can read: convert it to PNG or JPEG.") from None
    except Image.DecompressionBombError:
        raise AbslrpError(f"{name} has too many pixels to open safely: scale it down first.") from None
    except PermissionError:
        raise AbslrpError(f"{name} may not be read: change its permissions.") from None
    except MemoryError:
        raise AbslrpError(f"{name} does not fit into memory: scale it down first.") from None
    except Exception as error:  # Damaged files surface as anything from OSError to struct.error and SyntaxError.
        reason = shown(" ".join(str(error).split()) or type(error).__name__, 160)
        raise AbslrpError(f"{name} is damaged or cut short ({reason}): get the file again.") from error


@contextmanager
def open_image(source: str | os.PathLike[str] | bytes) -> Iterator[Image.Image]:
    """Open an image as Pillow does, of a format in ``FORMATS`` and of no more than ``MOST_PIXELS``."""
    with warnings.catch_warnings():
        # Pillow warns from 90 megapixels and of much that is odd in a file; the refusals are what matters.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.simplefilter("ignore", UserWarning)
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_formats()) as image:
            if image.width * image.height > MOST_PIXELS:
                raise Image.DecompressionBombError(f"{image.width} by {image.height} pixels")
            yield image


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def to_rgb(image: Image.Image) -> Image.Image:
    """Turn an image of any Pillow mode into RGB, transparency laid on white, deep grey values scaled to 8 bit.

    >>> to_rgb(Image.fromarray(np.array([[0, 65535]], dtype=np.uint16))).getpixel((1, 0))
    (255, 255, 255)
    """
    if image.mode == "F" or image.mode.startswith("I"):
        return Image.fromarray(_to_bytes(np.asarray(image), image.mode)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        return _by_bands(image, _on_white)
    return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    clear = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")


def _by_bands(image: Image.Image, turn: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Turn a large image piece by piece into RGB: whole, its copies on the way would take several times its memory."""
    if image.width * image.height <= _LARGE:
        return turn(image)
    made = Image.new("RGB", image.size)
    rows = max(1, _BAND // image.width)
    for top in range(0, image.height, rows):
        made.paste(turn(image.crop((0, top, image.width, min(top + rows, image.height)))), (0, top))
    return made


def _turn_upright(image: Image.Image) -> None:
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except Exception:  # A broken EXIF block says nothing of the pixels, which are already loaded.
        return


def _to_bytes(values: np.ndarray, mode: str) -> np.ndarray:
    """Deep grey values as uint8: 16 bit and 0..1 are scaled, 0..255 stays, anything beyond is stretched."""
    rows = max(1, _BAND // values.shape[1])
    parts = [slice(top, top + rows) for top in range(0, len(values), rows)]
    bounds = [(part.min(), part.max()) for part in (_numbers(values[one]) for one in parts)]
    low, high = float(min(one for one, _ in bounds)), float(max(one for _, one in bounds))
    found = np.empty(values.shape, dtype=np.uint8)
    for one in parts:
        found[one] = np.round(_scaled(_numbers(values[one]), low, high, mode)).astype(np.uint8)
    return found


def _numbers(values: np.ndarray) -> np.ndarray:
    return np.nan_to_num(values.astype(np.float64))


def _scaled(values: np.ndarray, low: float, high: float, mode: str) -> np.ndarray:
    if low < 0 or high > 65535:
        return (values - low) / ((high - low) or 1) * 255
    if mode.startswith("I;16") or high > 255:
        return values / 257
    if mode == "F" and high <= 1:
        return values * 255
    return values


@dataclass(frozen=True)
class Transform:
    """How a network wants its images: resized, cut from the centre, scaled to 0..1 and normalised.

    ``size`` (height, width) is what the network sees. ``resize`` comes before the cut: a number is the length of the
    shorter edge, a pair (height, width) ignores the aspect, None means ``size`` itself. The numbers equal those of
    torchvision's and timm's evaluation transforms.

    >>> transform = Transform(size=(224, 224), resize=256)
    >>> transform(Image.new("RGB", (640, 480))).shape
    torch.Size([3, 224, 224])
    """

    size: tuple[int, int] = (224, 224)
    resize: int | tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: str = "bicubic"
    bgr: bool = False

    def __post_init__(self) -> None:
        if self.interpolation not in INTERPOLATIONS:
            known = ", ".join(INTERPOLATIONS)
            raise AbslrpError(f"interpolation {self.interpolation!r} is unknown: use one of {known}.")
        if len(self.mean) != 3 or len(self.std) != 3:
            raise AbslrpError(f"the transform has {len(self.mean)} means and {len(self.std)} stds: give three of each.")

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """The image as the network's input, float32 (3, height, width)."""
        pixels = torch.from_numpy(self.display(image)).permute(2, 0, 1).to(torch.float32).div(255)
        if self.bgr:
            pixels = pixels.flip(0)
        mean, std = (torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (self.mean, self.std))
        return (pixels - mean).div(std).contiguous()

    def display(self, image: Image.Image) -> np.ndarray:
        """What the network sees, as a picture: uint8 (height, width, 3)."""
        resized = self._resized(to_rgb(image))
        return np.array(_centre_crop(resized, *self.size))

    def boxes(self, boxes: Iterable[Box], size: tuple[int, int]) -> list[Box]:
        """Boxes on an image of ``size`` (width, height) as boxes on the network's input; those cut away are left out.

        >>> Transform(size=(224, 224), resize=256).boxes([(0, 0, 640, 480), (0, 0, 20, 480)], (640, 480))
        [(0.0, 0.0, 224.0, 224.0)]
        """
        high, wide = self._resized_to(size)
        height, width = self.size
        across, down = wide / size[0], high / size[1]
        left, top = _crop_start(wide, width), _crop_start(high, height)
        moved = (
            (
                _clip(x0 * across - left, width),
                _clip(y0 * down - top, height),
                _clip(x1 * across - left, width),
                _clip(y1 * down - top, height),
            )
            for x0, y0, x1, y1 in boxes
        )
        return [box for box in moved if box[0] < box[2] and box[1] < box[3]]

    def _resized(self, image: Image.Image) -> Image.Image:
        height, width = self._resized_to(image.size)
        if image.size == (width, height):
            return image
        return image.resize((width, height), INTERPOLATIONS[self.interpolation])

    def _resized_to(self, size: tuple[int, int]) -> tuple[int, int]:
        if isinstance(self.resize, int):
            return _shorter_edge(size, self.resize)
        return self.resize or self.size


def _shorter_edge(size: tuple[int, int], length: int) -> tuple[int, int]:
    width, height = size
    if width <= height:
        return max(1, int(length * height / width)), length
    return length, max(1, int(length * width / height))


def _crop_start(length: int, kept: int) -> int:
    """Where :func:`_centre_crop` begins on an edge of this length; less than 0 where it fills up with black."""
    if length < kept:
        return -((kept - length) // 2)
    return round((length - kept) / 2)


def _clip(position: float, end: int) -> float:
    return min(max(position, 0.0), float(end))


def _centre_crop(image: Image.Image, height: int, width: int) -> Image.Image:
    """The centre (height, width) of an image, black where the image does not reach."""
    if image.width < width or image.height < height:
        wide, high = max(width, image.width), max(height, image.height)
        padded = Image.new("RGB", (wide, high))
        padded.paste(image, ((wide - image.width) // 2, (high - image.height) // 2))
        image = padded
    top, left = round((image.height - height) / 2), round((image.width - width) / 2)
    return image.crop((left, top, left + width, top + height))


def find_images(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """List image files: files as named, folders searched through by ending, patterns expanded; each file once.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("b.png", "a.jpg", "notes.txt"):
    ...         _ = Path(folder, name).write_text("")
    ...     [path.name for path in find_images([folder])]
    ['a.jpg', 'b.png']
    """
    named = [os.fspath(path) for path in paths]
    found: dict[Path, Path] = {}
    for name in named:
        for path in _expand(name):
            found.setdefault(_real(path), path)
    if not found:
        raise AbslrpError(f"no image found in {', '.join(named) or 'an empty list'}: name image files or their folder.")
    return list(found.values())


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # A ring of links, or a name that no file can have.
        return path


def _expand(name: str) -> list[Path]:
    path = Path(name)
    if os.path.isdir(path):
        try:
            return sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and os.path.isfile(file))
        except OSError as error:
            raise AbslrpError(f"{path} cannot be searched ({error.strerror}): name images or another folder.") from None
    if os.path.exists(path) or not glob.has_magic(name):
        return [path]
    return [file for match in _matches(name) for file in (_expand(str(match)) if os.path.isdir(match) else [match])]


def _matches(pattern: str) -> list[Path]:
    if "**" not in Path(pattern).parts:
        return [Path(match) for match in sorted(glob.glob(pattern))]
    # glob would go round in a ring of links until names are too long for the system; pathlib follows none.
    whole = Path(pattern)
    try:
        found = Path(whole.anchor or ".").glob(str(whole.relative_to(whole.anchor)))
        return sorted(path for path in found if not any(part.startswith(".") for part in path.parts if part != ".."))
    except (OSError, ValueError, NotImplementedError):
        return []
