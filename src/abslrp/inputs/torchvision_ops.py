"""Make torchvision importable beside a torch build that its compiled operators do not fit."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

from abslrp.types import AbslrpError

_BOX_OPERATORS = ("nms", "qnms")
_BOX_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[torch.library.Library] = []


def ensure_torchvision() -> ModuleType:
    """Import torchvision, also where its compiled operators cannot be loaded, and return the module.

    A torchvision built for CUDA beside a CPU torch finds no CUDA libraries, so its operators stay undefined, and its
    import ends in ``operator torchvision::nms does not exist``. Models and transforms need none of these operators:
    declaring the two that the import mentions is enough. Nothing is declared where the operators load.

    >>> ensure_torchvision().__name__
    'torchvision'
    """
    if "torchvision" in sys.modules:
        return sys.modules["torchvision"]
    package = importlib.util.find_spec("torchvision")
    if package is None or not package.submodule_search_locations:
        raise AbslrpError("torchvision is not installed: install the extra, pip install 'abslrp[models]'.")
    _load_operators(Path(package.submodule_search_locations[0]))
    missing = [name for name in _BOX_OPERATORS if not _is_defined(name)]
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in missing:
            library.define(name + _BOX_SCHEMA)
        # A Library takes its definitions with it when it is collected.
        _kept.append(library)
    _forget_partial_import()
    return importlib.import_module("torchvision")


def _load_operators(folder: Path) -> None:
    """Load torchvision's compiled operators as its own import would, or leave them undefined as it would."""
    for file in sorted([*folder.glob("_C.so"), *folder.glob("_C.*.so"), *folder.glob("_C.pyd")]):
        try:
            torch.ops.load_library(str(file))
        except (ImportError, OSError):
            continue


def _is_defined(name: str) -> bool:
    return hasattr(torch.ops.torchvision, name)


def _forget_partial_import() -> None:
    """Drop the submodules that an earlier, failed import of torchvision left behind."""
    for name in [name for name in sys.modules if name.startswith("torchvision.")]:
        del sys.modules[name]
