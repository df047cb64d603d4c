"""What happens when a visitor does something: from what stands in the page to what will stand there. Gradio is not known here."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from abslrp.app import views
from abslrp.app.uploads import Picked, make_room
from abslrp.app.views import Told, View
from abslrp.app.workshop import Chosen, ClassChance, Workshop
from abslrp.inputs.models import DEFAULT_MODEL, resolve_target
from abslrp.text import TextAttribution
from abslrp.types import AbslrpError

T = TypeVar("T")
MOST_TEXT = 2000
MOST_CLASSES = 40
_MOST_MAPS = 120
_LONGEST = 180.0
_MOST_MADE = 512 * 2**20
_NO_IMAGE = "no image is chosen: drop one, or take a sample."


@dataclass(frozen=True)
class Seen:
    """What one visitor has chosen, and the classes that are offered, by what stands beside their boxes; nobody else sees it.

    ``failed`` tells that the last choice was refused, so that what is shown still belongs to the one before.
    """

    picked: Picked | None = None
    chosen: Chosen = field(default_factory=Chosen)
    classes: tuple[tuple[str, int], ...] = ()
    failed: bool = False

    @property
    def offered(self) -> list[str]:
        return [label for label, _ in self.classes]


class ImageActions:
    """What can be done with an image. Every answer ends with a note, which says what was wrong where something was."""

    def __init__(self, shop: Workshop, folder: Path) -> None:
        self.shop, self.folder = shop, folder

    def choose(
        self, seen: Seen, pick: Callable[[], Picked] | None, model: str | None, weights: str | None
    ) -> tuple[Seen, str]:
        """Another image or model, with the classes that are then most probable."""

        def work() -> Seen:
            picked, chosen = pick() if pick else seen.picked, Chosen(model or None, weights or None)
            if picked is None:
                raise AbslrpError(_NO_IMAGE)
            return Seen(picked, chosen, tuple(map(_offered, self.shop.classes(chosen, picked))))

        found, note = said(work)
        return (found, "") if found else (replace(seen, failed=True), note)

    def add_class(self, seen: Seen, text: str) -> tuple[Seen, str]:
        """One more class to tick, by name or number; the last of those offered is it."""

        def work() -> Seen:
            if seen.picked is None or not text.strip():
                raise AbslrpError("no class is named: write its name or its number.")
            check_length(text)
            names, count = self.shop.model(seen.chosen).class_names, len(self.shop.outputs(seen.chosen, seen.picked))
            if len(seen.classes) >= MOST_CLASSES:
                raise AbslrpError(
                    f"{MOST_CLASSES} classes are offered already: choose among them, or bring the image again."
                )
            new = _offered(self.shop.chance(seen.chosen, seen.picked, resolve_target(text, names, count)))
            return replace(seen, classes=(*(one for one in seen.classes if one != new), new), failed=False)

        found, note = said(work)
        return (found, "") if found else (seen, note)

    def view(self, seen: Seen, ticked: Sequence[str], methods: Sequence[str], more: Sequence[str], *drawn: Any) -> View:
        """The view that the page's settings make; ``drawn`` are opacity, what speaks against, one scale, compare."""
        if seen.picked is None:
            raise AbslrpError(_NO_IMAGE)
        aimed = tuple(index for label, index in seen.classes if label in (ticked or ()))
        opacity, against, one_scale, compare = drawn
        if not all(math.isfinite(one) and 0 <= one <= 1 for one in (opacity, against)):
            raise AbslrpError(
                f"opacity {opacity} and {against} of what speaks against are not from 0 to 1: move the sliders."
            )
        names = tuple(dict.fromkeys([*(methods or ()), *(more or ())]))
        return View(
            seen.picked, seen.chosen, aimed, names, float(opacity), float(against), bool(one_scale), bool(compare)
        )

    def draw(self, values: Sequence[Any], told: Told) -> tuple[str, str]:
        def work() -> tuple[str, str]:
            view = self.view(*values)
            count = _bounded(view)
            note = f"{count} {'map' if count == 1 else 'maps'} of {view.picked.name}."
            return views.maps_html(self.shop, view, in_time(told)), views.message_html(note)

        found, note = said(work)
        return found or ("", note)

    def files(self, values: Sequence[Any]) -> tuple[list[str] | None, str]:
        def work() -> list[str]:
            view = self.view(*values)
            _bounded(view)
            return views.write_files(self.shop, view, _new_folder(self.folder), in_time())

        found, note = said(work)
        return found, note or views.message_html("The files are ready below the maps.")

    def parts(self, values: Sequence[Any], told: Told) -> tuple[str | None, str]:
        def work() -> str:
            view, found, timely = self.view(*values), {}, in_time(told)
            if not view.methods:
                raise AbslrpError("no method is chosen: tick at least one.")
            for number, method in enumerate(view.methods):
                timely(number / len(view.methods), method)
                found[method] = self.shop.parts(view.chosen, view.picked, method)
            return views.parts_html(found)

        found, note = said(work)
        return found, note or views.message_html("GAE is below the maps.")

    def coverage(self, values: Sequence[Any]) -> tuple[str | None, str]:
        def work() -> str:
            view = self.view(*values)
            return views.coverage_html(self.shop.coverage(view.chosen, view.picked), view.chosen.model or DEFAULT_MODEL)

        found, note = said(work)
        return found, note or views.message_html("The coverage is below the maps.")


