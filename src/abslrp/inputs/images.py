"""Image files to RGB images, and RGB images to what a network sees."""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from abslrp.types import AbslrpError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")
"""The endings by which :func:`find_images` knows image files in a folder; a file named outright may have any."""

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
    if not path.exists():
        raise AbslrpError(f"{path} does not exist: name an image file.")
    if path.is_dir():
        raise AbslrpError(f"{path} is a folder, not an image: name a file in it.")
    try:
        if path.stat().st_size == 0:
            raise AbslrpError(f"{path} is empty: name an image file with something in it.")
        with warnings.catch_warnings():
            # Pillow warns from 90 megapixels and refuses from twice that; the refusal is the one that matters.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                image.load()
                return to_rgb(_upright(image))
    except UnidentifiedImageError:
        raise AbslrpError(f"{path} is not an image that Pillow can read: convert it to PNG or JPEG.") from None
    except Image.DecompressionBombError:
        raise AbslrpError(f"{path} has too many pixels to open safely: scale it down first.") from None
    except PermissionError:
        raise AbslrpError(f"{path} may not be read: change its permissions.") from None
    except AbslrpError:
        raise
    except MemoryError:
        raise AbslrpError(f"{path} does not fit into memory: scale it down first.") from None
    except Exception as error:  # Damaged files surface as anything from OSError to struct.error and SyntaxError.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise AbslrpError(f"{path} is damaged or cut short ({reason}): get the file again.") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Turn an image of any Pillow mode into RGB, transparency laid on white, deep grey values scaled to 8 bit.

    >>> to_rgb(Image.fromarray(np.array([[0, 65535]], dtype=np.uint16))).getpixel((1, 0))
    (255, 255, 255)
    """
    if image.mode == "F" or image.mode.startswith("I"):
        return Image.fromarray(_to_bytes(np.asarray(image), image.mode)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        clear = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    return image.convert("RGB")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # A broken EXIF block says nothing of the pixels, which are already loaded.
        return image


def _to_bytes(values: np.ndarray, mode: str) -> np.ndarray:
    """Deep grey values as uint8: 16 bit and 0..1 are scaled, 0..255 stays, anything beyond is stretched."""
    values = np.nan_to_num(values.astype(np.float64))
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 65535:
        values = (values - low) / (high - low) * 255
    elif mode.startswith("I;16") or high > 255:
        values = values / 257
    elif mode == "F" and high <= 1:
        values = values * 255
    return np.round(values).astype(np.uint8)


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
            found.setdefault(path.resolve(), path)
    if not found:
        raise AbslrpError(f"no image found in {', '.join(named) or 'an empty list'}: name image files or their folder.")
    return list(found.values())


def _expand(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if path.exists() or not glob.has_magic(name):
        return [path]
    matches = (Path(match) for match in sorted(glob.glob(name, recursive=True)))
    return [file for match in matches for file in (_expand(str(match)) if match.is_dir() else [match])]
