"""Four photographs, three methods, one score: python docs/gallery/believe.py. A first look, since four images settle nothing."""

from __future__ import annotations

import argparse

import torch

import abslrp
from abslrp.inputs.models import load_model, sample_images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6, help="steps of masking")
    given = parser.parse_args()
    loaded = load_model()
    images = torch.stack([loaded.transform(image) for image in sample_images().values()])
    methods = ["abslrp", "abslrp-agree", "gradcam", "constant"]
    scores = abslrp.evaluate(loaded.model, images, methods, "gae", ids=list(sample_images()), T=given.steps)
    print(scores)
    for part in ("LC", "C"):
        print(part, {name: round(float(one.parts[part].mean()), 3) for name, one in scores["gae"].items()})


if __name__ == "__main__":
    main()
