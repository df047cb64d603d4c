"""The shared nouns: targets, attributions and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

Target = int | Sequence[int] | torch.Tensor | None
"""What to explain: one class for all inputs, one class each, or None for the predicted class."""

WHOLE = (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64)
"""The types that class indices may have."""

Forward = Callable[[torch.Tensor], torch.Tensor]
"""From a batch of inputs to logits of shape (batch, classes)."""


class AbslrpError(ValueError):
    """Something the user can mend; the message is one sentence that says how."""


class ModelError(AbslrpError, RuntimeError):
    """The model itself raised an error, which is the cause of this one."""


def brief(value: Any, most: int = 80) -> str:
    """A value as an error quotes it: on one line, and never a whole array.

    >>> brief("cat"), brief(torch.zeros(2, 3)), brief(list(range(1000)), 12)
    ("'cat'", 'a tensor of shape (2, 3)', '[0, 1, 2, 3,…')
    """
    try:
        shape = getattr(value, "shape", ())
        if isinstance(shape, tuple) and shape:
            return f"{'a tensor' if isinstance(value, torch.Tensor) else 'an array'} of shape {tuple(shape)}"
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= most else text[:most] + "…"


def said(error: BaseException, most: int = 400) -> str:
    """What an error says, on one line and without its full stop."""
    return " ".join(str(error).split()).rstrip(".")[:most] or "nothing more"


def out_of_memory(error: BaseException) -> bool:
    """Whether an error tells that memory ran out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def capturing(values: torch.Tensor) -> bool:
    """Whether a CUDA graph is being captured, during which values cannot be looked at."""
    return values.is_cuda and torch.cuda.is_current_stream_capturing()


def check_targets(targets: Target, batch: int) -> torch.Tensor | None:
    """The classes of a batch as int64, checked as far as that needs no model; None for the predicted ones."""
    if targets is None:
        return None
    wanted = "expected a class index, one index per input, or None for the predicted class"
    try:
        # A copy, because torch takes no array that runs backwards, as argsort(...)[::-1] gives it.
        values: Any = targets
        values = values.copy() if hasattr(values, "__array_interface__") else values
        classes = torch.as_tensor(values, device=None if isinstance(values, torch.Tensor) else "cpu")
        plain = classes.layout is torch.strided and not classes.is_nested
        whole = classes.long() if classes.dtype in WHOLE and plain else None
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise AbslrpError(f"targets={brief(targets)} cannot be read: {wanted}.") from None
    if whole is None or whole.is_meta:
        kind = (
            str(classes.dtype).removeprefix("torch.")
            if classes.dtype not in WHOLE
            else "sparse or nested"
            if whole is None
            else "on the meta device"
        )
        raise AbslrpError(f"targets are {kind}: {wanted}.")
    if whole.ndim > 1 or (whole.ndim == 1 and len(whole) != batch):
        raise AbslrpError(f"targets have shape {tuple(whole.shape)} for {batch} inputs: {wanted}.")
    if not capturing(whole) and int(whole.min()) < 0:
        raise AbslrpError(f"target {int(whole.min())} is negative: {wanted}.")
    # Autograd keeps no tensors made in inference mode, as predictions often are.
    return (whole.clone() if whole.is_inference() else whole).expand(batch)


