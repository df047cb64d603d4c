"""Options checked before any work: whole numbers, numbers in a range, known names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from abslrp.types import AbslrpError


def whole(name: str, value: Any, least: int = 1) -> int:
    """The value if it is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise AbslrpError(f"{name}={value!r} must be a whole number of at least {least}.")
    return value


def number(name: str, value: Any, least: float = 0.0, most: float = float("inf")) -> float:
    """The value if it is a number in a range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        bound = f"from {least} to {most}" if most < float("inf") else f"of at least {least}"
        raise AbslrpError(f"{name}={value!r} must be a number {bound}.")
    return float(value)


def choice(name: str, value: Any, known: Iterable[str]) -> str:
    """The value if it is one of the known names."""
    if value not in known:
        raise AbslrpError(f"{name}={value!r} is unknown: choose one of {', '.join(known)}.")
    return str(value)
