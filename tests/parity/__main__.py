"""``python -m tests.parity``: run every case and write docs/parity.md from the numbers."""

from __future__ import annotations

from pathlib import Path

from tests.parity.cases import CASES

HEAD = """# Parity

What other libraries compute, and how near ours is: max |ours − theirs| / max |theirs| over the maps of two images, made by
`python -m tests.parity` from the cases that the tests hold to their tolerances (networks with random weights, float64; grad-cam
in float32, which is all it computes in).

| method | peer | network | settings | measured | tolerance |
|---|---|---|---|---|---|
"""
TAIL = """
## Where we differ on purpose

| what | there | here | why |
|---|---|---|---|
| LRP-α1β0 | Captum clamps the weights only and keeps the signed bias | x⁺W⁺ + x⁻W⁻ over their sum with the clamped bias, as Zennit | clamping weights is wrong where inputs are negative, as in the first layer |
| LRP start | Captum multiplies by the logit | one-hot; `start="logit"` for theirs | maps of two classes are comparable |
| guided backpropagation, deconvolution | Captum hooks `nn.ReLU` modules | every rectifier, functional or reused | a skipped rectifier is a silently wrong map (tested) |
| DeepLIFT at max pooling | Captum uses the first sample's gradient where pooled inputs do not differ | the sample's own gradient | ours sums to the difference of outputs (tested), theirs does not |
| DeepLIFT | Captum refuses reused modules | works | the engine sees operations, not modules |
| LRP on timm and torchvision transformers | Captum refuses `Identity` and `Flatten` | works | as above |
| BatchNorm | Zennit merges it into the convolution, changing the model for a while | one affine step of its own | the model is never changed; merge it yourself for Zennit's maps |
| GradCAM and kin | grad-cam scales each map to 0…1 | raw values after ReLU | maps of two classes are comparable |
| GuidedGradCAM | Captum enlarges by nearest | bilinear | no blocks |
| integrated gradients | Captum 50 Gauss–Legendre, Zennit 20 right | 50 midpoint; `rule="gauss-legendre"`, `rule="right"` | the same error for fewer surprises at the ends |
| SmoothGrad | Captum σ = 1 absolute, 5 samples; Zennit σ = 0.1 of the range, 20 | σ = 0.15 of the range, 20, the same noise for all images | independent of the batch |
| RAP | its authors' code recognises the first layer by `R.max() == 1` | the paper's equation in every layer | works in batches |
| TIBAV | batches of one | batches | the engine follows samples |

Rollout, last-layer attention, TIBAV, AttnLRP, RAP, cLRP and cRAP have no peer that installs here; they equal slow references
written from their equations (`tests/reference/lrp.py`, `tests/parity/test_reference_rules.py`).
"""


def main() -> None:
    rows = []
    for case in CASES:
        error = case.error()
        assert error <= case.tolerance, (case, error)
        rows.append(
            f"| {case.method} | {case.peer} | {case.network} | {case.note} | {error:.1e} | {case.tolerance:.0e} |"
        )
    path = Path(__file__).parents[2] / "docs" / "parity.md"
    path.write_text(HEAD + "\n".join(rows) + "\n" + TAIL)
    print(f"{len(rows)} cases written to {path.name}")


if __name__ == "__main__":
    main()