@dataclass(frozen=True)
class Attribution:
    """Maps of relevance and what they explain.

    ``maps`` has the shape of the input (batch, ...) and is float32; ``targets`` (batch,) are the explained
    classes; ``outputs`` (batch, classes) are the model's own outputs, in float32; ``inputs`` are those explained, where known.
    In a notebook maps of images show themselves, a batch as a grid.

    >>> import torch
    >>> a = Attribution(torch.zeros(2, 3, 4, 4), torch.tensor([1, 0]), torch.zeros(2, 5), "abslrp")
    >>> len(a), a[0].maps.shape
    (2, torch.Size([1, 3, 4, 4]))
    """

    maps: torch.Tensor
    targets: torch.Tensor
    outputs: torch.Tensor
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: torch.Tensor | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, index: int | slice) -> Attribution:
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"index {index} is out of range for {len(self)} maps")
            index = slice(index, index + 1 or None)
        inputs = None if self.inputs is None else self.inputs[index]
        return Attribution(
            self.maps[index], self.targets[index], self.outputs[index], self.method, self.options, inputs
        )

    def heatmaps(self, **settings: Any) -> np.ndarray:
        """RGB pictures (batch, height, width, 3) of the maps; see :func:`abslrp.reporting.heatmaps.heatmap`."""
        import numpy as np

        from abslrp.reporting.heatmaps import heatmap

        return np.stack([heatmap(one, **settings) for one in self.maps])

    def overlay(self, images: Any = None, **settings: Any) -> np.ndarray:
        """The maps over their images, uint8 (batch, height, width, 3).

        ``images`` are pictures or tensors, one a map; without them it is the inputs, in grey. Settings are those of
        :func:`abslrp.reporting.heatmaps.overlay`.

        >>> a = Attribution(torch.ones(2, 3, 4, 4), torch.tensor([1, 0]), torch.zeros(2, 5), "abslrp", inputs=torch.rand(2, 3, 4, 4))
        >>> a.overlay(alpha=0.5).shape
        (2, 4, 4, 3)
        """
        from abslrp.reporting.notebook import overlays

        return overlays(self, images, **settings)

    def show(self) -> None:
        """Show the maps: in a notebook in place, else in the machine's own viewer."""
        from abslrp.reporting.notebook import picture, show

        show(picture(self))

    def save(self, path: str | Path, **settings: Any) -> None:
        """Write the map as a PNG, of a batch a grid; see :func:`abslrp.reporting.heatmaps.heatmap` for the settings."""
        from abslrp.reporting.heatmaps import save_png
        from abslrp.reporting.notebook import picture

        save_png(picture(self, plain=True, **settings), path)

    def _repr_png_(self) -> bytes | None:
        """What Jupyter shows; maps that are no pictures are left to their text."""
        from abslrp.reporting.notebook import drawable, picture, png

        return png(picture(self)) if len(self) and drawable(self) else None


@dataclass(frozen=True)
class Score:
    """One method under one metric: ``scores`` (items,) in float64, never NaN, with whatever the metric tells beside.

    ``ids`` name the images (or mosaics) that were scored; ``parts`` are further numbers (items, ...) by name;
    ``flags`` say for each item what was wrong with its map: such an item has a defined score, and is counted.
    """

    metric: str
    method: str
    scores: torch.Tensor
    ids: tuple[str, ...]
    higher_is_better: bool
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)
    flags: tuple[tuple[str, ...], ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def mean(self) -> float:
        return float(self.scores.mean())

    @property
    def flagged(self) -> int:
        """How many items have a flag."""
        return sum(bool(flag) for flag in self.flags)


class Scores(Mapping[str, Mapping[str, Score]]):
    """What an evaluation found, by metric and method: ``scores["gae"]["abslrp"].scores``.

    >>> one = Score("gae", "abslrp", torch.tensor([0.25, 0.75]), ("a", "b"), True, {}, ((), ("constant",)))
    >>> print(Scores({"gae": {"abslrp": one}}))
    method    gae ↑
    abslrp  0.500 ¹
    ¹ 1 of 2 maps flagged: constant
    """

    def __init__(self, found: Mapping[str, Mapping[str, Score]]) -> None:
        self._found = found

    def __getitem__(self, metric: str) -> Mapping[str, Score]:
        return self._found[metric]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"Scores({', '.join(f'{metric}: {len(rows)} methods' for metric, rows in self._found.items())})"

    def __str__(self) -> str:
        methods = list(dict.fromkeys(method for rows in self._found.values() for method in rows))
        notes: list[str] = []
        table = [["method", *(f"{m} {'↑' if self._better(m) else '↓'}" for m in self._found)]]
        for method in methods:
            table.append([method, *(self._cell(rows.get(method), notes) for rows in self._found.values())])
        widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
            for row in table
        ]
        return "\n".join(line.rstrip() for line in [*lines, *notes])

    def _repr_html_(self) -> str:
        """What Jupyter shows."""
        from abslrp.reporting.notebook import scores_html

        return scores_html(self)

    def _better(self, metric: str) -> bool:
        return next(iter(self._found[metric].values())).higher_is_better

    @staticmethod
    def _cell(score: Score | None, notes: list[str]) -> str:
        if score is None:
            return "—"
        if not score.flagged:
            return f"{score.mean:.3f}"
        kinds = ", ".join(dict.fromkeys(flag for flags in score.flags for flag in flags))
        text = f"{score.flagged} of {len(score)} maps flagged: {kinds}"
        known = [note.split(" ", 1)[1] for note in notes]
        if text not in known:
            notes.append(f"{_small(len(notes) + 1)} {text}")
            known.append(text)
        return f"{score.mean:.3f} {_small(known.index(text) + 1)}"


def _small(number: int) -> str:
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(number))
