"""One photograph, its two most probable classes, three methods, and what tells the classes apart: python docs/gallery/classes.py."""

from __future__ import annotations

import argparse
from pathlib import Path

import abslrp
from abslrp.inputs.models import load_model, sample_images
from abslrp.reporting.heatmaps import save_png
from abslrp.reporting.side_by_side import sheet

METHODS = ("abslrp", "abslrp-agree", "gradcam")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", default="coffee")
    parser.add_argument("--out", type=Path, default=Path("classes.png"))
    given = parser.parse_args()
    loaded, photograph = load_model(), sample_images()[given.sample]
    x, names = loaded.transform(photograph)[None], loaded.class_names or []
    best = abslrp.explain(loaded.model, x).outputs[0].argsort(descending=True)[:2].tolist()
    maps = {
        (names[index], method): abslrp.explain(loaded.model, x, index, method).maps[0]
        for index in best
        for method in METHODS
    }
    title = f"{loaded.name}: red speaks for the class, blue against"
    picture = sheet(maps, loaded.transform.display(photograph), title=title, compare=True)
    print(save_png(picture, given.out, colours=256))


if __name__ == "__main__":
    main()
