"""Options checked before any work: whole numbers, numbers in a range, known names."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from abslrp.types import AbslrpError, brief

MOST = 10**6
"""More than this of anything is a slip of the hand, which would fill the memory or never end."""


def whole(name: str, value: Any, least: int = 1, most: int = MOST) -> int:
    """The value if it is a whole number in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise AbslrpError(f"{name}={brief(value)} must be a whole number of at least {least}.")
    if value > most:
        raise AbslrpError(f"{name}={brief(value)} is too large: choose a whole number from {least} to {most}.")
    return value


def seed_number(value: Any) -> int:
    """The value if it can seed a generator."""
    return whole("seed", value, 0, 2**63 - 1)


def number(name: str, value: Any, least: float = 0.0, most: float = float("inf")) -> float:
    """The value if it is a finite number in a range."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not known or not least <= value <= most or not abs(value) <= sys.float_info.max:
        bound = f"from {least} to {most}" if most < float("inf") else f"of at least {least}"
        raise AbslrpError(f"{name}={brief(value)} must be a number {bound}.")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """The value if it is a truth value; a text such as "no" would count as true."""
    if not isinstance(value, bool):
        raise AbslrpError(f"{name}={brief(value)} must be True or False.")
    return value


def choice(name: str, value: Any, known: Iterable[str]) -> str:
    """The value if it is one of the known names."""
    if not isinstance(value, str) or value not in known:
        raise AbslrpError(f"{name}={brief(value)} is unknown: choose one of {', '.join(known)}.")
    return value
