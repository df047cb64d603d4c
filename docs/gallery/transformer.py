"""Photographs explained by ViT-Tiny under four methods, side by side: python docs/gallery/transformer.py --weights FILE.

The file holds the weights of timm's vit_tiny_patch16_224, trained on ImageNet. The photographs come with scikit-image.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import skimage
import torch

import abslrp
from abslrp.inputs.images import Transform, read_image
from abslrp.inputs.models import load_model
from abslrp.reporting.heatmaps import grid, overlay, save_png

PHOTOGRAPHS = ("chelsea", "coffee", "motorcycle_left", "rocket")
METHODS = {
    "hirescam": "HiResCAM",
    "abslrp": "absLRP, the paper's rule",
    "abslrp-agree": "absLRP-agree",
    "abslrp-transformer": "absLRP-transformer",
}


def draw(weights: Path, out: Path) -> Path:
    loaded = load_model("timm:vit_tiny_patch16_224", weights)
    transform = Transform(resize=248, mean=(0.5,) * 3, std=(0.5,) * 3)
    folder = Path(skimage.__file__).parent / "data"
    images = [read_image(next(folder.glob(f"{name}.*"))) for name in PHOTOGRAPHS]
    x = torch.stack([transform(image) for image in images])
    made = {method: abslrp.explain(loaded.model, x, method=method) for method in METHODS}
    cells, labels = [], []
    for k, image in enumerate(images):
        first = made["abslrp"]
        index = int(first.targets[k])
        name = loaded.class_names[index] if loaded.class_names else f"class {index}"
        cells.append(transform.display(image))
        labels.append(f"{name} {float(first.outputs[k].softmax(0)[index]):.0%}")
        for method, title in METHODS.items():
            cells.append(overlay(made[method].maps[k], transform.display(image)))
            labels.append(title)
    title = "ViT-Tiny with patches of 16 pixels: red speaks for the class, blue against"
    return save_png(grid(cells, 1 + len(METHODS), labels, title, font_size=16), out, colours=256)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="the file of the weights")
    parser.add_argument("--out", type=Path, default=Path("transformer.png"), help="the picture to write")
    given = parser.parse_args()
    try:
        print(draw(given.weights, given.out))
    except abslrp.AbslrpError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
