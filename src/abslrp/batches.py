"""Many image files explained and written, batch by batch, and the contact sheets of the demonstration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from abslrp.explain import explain
from abslrp.inputs.images import read_image
from abslrp.inputs.models import LoadedModel
from abslrp.query import logits
from abslrp.registry import Method
from abslrp.reporting.files import class_label, class_slug, unique_stems, write_explanation
from abslrp.reporting.heatmaps import grid, overlay
from abslrp.reporting.tables import ClassRow
from abslrp.types import AbslrpError, Attribution

_SHOWN_CLASSES = 5
# Enough for a picture of 224 pixels, and short enough to wait for.
SHORT: dict[str, dict[str, Any]] = {
    "integrated-gradients": {"steps": 16},
    "smoothgrad": {"samples": 8},
    "occlusion": {"window": 28},
    "rise": {"masks": 60},
}


@dataclass(frozen=True)
class Job:
    """What is to be done to every image: one target for all, or the ``top`` most probable classes of each."""

    loaded: LoadedModel
    out: Path
    method: str = "abslrp"
    options: Mapping[str, Any] = field(default_factory=dict)
    target: int | None = None
    top: int = 1
    device: str = "cpu"


def explain_files(
    job: Job,
    paths: Sequence[Path],
    batch: int = 8,
    *,
    done: Callable[[int], None] = lambda count: None,
    skipped: Callable[[AbslrpError], None] = lambda error: None,
) -> list[ClassRow]:
    """Explain files and write the results; ``done`` hears of progress, ``skipped`` of files that cannot be read."""
    rows: list[ClassRow] = []
    for part in _chunks(list(zip(unique_stems(paths), paths, strict=True)), batch):
        images: dict[str, Image.Image] = {}
        for stem, path in part:
            try:
                images[stem] = read_image(path)
            except AbslrpError as error:
                skipped(error)
        if images:
            rows += _explain_images(job, images)
        done(len(part))
    return rows


def contact_sheet(
    loaded: LoadedModel, photographs: Mapping[str, Image.Image], methods: Sequence[str], classes: int = 2
) -> np.ndarray:
    """A row for each photograph: itself, then every method's overlay for each of its most probable classes."""
    x = torch.stack([loaded.transform(image) for image in photographs.values()])
    outputs = class_scores(loaded, x)
    best, chances = outputs.argsort(dim=1, descending=True, stable=True), outputs.softmax(dim=1)
    maps = {
        (rank, method): explain(loaded.model, x, best[:, rank], method).maps
        for rank in range(classes)
        for method in methods
    }
    cells, labels = [], []
    for number, (name, image) in enumerate(photographs.items()):
        picture = loaded.transform.display(image)
        cells.append(picture)
        labels.append(name.partition("_")[0])
        for (rank, method), made in maps.items():
            index = int(best[number, rank])
            cells.append(overlay(made[number], picture))
            labels.append(f"{class_label(index, loaded.class_names)} {chances[number, index]:.0%}\n{method}")
    return grid(cells, 1 + len(maps), labels, f"{loaded.name}: red speaks for the class, blue against", font_size=16)


def method_sheet(
    loaded: LoadedModel,
    photograph: Image.Image,
    methods: Sequence[Method],
    *,
    columns: int = 6,
    done: Callable[[str], None] = lambda name: None,
) -> np.ndarray:
    """One photograph under many methods, by family, for its most probable class; ``done`` hears of each method."""
    x = loaded.transform(photograph)[None]
    outputs = class_scores(loaded, x)
    target = int(outputs.argmax())
    picture = loaded.transform.display(photograph)
    cells, labels, groups = [picture], [""], ["photograph"]
    for method in methods:
        made = explain(loaded.model, x, target, method.name, **SHORT.get(method.name, {})).maps[0]
        signed = bool((made < 0).any())
        # A map without a sign has no zero of its own: what counts is how far it rises above its lowest place.
        values = made.sum(0) if signed else made.sum(0) - made.sum(0).min()
        cells.append(overlay(values, picture, mode="diverging" if signed else "positive"))
        labels.append(method.name if bool(made.isfinite().all()) else f"{method.name}: not finite")
        groups.append(method.family)
        done(method.name)
    chance, label = float(outputs.softmax(dim=1)[0, target]), class_label(target, loaded.class_names)
    title = f"{loaded.name}: {label} {chance:.0%} under {len(methods)} methods; red speaks for it, blue against"
    return grid(cells, columns, labels, title, groups=groups, font_size=16)


def class_scores(loaded: LoadedModel, x: torch.Tensor) -> torch.Tensor:
    """The model's outputs (batch, classes) for inputs, without any explanation."""
    with torch.no_grad():
        return logits(loaded.model(x), len(x))


def _explain_images(job: Job, images: Mapping[str, Image.Image]) -> list[ClassRow]:
    names, transform = job.loaded.class_names, job.loaded.transform
    x = torch.stack([transform(image) for image in images.values()]).to(job.device)
    pictures = [transform.display(image) for image in images.values()]
    first = explain(job.loaded.model, x, job.target, job.method, **job.options)
    ranked = first.outputs.argsort(dim=1, descending=True, stable=True).cpu()
    explained: list[list[int]] = [[] for _ in images]
    for rank in range(min(job.top, ranked.shape[1])):
        result = first if rank == 0 else explain(job.loaded.model, x, ranked[:, rank], job.method, **job.options)
        for number, stem in enumerate(images):
            index = int(result.targets[number])
            explained[number].append(index)
            name = f"{stem}-{class_slug(index, names)}-{job.method}"
            maps = result.maps[number].cpu().numpy()
            write_explanation(job.out, name, maps, pictures[number], _record(job, result, number))
    chances = first.outputs.softmax(dim=1).cpu()
    return [
        ClassRow(stem, class_label(index, names), index, float(chances[number, index]), index in explained[number])
        for number, stem in enumerate(images)
        for index in dict.fromkeys(ranked[number, :_SHOWN_CLASSES].tolist() + explained[number])
    ]


def _record(job: Job, result: Attribution, number: int) -> dict[str, Any]:
    index = int(result.targets[number])
    return {
        "target": index,
        "class_name": class_label(index, job.loaded.class_names),
        "outputs": result.outputs[number].cpu().numpy().astype(np.float32),
        "method": job.method,
        "options": repr(dict(job.options)),
        "model": job.loaded.name,
    }


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
