"""Weight files: read without running anything in them, and fitted to a model with errors that name the misfit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from abslrp.inputs.archives import check_torch_file
from abslrp.inputs.plain import shown
from abslrp.types import AbslrpError

_NESTED_UNDER = ("state_dict", "model_state_dict", "model", "state_dict_ema", "model_ema", "net")
_WRAPPER_PREFIXES = ("module.", "_orig_mod.", "model.")
_SHOWN = 3
_DEEPEST = 8
_STATISTICS = ("running_mean", "running_var")

Weights = Mapping[str, torch.Tensor]


def read_weights(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Read the tensors of a ``.safetensors`` or torch file; no code in the file is run.

    A state dict nested under a usual name (``state_dict``, ``model``) is found there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"state_dict": {"weight": torch.ones(2)}}, f"{folder}/w.pth")
    ...     read_weights(f"{folder}/w.pth")
    {'weight': tensor([1., 1.])}
    """
    path = Path(path)
    if not os.path.isfile(path):
        raise AbslrpError(f"weights {shown(path, 300)} do not exist as a file: name a .safetensors or torch file.")
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    weights = _state_dict(content)
    if not weights:
        raise AbslrpError(f"weights {path} hold no tensors: save model.state_dict() into the file.")
    odd = next((name for name, value in weights.items() if not _is_whole(value)), None)
    if odd is not None:
        raise AbslrpError(
            f"weights {path} hold {shown(odd)!r}, which is sparse, quantised or larger than what is stored of it: save "
            "plain tensors."
        )
    return weights


def check_finite(model: torch.nn.Module, label: str) -> None:
    """Refuse a model whose weights are not all numbers: every map of it would be noise."""
    learned = dict(model.named_parameters())
    counted = {name: value for name, value in model.named_buffers() if name.rpartition(".")[2] in _STATISTICS}
    for name, value in {**learned, **counted}.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise AbslrpError(f"the weights of {label} hold NaN or infinity in {shown(name)}: get them again.")


def load_weights(
    build: Callable[[int | None], torch.nn.Module], weights: Weights, name: str, num_classes: int | None = None
) -> torch.nn.Module:
    """Build a model and put weights into it; the number of classes is read off them unless it is given.

    >>> weights = {"weight": torch.ones(4, 2), "bias": torch.zeros(4)}
    >>> load_weights(lambda classes: torch.nn.Linear(2, classes or 3), weights, "linear").out_features
    4
    """
    model = build(num_classes)
    weights = _without_wrapper(weights, model.state_dict())
    found = _classes_in(weights, model.state_dict()) if num_classes is None else None
    if found is not None:
        other = build(found)
        if not _misfits(weights, other.state_dict()):
            model = other
    faults = _misfits(weights, model.state_dict())
    if faults:
        raise AbslrpError(
            f"the weights do not fit {name}: {'; '.join(faults)}: name the model that they were saved from."
        )
    model.load_state_dict(dict(weights))
    return model


def rename_in_order(weights: Weights, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Give weights other names, first to first and last to last.

    >>> list(rename_in_order({"_fc.weight": torch.ones(1)}, ["classifier.weight"]))
    ['classifier.weight']
    """
    return dict(zip(names, weights.values(), strict=True))


def _read_safetensors(path: Path) -> Any:
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise AbslrpError(
            f"{path} needs the package safetensors: install the extra, pip install 'abslrp[models]'."
        ) from None
    try:
        return load_file(path)
    except Exception as error:
        raise AbslrpError(f"{path} is not a whole safetensors file ({_first_line(error)}): get it again.") from error


def _read_torch(path: Path) -> Any:
    try:
        # Mapped, a tensor cannot reach beyond what the file holds of it.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=check_torch_file(path))
    except AbslrpError:
        raise
    except Exception as error:
        raise AbslrpError(
            f"{path} is not a torch file of plain tensors ({_first_line(error)}): save model.state_dict() into it."
        ) from error


def _state_dict(content: Any) -> dict[str, torch.Tensor]:
    for _ in range(_DEEPEST):
        inner = [content[key] for key in _NESTED_UNDER if isinstance(content, Mapping) and key in content]
        inner = [one for one in inner if isinstance(one, Mapping)]
        if not inner:
            break
        content = inner[0]
    if not isinstance(content, Mapping):
        return {}
    return {str(key): value for key, value in content.items() if isinstance(value, torch.Tensor)}


def _is_whole(value: torch.Tensor) -> bool:
    """Whether every element has a place of its own in memory: a few bytes can be told to be a tensor of any size."""
    if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.device.type != "cpu":
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _without_wrapper(weights: Weights, expected: Weights) -> Weights:
    """Drop the prefixes that DataParallel, torch.compile and training frameworks put before every name."""
    for prefix in _WRAPPER_PREFIXES:
        own = any(name.startswith(prefix) for name in expected)
        if not own and all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return weights


def _classes_in(weights: Weights, expected: Weights) -> int | None:
    """The number of classes in the weights, if the length of the last layers is all that sets the two apart."""
    lengths = set()
    for name in expected:
        if name in weights and weights[name].shape != expected[name].shape:
            if weights[name].shape[1:] != expected[name].shape[1:]:
                return None
            lengths.add((expected[name].shape[0], weights[name].shape[0]))
    return lengths.pop()[1] if len(lengths) == 1 else None


def _misfits(weights: Weights, expected: Weights) -> list[str]:
    """What keeps the weights out of the model, in words; empty if nothing does."""
    missing = [key for key in _required(expected) if key not in weights]
    unexpected = [key for key in weights if key not in expected]
    shapes = [
        f"{key} {tuple(weights[key].shape)} instead of {tuple(expected[key].shape)}"
        for key in expected
        if key in weights and weights[key].shape != expected[key].shape
    ]
    whole = [
        f"{key} ({str(weights[key].dtype).removeprefix('torch.')})"
        for key in expected
        if key in weights and expected[key].is_floating_point() and not weights[key].is_floating_point()
    ]
    kinds = (
        *(("missing", missing), ("unexpected", unexpected), ("of another shape", shapes)),
        ("of another type than decimal numbers", whole),
    )
    return [f"{what} {_some(keys)}" for what, keys in kinds if keys]


def _required(expected: Weights) -> list[str]:
    # Counters of training steps are of no use here, and old files do not have them.
    return [key for key in expected if not key.endswith("num_batches_tracked")]


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(shown(key, 160) for key in keys[:_SHOWN]) + more


def _first_line(error: Exception) -> str:
    return shown((str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:"), 160)