class TextActions:
    """What can be done with a text."""

    def __init__(self, shop: Workshop, folder: Path) -> None:
        self.shop, self.folder = shop, folder

    def explained(
        self, model: str | None, text: str, aim: str, methods: Sequence[str]
    ) -> tuple[list[TextAttribution], list[str]]:
        """The text under every method, and what the model calls its classes."""
        if not (text or "").strip() or not methods:
            raise AbslrpError("there is nothing to explain: write a text and tick a method.")
        for given in (text, aim or "", model or ""):
            check_length(given)
        names = self.shop.classifier(model).class_names
        target = resolve_target(aim, names, len(names)) if (aim or "").strip() else None
        timely, found = in_time(), []
        for number, method in enumerate(dict.fromkeys(methods)):
            timely(number / len(methods), method)
            found += self.shop.words(model, text, [method], target)
        return found, names

    def draw(self, *values: Any) -> tuple[str, str]:
        found, note = said(lambda: views.words_html(*self.explained(*values)))
        return found or "", note or views.message_html()

    def files(self, *values: Any) -> tuple[list[str] | None, str]:
        found, note = said(lambda: views.write_words(*self.explained(*values), values[0], _new_folder(self.folder)))
        return found, note or views.message_html("The files are ready below the words.")


def check_length(text: str) -> None:
    """What is typed is bounded here too: a browser may be no browser.

    >>> check_length("a" * 2001)
    Traceback (most recent call last):
    abslrp.types.AbslrpError: this has 2,001 letters, and the page takes 2,000: shorten it.
    """
    if len(text) > MOST_TEXT:
        raise AbslrpError(f"this has {len(text):,} letters, and the page takes {MOST_TEXT:,}: shorten it.")


def in_time(told: Told = lambda done, what: None, seconds: float = _LONGEST) -> Told:
    """Tells how far work is, and ends it between two of its parts when it takes too long for others who wait.

    >>> in_time(seconds=-1)(0.5, "abslrp")
    Traceback (most recent call last):
    abslrp.types.AbslrpError: this takes longer than the page lets one visitor compute (50% is done): ask again to go on, or ...
    """
    end = time.monotonic() + seconds

    def timely(done: float, what: str) -> None:
        if time.monotonic() > end:
            raise AbslrpError(
                f"this takes longer than the page lets one visitor compute ({done:.0%} is done): ask again to go on, or "
                "choose fewer classes or methods."
            )
        told(done, what)

    return timely


def _bounded(view: View) -> int:
    """How many maps a view has, which are not too many."""
    count = len(view.classes) * len(view.methods)
    if count > _MOST_MAPS:
        raise AbslrpError(f"these would be {count} maps, and the page makes {_MOST_MAPS} at once: choose fewer.")
    return count


def _new_folder(folder: Path) -> Path:
    """A folder for one visitor's files; those made long ago go when it gets too much."""
    make_room(folder, _MOST_MADE)
    return Path(tempfile.mkdtemp(dir=folder))


def said(work: Callable[[], T]) -> tuple[T | None, str]:
    """What work gives, or None and a sentence that says why not.

    >>> said(lambda: 1)
    (1, '')
    >>> said(lambda: 1 / 0)
    (None, '<div class="message error" role="alert">That did not work (ZeroDivisionError: division by zero).</div>')
    """
    try:
        return work(), ""
    except AbslrpError as error:
        return None, views.message_html(" ".join(str(error).split()), error=True)
    except OSError as error:
        # Its text would tell where things lie on this machine.
        reason = error.strerror or "no reason given"
        return None, views.message_html(f"That did not work ({type(error).__name__}: {reason}).", error=True)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        return None, views.message_html(f"That did not work ({type(error).__name__}: {reason}).", error=True)


def _offered(one: ClassChance) -> tuple[str, int]:
    return f"{one.called} {one.chance:.1%}", one.index
