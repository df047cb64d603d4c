"""Chance that does not depend on company: every draw has its own seed, made of what it is for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def seed_of(*parts: object) -> int:
    """A seed of 63 bits made of any parts, the same on every machine.

    >>> seed_of(0, "mosaic", "cat.jpg") == seed_of(0, "mosaic", "cat.jpg") != seed_of(1, "mosaic", "cat.jpg")
    True
    """
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(*parts: object) -> torch.Generator:
    """A generator of its own; on the CPU, so that every device gets the same numbers."""
    return torch.Generator().manual_seed(seed_of(*parts))


def distinct(chance: torch.Generator, count: int, total: int) -> list[int]:
    """``count`` different numbers below ``total`` in random order, in time that does not grow with ``total``.

    >>> sorted(distinct(generator(0), 4, 4))
    [0, 1, 2, 3]
    """
    found: list[int] = []
    for taken in range(count):
        number = int(torch.randint(total - taken, (), generator=chance, device="cpu"))
        # The number-th of those that are left: each smaller one that is taken moves it up by one.
        for other in sorted(found):
            number += other <= number
        found.append(number)
    return found


def content_ids(images: Tensor) -> list[str]:
    """Names of images made of their pixels: the same image has the same name in any order; twins are numbered.

    >>> a, b, c = content_ids(torch.tensor([[1.0], [2.0], [1.0]]))
    >>> c == a + "-2", a == b
    (True, False)
    """
    digests = [
        hashlib.sha256(one.detach().cpu().float().contiguous().numpy().tobytes()).hexdigest()[:16] for one in images
    ]
    return numbered(digests)


def numbered(names: Sequence[str]) -> list[str]:
    """The names with a number at every repetition."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return found
