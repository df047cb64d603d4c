"""Image classifiers of the transformers library, and their processors put into our transform."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image

from abslrp.inputs.images import INTERPOLATIONS, Transform
from abslrp.inputs.weights import load_weights, read_weights
from abslrp.types import AbslrpError

_LEVELS_APART = 4.0
"""How far, in grey levels of 255 on average, our transform may be from the model's own processor."""


def load_huggingface(
    name: str, label: str, weights: str | os.PathLike[str] | None, num_classes: int | None, pretrained: bool
) -> tuple[torch.nn.Module, Transform, list[str] | None]:
    """Load an image classifier from a name or a folder, with its transform and its labels."""
    from transformers import AutoConfig, AutoModelForImageClassification

    with quiet():
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        given = int(config.num_labels)
        if weights is not None:
            model = load_weights(lambda count: _from_config(config, count), read_weights(weights), label, num_classes)
        elif pretrained:
            if num_classes not in (None, given):
                raise AbslrpError(f"{label} has {given} classes, not {num_classes}: give weights= of your own.")
            model, report = AutoModelForImageClassification.from_pretrained(
                name, trust_remote_code=False, output_loading_info=True
            )
            refuse_new_weights(report, label)
        else:
            model = _from_config(config, num_classes)
        transform = _transform(name, config, label, strict=pretrained)
    final: Any = model.config
    names = [str(config.id2label[index]) for index in range(given)] if final.num_labels == given else None
    return model, transform, names


def _from_config(config: Any, num_classes: int | None) -> torch.nn.Module:
    from copy import deepcopy

    from transformers import AutoModelForImageClassification

    config = deepcopy(config)
    if num_classes is not None:
        config.num_labels = num_classes
    model: torch.nn.Module = AutoModelForImageClassification.from_config(config)
    return model


def refuse_new_weights(report: dict[str, Any], label: str) -> None:
    missing = sorted(report.get("missing_keys", ()))
    if missing:
        raise AbslrpError(
            f"{label} stores no {', '.join(missing[:3])}, so it is not a trained classifier: name a fine-tuned model."
        )


def _transform(name: str, config: Any, label: str, *, strict: bool) -> Transform:
    from transformers import AutoImageProcessor

    try:
        processor = AutoImageProcessor.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        size = getattr(config, "image_size", None)
        if strict or not isinstance(size, int):
            raise AbslrpError(
                f"{label} brings no image processor: put its preprocessor_config.json beside its config.json."
            ) from error
        return Transform(size=(size, size))
    transform = transform_of(processor)
    _check_transform(transform, processor, label)
    return transform


def transform_of(processor: Any) -> Transform:
    """The transform that a transformers image processor describes.

    >>> from types import SimpleNamespace
    >>> transform_of(SimpleNamespace(size={"height": 224, "width": 224}, resample=2, image_mean=[0.5] * 3,
    ...                              image_std=[0.5] * 3, rescale_factor=1 / 255)).interpolation
    'bilinear'
    """
    resize = _edges(processor, "size") if getattr(processor, "do_resize", True) else None
    crop = _edges(processor, "crop_size") if getattr(processor, "do_center_crop", False) else None
    percent = getattr(processor, "crop_pct", None)
    if percent and isinstance(resize, int):
        # These processors keep a margin below 384 pixels and squash from there on.
        crop, resize = (resize, resize), int(resize / percent) if resize < 384 else (resize, resize)
    size = crop or resize or (224, 224)
    height, width = (size, size) if isinstance(size, int) else size
    scale = 255 * (processor.rescale_factor if getattr(processor, "do_rescale", True) else 1.0)
    normal = getattr(processor, "do_normalize", True) and getattr(processor, "image_mean", None) is not None
    mean, std = (processor.image_mean, processor.image_std) if normal else ([0.0] * 3, [1.0] * 3)
    names = {int(value): name for name, value in INTERPOLATIONS.items()}
    return Transform(
        size=(height, width),
        resize=resize,
        mean=tuple(value / scale for value in mean),
        std=tuple(value / scale for value in std),
        interpolation=names.get(int(getattr(processor, "resample", 2) or 0), "bilinear"),
        bgr=bool(getattr(processor, "do_flip_channel_order", False)),
    )


def _edges(processor: Any, field: str) -> int | tuple[int, int] | None:
    size = getattr(processor, field, None)
    if size is None or isinstance(size, int):
        return size
    if size.get("shortest_edge"):
        return int(size["shortest_edge"])
    return (int(size["height"]), int(size["width"])) if size.get("height") else None


def _check_transform(transform: Transform, processor: Any, label: str) -> None:
    """Compare with the processor itself on one picture: its settings have many dialects."""
    ramp = np.indices((300, 400)).astype(np.float64)
    waves = [np.sin(ramp[0] / 23 + shift) * np.cos(ramp[1] / 31 - shift) for shift in (0.0, 1.0, 2.0)]
    image = Image.fromarray(((np.stack(waves, axis=-1) + 1) * 127.5).astype(np.uint8))
    theirs = torch.as_tensor(processor(image, return_tensors="pt")["pixel_values"])[0].float()
    ours = transform(image)
    std = torch.tensor(transform.std)[:, None, None]
    if theirs.shape != ours.shape or ((theirs - ours).abs() * std).mean() * 255 > _LEVELS_APART:
        raise AbslrpError(
            f"the image processor of {label} ({type(processor).__name__}) does more than is understood here: "
            "call abslrp.explain with images that it prepared."
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's running commentary and progress bars off the terminal; errors come as exceptions."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
