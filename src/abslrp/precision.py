"""How products of float32 are taken on CUDA: as such, or rounded to TF32 on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch


class _Products:
    """Who wants products in full precision and who wants them rounded; torch knows one setting for all threads.

    The first of them keeps what was set and the last puts it back. Full precision wins where both are asked for.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked = {True: 0, False: 0}
        self.rounded: bool | None = None
        self.back: list[Callable[[], None]] = []

    def change(self, tf32: bool, by: int) -> None:
        with self.lock:
            if not any(self.asked.values()):
                self.back = [_kept(*way) for way in _ways()]
            self.asked[tf32] += by
            if not any(self.asked.values()):
                for put_back in self.back:
                    put_back()
                self.rounded = None
            elif self.rounded is not (not self.asked[False]):
                self.rounded = not self.asked[False]
                for _, set_to, places, values in _ways():
                    _set(set_to, values[self.rounded], places, "tf32" if self.rounded else "ieee")


_products = _Products()


@contextmanager
def precision(tf32: bool) -> Iterator[None]:
    """Products on CUDA in float32 as such, or rounded to TF32 on the way, which is faster.

    A rule divides by outputs, some of which are nearly 0, so rounding to ten bits can turn a map over: on ViT-Tiny the
    contrastiveness of single mosaics moved by up to .4, and maps of VGG16 stood up to .03 of their size from the CPU's. Torch
    rounds in convolutions unless told not to.
    """
    _products.change(tf32, 1)
    try:
        yield
    finally:
        _products.change(tf32, -1)


def full_precision() -> AbstractContextManager[None]:
    """Products on CUDA in float32 as such; see :func:`precision`."""
    return precision(False)


_Way = tuple[Callable[[], Any], Callable[[Any], object], list[Any], dict[bool, Any]]


def _ways() -> list[_Way]:
    """For convolutions and for products: how torch's older name is read and set, the places of its newer ones, and the values
    for rounding and not."""
    backends: Any = torch.backends
    cudnn, mkldnn = backends.cudnn, backends.mkldnn
    convolutions: list[Any] = [getattr(cudnn, name) for name in ("conv", "rnn") if hasattr(cudnn, name)]
    # Torch has had the newer names for all of them at once.
    matmul: list[Any] = [backends.cuda.matmul, mkldnn.matmul] if hasattr(cudnn, "conv") else []
    return [
        (
            lambda: cudnn.allow_tf32,
            lambda value: setattr(cudnn, "allow_tf32", value),
            convolutions,
            {True: True, False: False},
        ),
        (
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
            matmul,
            {True: "high", False: "highest"},
        ),
    ]


def _set(set_to: Callable[[Any], object], value: Any, places: Sequence[Any], newer: str) -> None:
    """Set by torch's older name; and by its newer ones where these were used, which the older does not understand or change."""
    with suppress(RuntimeError):
        set_to(value)
    for place in places:
        if (place.fp32_precision == "tf32") is not (newer == "tf32"):
            place.fp32_precision = newer


def _kept(get: Callable[[], Any], set_to: Callable[[Any], object], places: Sequence[Any], _: Any) -> Callable[[], None]:
    """What puts a setting back as it is now."""
    before = [place.fp32_precision for place in places]
    older = None
    with suppress(RuntimeError):
        older = get()

    def again() -> None:
        if older is not None:
            with suppress(RuntimeError):
                set_to(older)
        for place, mine in zip(places, before, strict=True):
            # "none" is to follow the setting above it, as it did if it reads the same so.
            place.fp32_precision = "none"
            if place.fp32_precision != mine:
                place.fp32_precision = mine

    return again
