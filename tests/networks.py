"""The real networks and images of ../shared, for tests that find them there."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import torch
from torch import Tensor, nn

from abslrp.inputs.images import Transform, read_image
from abslrp.inputs.torchvision_ops import ensure_torchvision


class VggGap(nn.Module):
    def __init__(self) -> None:
        import torchvision

        super().__init__()
        self.features = torchvision.models.vgg16().features
        self.avgpool, self.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))  # type: ignore[no-any-return]


FILES = {"resnet50": "resnet50-imagenet", "vit-tiny": "vit_tiny_patch16_224-imagenet", "vgg16": "vgg16gap-imagenette"}


TRANSFORMS = {
    "resnet50": Transform(resize=224, mean=(0.48503, 0.45796, 0.40760), std=(1 / 255,) * 3),
    "vit-tiny": Transform(resize=248, mean=(0.5,) * 3, std=(0.5,) * 3),
    "vgg16": Transform(resize=224),
}


def shared_network(shared: Path, name: str) -> nn.Module:
    """A network of ../shared/weights, in eval mode and float32."""
    ensure_torchvision()
    import timm
    import torchvision
    from safetensors.torch import load_file

    if name == "resnet50":
        model: nn.Module = torchvision.models.resnet50()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = 1e-3
        for layer in (model.layer2, model.layer3, model.layer4):
            layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)  # type: ignore[index, union-attr]
    else:
        model = VggGap() if name == "vgg16" else timm.create_model("vit_tiny_patch16_224")
    state = {k: v.float() for k, v in load_file(shared / "weights" / f"{FILES[name]}.safetensors").items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(k.endswith("num_batches_tracked") for k in missing)
    return model.eval()


def shared_images(shared: Path, name: str, number: int, seed: int = 0) -> Tensor:
    """Images that the network was made for, drawn by a seed."""
    return torch.stack([TRANSFORMS[name](read_image(f)) for f in _files(shared, name, number, seed)])


def shared_labels(shared: Path, name: str, number: int, seed: int = 0) -> list[int]:
    """The classes of the same images."""
    folder = _folder(shared, name)
    if name == "vgg16":
        index = {wnid: k for k, wnid in enumerate(sorted(p.name for p in folder.iterdir() if p.is_dir()))}
    else:
        with (folder / "classes.csv").open(newline="") as lines:
            index = {row[1]: int(row[0]) for row in list(csv.reader(lines))[1:]}
    return [index[f.parent.name] for f in _files(shared, name, number, seed)]


def _folder(shared: Path, name: str) -> Path:
    return shared / "data" / ("imagenette-val" if name == "vgg16" else "imagenet-val")


def _files(shared: Path, name: str, number: int, seed: int) -> list[Path]:
    files = sorted(p for p in _folder(shared, name).glob("*/*") if p.suffix.lower() in (".jpeg", ".jpg", ".png"))
    random.Random(seed).shuffle(files)
    return files[:number]
