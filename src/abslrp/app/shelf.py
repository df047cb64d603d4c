"""What may be opened: models by name, and files in the folders that the page was started with. Nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from abslrp.inputs.models import DEFAULT_MODEL
from abslrp.types import AbslrpError

WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")
SUGGESTED = (
    DEFAULT_MODEL,
    "timm:resnet50",
    "timm:vit_tiny_patch16_224",
    "torchvision:resnet50",
    "torchvision:vgg16",
    "torchvision:convnext_tiny",
)
_NAMED = re.compile(r"(timm|torchvision|hf):[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MOST = 200


class Shelf:
    """Files and folders that a page offers, each under a name that is shown instead of its path.

    >>> shelf = Shelf()
    >>> shelf.model("timm:resnet18"), shelf.weights(None)
    ('timm:resnet18', None)
    >>> shelf.model("hf:/etc")
    Traceback (most recent call last):
    abslrp.types.AbslrpError: model 'hf:/etc' is not offered here: write timm:NAME, torchvision:NAME or hf:NAME, or choose one of the list.
    """

    def __init__(self, folders: Sequence[str | os.PathLike[str]] = ()) -> None:
        self.files: dict[str, Path] = {}
        self.image_models: dict[str, Path] = {}
        self.text_models: dict[str, Path] = {}
        for folder in folders:
            self._add(Path(folder))

    def model(self, name: str | None) -> str | None:
        """What :func:`abslrp.inputs.models.load_model` is told for a model that somebody chose or typed."""
        name = (name or "").strip()
        if name in ("", DEFAULT_MODEL):
            return None
        if name in self.image_models:
            return f"hf:{self.image_models[name]}"
        if not _NAMED.fullmatch(name) or os.path.exists(name.partition(":")[2]):
            raise AbslrpError(
                f"model {name!r} is not offered here: write timm:NAME, torchvision:NAME or hf:NAME, or choose one of the list."
            )
        return name

    def weights(self, name: str | None) -> Path | None:
        """The file of this name, or None where the model's own weights are wanted."""
        if not name:
            return None
        if name not in self.files:
            raise AbslrpError(f"weights {name!r} are not offered here: start the page with --models and their folder.")
        return self.files[name]

    def text_model(self, name: str | None) -> str:
        """What :func:`abslrp.inputs.sentences.load_text_classifier` is told."""
        name = (name or "").strip()
        if name in self.text_models:
            return str(self.text_models[name])
        if not _NAMED.fullmatch(f"hf:{name.removeprefix('hf:')}") or os.path.exists(name.removeprefix("hf:")):
            raise AbslrpError(
                f"text model {name!r} is not offered here: choose one of the list, write a name of the hub, or start the page "
                "with --models and its folder."
            )
        return name

    def named(self, text: str) -> str:
        """A sentence in which files and folders are called as the page calls them, not by where they lie."""
        known = [*self.files.items(), *self.image_models.items(), *self.text_models.items()]
        # The longest first: a folder's path begins that of what lies in it.
        for name, path in sorted(known, key=lambda one: -len(str(one[1]))):
            text = text.replace(str(path), name)
        return text

    def _add(self, folder: Path) -> None:
        if not folder.is_dir():
            raise AbslrpError(f"{folder} is no folder: name one that holds weights or models of transformers.")
        for path in [folder, *sorted(folder.iterdir())]:
            if path.is_file() and path.suffix in WEIGHTS and len(self.files) < _MOST:
                self.files[_unused(path.name, self.files)] = path.resolve()
            elif path.is_dir() and (path / "config.json").is_file():
                # What has a tokenizer reads text.
                reads = any(
                    (path / name).is_file() for name in ("tokenizer.json", "vocab.txt", "tokenizer_config.json")
                )
                kept = self.text_models if reads else self.image_models
                kept[_unused(path.resolve().name, kept)] = path.resolve()


def _unused(name: str, taken: dict[str, Path]) -> str:
    shown, number = name, 1
    while shown in taken:
        number += 1
        shown = f"{name} ({number})"
    return shown
