"""A bar for work that takes long, on request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def shown(items: Iterable[T], title: str, progress: bool, total: int | None = None) -> Iterator[T]:
    """The items, with a progress bar on request; ``total`` is their number where they do not know it themselves.

    >>> list(shown([1, 2], "counting", progress=False))
    [1, 2]
    """
    if not progress:
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description=title, total=total, console=Console(stderr=True))
