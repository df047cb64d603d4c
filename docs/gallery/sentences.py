"""The three sentences of the paper's figure for BERT, explained for the class positive by our default for text and by the paper's rule.

python docs/gallery/sentences.py --model ../shared/weights/minilm-sentiment --out docs/gallery/sentences.png
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import abslrp
from abslrp.inputs.models import resolve_target
from abslrp.inputs.sentences import load_text_classifier
from abslrp.reporting.heatmaps import save_png
from abslrp.reporting.words import Line, picture

SENTENCES = (
    "I hate this movie and i never want to see it again! However, I loved the leading actor so much!",
    "30% good, 10% too predictable, 60% terrible. I guess davies won't be saving dr. feh after all.",
    "Pros: The actor performance was admiring, Cons: The script was embarrassing",
)
METHODS = {"lrp-text": "lrp-text, the default for text", "abslrp": "abslrp, the paper's rule"}


def draw(model: str, out: Path) -> Path:
    loaded = load_text_classifier(model)
    target = resolve_target("positive", loaded.class_names, len(loaded.class_names))
    lines = []
    for sentence in SENTENCES:
        for method, title in METHODS.items():
            a = abslrp.explain_text(loaded.model, loaded.tokenizer, sentence, targets=target, method=method)
            chance = float(a.outputs.softmax(0)[target])
            lines.append(Line(a, f"{title}: positive {chance:.1%}"))
    return save_png(picture(lines, "Red speaks for positive, blue against", width=1160), out, colours=128)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder with a sentiment classifier")
    parser.add_argument("--out", type=Path, default=Path("sentences.png"))
    arguments = parser.parse_args()
    try:
        print(draw(arguments.model, arguments.out))
    except abslrp.AbslrpError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
