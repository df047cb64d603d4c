"""The shared nouns: targets, attributions and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

Target = int | Sequence[int] | torch.Tensor | None
"""What to explain: one class for all inputs, one class each, or None for the predicted class."""

Forward = Callable[[torch.Tensor], torch.Tensor]
"""From a batch of inputs to logits of shape (batch, classes)."""


class AbslrpError(ValueError):
    """Something the user can mend; the message is one sentence that says how."""


@dataclass(frozen=True)
class Attribution:
    """Maps of relevance and what they explain.

    ``maps`` has the shape of the input (batch, ...) and is float32; ``targets`` (batch,) are the explained
    classes; ``outputs`` (batch, classes) are the model's own outputs, in float32.

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

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, index: int | slice) -> Attribution:
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"index {index} is out of range for {len(self)} maps")
            index = slice(index, index + 1 or None)
        return Attribution(self.maps[index], self.targets[index], self.outputs[index], self.method, self.options)

    def heatmaps(self, **settings: Any) -> np.ndarray:
        """RGB pictures (batch, height, width, 3) of the maps; see :func:`abslrp.reporting.heatmaps.heatmap`."""
        import numpy as np

        from abslrp.reporting.heatmaps import heatmap

        return np.stack([heatmap(one, **settings) for one in self.maps])

    def save(self, path: str | Path, **settings: Any) -> None:
        """Write the first map as a PNG; see :func:`abslrp.reporting.heatmaps.heatmap` for the settings."""
        from abslrp.reporting.heatmaps import heatmap, save_png

        save_png(heatmap(self.maps[0], **settings), path)
