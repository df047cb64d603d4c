"""Where relevance lies on its way down, from late blocks to the input: python docs/gallery/layers.py."""

from __future__ import annotations

import argparse
from pathlib import Path

import abslrp
from abslrp.inputs.models import load_model, sample_images
from abslrp.reporting.heatmaps import grid, overlay, save_png

PLACES = ("blocks.6", "blocks.4", "blocks.2", "blocks.0", None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", default="chelsea")
    parser.add_argument("--out", type=Path, default=Path("layers.png"))
    given = parser.parse_args()
    loaded, photograph = load_model(), sample_images()[given.sample]
    x, display = loaded.transform(photograph)[None], loaded.transform.display(photograph)
    maps = [abslrp.explain(loaded.model, x, method="abslrp-agree", at=place).maps[0] for place in PLACES]
    pictures = [overlay(one, display) for one in maps]
    labels = [f"{place or 'input'} {one.shape[1]}×{one.shape[2]}" for place, one in zip(PLACES, maps, strict=True)]
    title = f"abslrp-agree in {loaded.name}, from block to block"
    print(save_png(grid(pictures, len(pictures), labels, title, font_size=15), given.out, colours=256))


if __name__ == "__main__":
    main()
