"""Eight photographs explained by three networks, side by side: python docs/gallery/contact_sheet.py --weights FOLDER.

The folder holds ``resnet50-imagenet.safetensors``, ``vit_tiny_patch16_224-imagenet.safetensors`` and
``vgg16gap-imagenette.safetensors``, stored in half precision. The photographs come with scikit-image.
"""

from __future__ import annotations

import argparse
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import skimage
import torch
from torch import nn

import abslrp
from abslrp.inputs.images import Transform, read_image
from abslrp.inputs.models import LoadedModel, load_model
from abslrp.inputs.torchvision_ops import ensure_torchvision
from abslrp.inputs.weights import read_weights
from abslrp.reporting.heatmaps import grid, overlay, save_png

PHOTOGRAPHS = ("chelsea", "coffee", "motorcycle_left", "camera", "rocket", "astronaut", "coins", "clock_motion")
# By WordNet id, as the network counts them.
IMAGENETTE = [
    *("tench", "English springer", "cassette player", "chain saw", "church"),
    *("French horn", "garbage truck", "gas pump", "golf ball", "parachute"),
]
# One crop for all, so that a row shows the same pixels; 248 is what ViT-Tiny was made with.
RESIZE = 248


def resnet50(folder: Path, class_names: list[str] | None) -> LoadedModel:
    """ResNet50 as the TensorFlow models have it: strides at the first convolution of a block, another ε, inputs to 255."""
    model = ensure_torchvision().models.resnet50()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
    for layer in (model.layer2, model.layer3, model.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    filled(model, folder / "resnet50-imagenet.safetensors")
    transform = Transform(resize=RESIZE, mean=(0.48503, 0.45796, 0.40760), std=(1 / 255,) * 3)
    return LoadedModel(model, transform, class_names, "ResNet50")


def vit_tiny(folder: Path) -> LoadedModel:
    """ViT-Tiny as timm builds it."""
    loaded = load_model("timm:vit_tiny_patch16_224", folder / "vit_tiny_patch16_224-imagenet.safetensors")
    transform = Transform(resize=RESIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    return LoadedModel(loaded.model, transform, loaded.class_names, "ViT-Tiny")


def vgg16(folder: Path) -> LoadedModel:
    """VGG16's convolutions with averaged features, for the ten classes of Imagenette."""
    layers = OrderedDict(
        features=ensure_torchvision().models.vgg16().features,
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=nn.Linear(512, len(IMAGENETTE)),
    )
    model = filled(nn.Sequential(layers), folder / "vgg16gap-imagenette.safetensors")
    return LoadedModel(model, Transform(resize=RESIZE), IMAGENETTE, "VGG16, 10 classes")


def filled(model: nn.Module, file: Path) -> nn.Module:
    """The model in evaluation mode with the file's weights, all of them and in float32."""
    stored = {name: value.float() for name, value in read_weights(file).items()}
    missing, unexpected = model.load_state_dict(stored, strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise abslrp.AbslrpError(f"{file} is of another network: {(missing + unexpected)[0]} does not fit.")
    return model.eval()


def sheet(networks: list[LoadedModel], method: str) -> np.ndarray:
    """A row for each photograph: itself, then each network's overlay for the class it predicts."""
    folder = Path(skimage.__file__).parent / "data"
    images = {name: read_image(next(folder.glob(f"{name}.*"))) for name in PHOTOGRAPHS}
    columns: list[list[tuple[np.ndarray, str]]] = [
        [(networks[0].transform.display(image), name.partition("_")[0]) for name, image in images.items()]
    ]
    for network in networks:
        x = torch.stack([network.transform(image) for image in images.values()])
        made = abslrp.explain(network.model, x, method=method, batch_size=4)
        chances = made.outputs.softmax(dim=1).amax(dim=1)
        names = network.class_names or [f"class {index}" for index in range(made.outputs.shape[1])]
        columns.append(
            [
                (overlay(one, network.transform.display(image)), f"{names[int(index)]} {chance:.0%}\n{network.name}")
                for one, image, index, chance in zip(made.maps, images.values(), made.targets, chances, strict=True)
            ]
        )
    cells = [cell for row in zip(*columns, strict=True) for cell in row]
    title = f"{method} for each network's own prediction: red speaks for the class, blue against"
    return grid([picture for picture, _ in cells], len(columns), [label for _, label in cells], title, font_size=16)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="the folder of the three files")
    parser.add_argument("--out", type=Path, default=Path("networks.png"), help="the picture to write")
    parser.add_argument("--method", default="abslrp", help="see: abslrp methods")
    parser.add_argument("--colours", type=int, help="make a small file of up to 256 colours")
    given = parser.parse_args()
    try:
        transformer = vit_tiny(given.weights)
        networks = [resnet50(given.weights, transformer.class_names), transformer, vgg16(given.weights)]
        print(save_png(sheet(networks, given.method), given.out, colours=given.colours))
    except abslrp.AbslrpError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
