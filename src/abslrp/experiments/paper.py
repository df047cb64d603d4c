"""The tables of the absLRP paper as data: D. Vukadin, P. Afrić, M. Šilić and G. Delač,
"Advancing Attribution-Based Neural Network Explainability through Relative Absolute Magnitude Layer-Wise Relevance
Propagation and Multi-Component Evaluation", ACM TIST, 2024, doi:10.1145/3649458."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from abslrp.types import AbslrpError

MAIN = "score"
"""The name under which the main part of every metric can be asked for."""


@dataclass(frozen=True)
class PaperMetric:
    """A metric of the paper: its title, its direction and the parts it is printed in, the main one last."""

    name: str
    title: str
    higher_is_better: bool
    parts: tuple[str, ...] = (MAIN,)

    @property
    def main(self) -> str:
        """The part that decides which method is best."""
        return self.parts[-1]


@dataclass(frozen=True)
class Figure:
    """One published number: ``best`` where it is bold, ``starred`` where its lead could not be confirmed."""

    value: float
    best: bool = False
    starred: bool = False


@dataclass(frozen=True)
class Column:
    """What a column of a published table holds."""

    dataset: str
    metric: str
    part: str


@dataclass(frozen=True)
class PaperTable:
    """A published table: a row of figures for each method, one for each column."""

    number: int
    title: str
    architecture: str
    columns: tuple[Column, ...]
    rows: Mapping[str, tuple[Figure, ...]]

    def figure(self, method: str, dataset: str, metric: str, part: str) -> Figure | None:
        """The figure in the row of a method and the column of a dataset, a metric and a part, or None."""
        column = Column(dataset, metric, part)
        if method not in self.rows or column not in self.columns:
            return None
        return self.rows[method][self.columns.index(column)]


METRICS: dict[str, PaperMetric] = {
    metric.name: metric
    for metric in (
        PaperMetric("gae", "GAE", True, ("LC", "C", "GAE")),
        PaperMetric("road-morf", "ROAD MoRF", False),
        PaperMetric("road-lerf", "ROAD LeRF", True),
        PaperMetric("lipschitz", "Lipschitz", False),
        PaperMetric("focus", "Focus", True),
    )
}
ARCHITECTURES: dict[str, str] = {"vgg16": "VGG16", "resnet50": "ResNet50", "vit-base": "ViT-Base/16"}
DATASETS: dict[str, str] = {"imagenet": "ImageNet", "voc": "PascalVOC"}
NAMES: dict[str, str] = {
    "constant": "Constant",
    "random": "Random",
    "saliency": "Saliency",
    "input-x-gradient": "Input*Gradient",
    "deconvolution": "Deconvolution",
    "lrp-epsilon": "LRP-ε",
    "deeplift": "DeepLIFT",
    "lrp-alpha1beta0": "LRP-α1β0",
    "lrp-alpha2beta1": "LRP-α2β1",
    "integrated-gradients": "Integrated Gradients",
    "smoothgrad": "SmoothGrad",
    "gradcam": "GradCAM",
    "hirescam": "HiResCAM",
    "layercam": "LayerCAM",
    "gradcam++": "GradCAM++",
    "guided-gradcam": "GuidedGradCAM",
    "clrp": "cLRP",
    "rap": "RAP",
    "crap": "cRAP",
    "last-layer-attention": "LLAttention",
    "rollout": "Rollout",
    "tibav": "TIBAV",
    "abslrp": "Ours",
}
"""What the paper calls our methods."""

ABLATION = 10
ABLATIONS: dict[str, str] = {
    "abslrp": "Ours",
    "patches": "Patch relevance",
    "values": "Value relevance",
    "queries-keys": "Query and key relevance",
}
"""The rows of the ablation, ``values`` and ``queries-keys`` after our option ``attention``, and the paper's names."""

_OTHER = ("road-morf", "road-lerf", "lipschitz", "focus")
_KINDS: dict[int, tuple[str, str, tuple[str, ...]]] = {
    1: ("vgg16", "imagenet", ("gae",)),
    2: ("vgg16", "voc", ("gae",)),
    3: ("resnet50", "imagenet", ("gae",)),
    4: ("resnet50", "voc", ("gae",)),
    5: ("vit-base", "imagenet", ("gae",)),
    6: ("vit-base", "voc", ("gae",)),
    7: ("vgg16", "imagenet", _OTHER),
    8: ("resnet50", "imagenet", _OTHER),
    9: ("vit-base", "imagenet", _OTHER),
    11: ("vgg16", "voc", _OTHER),
    12: ("resnet50", "voc", _OTHER),
    13: ("vit-base", "voc", _OTHER),
}

# A figure is written as printed; "!" says bold, "*" says bold with the star of an unconfirmed difference.
_ROWS: dict[int, str] = {
    1: """
        constant             0.0    0.0    0.0
        random               0.0    0.0    0.0
        saliency             0.0    0.011  0.0
        input-x-gradient     0.076  0.016  0.0
        deconvolution        0.0    0.0    0.0
        lrp-epsilon          0.117  0.022  0.001
        deeplift             0.159  0.08   0.011
        lrp-alpha1beta0      0.318  0.003  0.001
        lrp-alpha2beta1      0.307  0.016  0.006
        integrated-gradients 0.139  0.022  0.002
        smoothgrad           0.004  0.016  0.0
        gradcam              0.132  0.424  0.06
        hirescam             0.107  0.342  0.038
        layercam             0.079  0.089  0.008
        gradcam++            0.093  0.056  0.006
        guided-gradcam       0.281  0.665  0.207
        clrp                 0.3    0.407  0.12
        rap                  0.383  0.202  0.097
        crap                 0.106  0.542  0.053
        abslrp               0.396  0.676  0.272!
    """,
    2: """
        constant             0.0    0.001  0.0
        random               0.0    0.001  0.0
        saliency             0.0    0.013  0.0
        input-x-gradient     0.085  0.023  0.002
        deconvolution        0.0    0.002  0.0
        lrp-epsilon          0.134  0.027  0.003
        deeplift             0.161  0.071  0.01
        lrp-alpha1beta0      0.312  0.009  0.002
        lrp-alpha2beta1      0.3    0.022  0.006
        integrated-gradients 0.157  0.029  0.004
        smoothgrad           0.002  0.018  0.0
        gradcam              0.112  0.372  0.042
        hirescam             0.096  0.287  0.025
        layercam             0.069  0.089  0.007
        gradcam++            0.093  0.063  0.006
        guided-gradcam       0.254  0.606  0.167
        clrp                 0.267  0.398  0.112
        rap                  0.36   0.242  0.094
        crap                 0.11   0.497  0.054
        abslrp               0.399  0.594  0.238!
    """,
    3: """
        integrated-gradients 0.127  0.119  0.015
        smoothgrad           0.003  0.141  0.001
        gradcam              0.181  0.385  0.07
        hirescam             0.186  0.307  0.056
        layercam             0.187  0.299  0.055
        gradcam++            0.24   0.391  0.093
        guided-gradcam       0.243  0.523  0.127
        clrp                 0.358  0.792  0.283*
        rap                  0.004  0.109  0.001
        crap                 0.073  0.599  0.042
        abslrp               0.361  0.75   0.272*
    """,
    4: """
        integrated-gradients 0.088  0.101  0.009
        smoothgrad           0.0    0.128  0.0
        gradcam              0.165  0.391  0.07
        hirescam             0.165  0.299  0.054
        layercam             0.157  0.261  0.047
        gradcam++            0.21   0.371  0.082
        guided-gradcam       0.189  0.576  0.11
        clrp                 0.312  0.863  0.266*
        rap                  0.005  0.099  0.002
        crap                 0.058  0.597  0.04
        abslrp               0.299  0.828  0.251*
    """,
    5: """
        gradcam              0.042  0.651  0.024
        gradcam++            0.003  0.164  0.0
        hirescam             0.06   0.821  0.047
        layercam             0.032  0.745  0.022
        last-layer-attention 0.002  0.0    0.0
        rollout              0.005  0.022  0.0
        tibav                0.018  0.475  0.006
        abslrp               0.162  0.564  0.075!
    """,
    6: """
        gradcam              0.034  0.53   0.017
        gradcam++            0.002  0.169  0.0
        hirescam             0.072  0.679  0.045
        layercam             0.042  0.557  0.02
        last-layer-attention 0.001  0.008  0.0
        rollout              0.005  0.027  0.0
        tibav                0.02   0.394  0.008
        abslrp               0.164  0.476  0.072!
    """,
    7: """
        constant             0.461  0.459  0.0!   0.5
        random               0.585  0.587  1.123  0.5
        saliency             0.398  0.65   0.459  0.549
        input-x-gradient     0.352  0.619  0.371  0.547
        deconvolution        0.483  0.639  0.445  0.501
        lrp-epsilon          0.3    0.678  0.341  0.566
        deeplift             0.244  0.731  0.291  0.621
        lrp-alpha1beta0      0.199* 0.762  0.126  0.506
        lrp-alpha2beta1      0.226  0.776  0.087  0.535
        integrated-gradients 0.302  0.669  0.331  0.559
        smoothgrad           0.28   0.746  0.357  0.561
        gradcam              0.207  0.798* 0.687  0.844
        hirescam             0.204  0.777  0.634  0.807
        layercam             0.199* 0.779  0.499  0.642
        gradcam++            0.213  0.758  0.496  0.628
        guided-gradcam       0.177* 0.818* 0.13   0.886*
        clrp                 0.229  0.79   0.167  0.833
        rap                  0.216  0.77   0.176  0.482
        crap                 0.302  0.702  0.401  0.833
        abslrp               0.184* 0.792* 0.23   0.885*
    """,
    8: """
        integrated-gradients 0.452  0.773  0.338  0.65
        smoothgrad           0.416  0.856* 0.336  0.665
        gradcam              0.298  0.792  0.417  0.769
        hirescam             0.297  0.787  0.42   0.714
        layercam             0.305  0.777  0.457  0.685
        gradcam++            0.311  0.777  0.479  0.747
        guided-gradcam       0.305  0.857* 0.126* 0.803
        clrp                 0.25*  0.866* 0.13*  0.96*
        rap                  0.42   0.689  0.814  0.544
        crap                 0.413  0.759  0.744  0.878
        abslrp               0.266* 0.836  0.243  0.966*
    """,
    9: """
        gradcam              0.317! 0.82*  0.867  0.913*
        gradcam++            0.56   0.678  2.556  0.707
        hirescam             0.383  0.833* 0.61   0.913*
        layercam             0.399  0.819* 0.665  0.883
        last-layer-attention 0.406  0.774  0.54   0.472
        rollout              0.414  0.789  1.064  0.496
        tibav                0.384  0.813* 0.876  0.798
        abslrp               0.457  0.803* 0.477! 0.826
    """,
    10: """
        abslrp               0.075! 0.072!
        patches              0.041  0.035
        values               0.064  0.047
        queries-keys         0.037  0.04
    """,
    11: """
        constant             0.301  0.302  0.0!   0.5
        random               0.343  0.338  1.123  0.5
        saliency             0.222  0.401  0.477  0.526
        input-x-gradient     0.22   0.361  0.394  0.537
        deconvolution        0.252  0.416  0.47   0.5
        lrp-epsilon          0.166  0.428  0.361  0.537
        deeplift             0.108  0.478  0.316  0.594
        lrp-alpha1beta0      0.105  0.562  0.124  0.507
        lrp-alpha2beta1      0.105  0.58*  0.089  0.526
        integrated-gradients 0.182  0.419  0.361  0.549
        smoothgrad           0.133  0.533  0.375  0.528
        gradcam              0.074* 0.511  0.775  0.766
        hirescam             0.102  0.52   0.73   0.731
        layercam             0.087* 0.53   0.613  0.581
        gradcam++            0.084* 0.51   0.6    0.572
        guided-gradcam       0.071* 0.591* 0.135  0.779*
        clrp                 0.062* 0.559* 0.17   0.755
        rap                  0.103  0.481  0.195  0.441
        crap                 0.134  0.468  0.346  0.761
        abslrp               0.071* 0.563* 0.237  0.787*
    """,
    12: """
        integrated-gradients 0.248  0.548  0.339  0.639
        smoothgrad           0.187  0.655* 0.335  0.633
        gradcam              0.152  0.585  0.472  0.735
        hirescam             0.153  0.567  0.471  0.67
        layercam             0.154  0.584  0.495  0.66
        gradcam++            0.146  0.584  0.505  0.733
        guided-gradcam       0.141  0.63   0.131* 0.743
        clrp                 0.109* 0.683* 0.142* 0.906*
        rap                  0.218  0.413  0.796  0.524
        crap                 0.173  0.566  0.693  0.784
        abslrp               0.113* 0.659* 0.232  0.913*
    """,
    13: """
        gradcam              0.131! 0.642* 0.853  0.8*
        gradcam++            0.341  0.451  2.434  0.594
        hirescam             0.162  0.634* 0.524  0.785*
        layercam             0.182  0.62*  0.586  0.756
        last-layer-attention 0.208  0.566  0.574  0.485
        rollout              0.232  0.572  1.059  0.487
        tibav                0.168  0.609* 0.756  0.677
        abslrp               0.195  0.573  0.46!  0.689
    """,
}


def _figure(text: str) -> Figure:
    return Figure(float(text.rstrip("!*")), best=text[-1] in "!*", starred=text[-1] == "*")


def _rows(number: int) -> dict[str, tuple[Figure, ...]]:
    lines = (line.split() for line in _ROWS[number].strip().splitlines())
    return {name: tuple(map(_figure, figures)) for name, *figures in lines}


def _table(number: int) -> PaperTable:
    architecture, dataset, metrics = _KINDS[number]
    columns = tuple(Column(dataset, name, part) for name in metrics for part in METRICS[name].parts)
    head = "GAE" if metrics == ("gae",) else "Other metrics"
    title = f"{head}, {ARCHITECTURES[architecture]}, {DATASETS[dataset]}"
    return PaperTable(number, title, architecture, columns, _rows(number))


def _ablation() -> PaperTable:
    columns = tuple(Column(dataset, "gae", METRICS["gae"].main) for dataset in DATASETS)
    title = f"Ablation of absLRP, GAE, {ARCHITECTURES['vit-base']}"
    return PaperTable(ABLATION, title, "vit-base", columns, _rows(ABLATION))


TABLES: dict[int, PaperTable] = {
    number: _ablation() if number == ABLATION else _table(number) for number in sorted([*_KINDS, ABLATION])
}


def table(number: int) -> PaperTable:
    """A table of the paper by its number: GAE in 1 to 6, other metrics in 7 to 9 and 11 to 13, the ablation in 10.

    >>> table(10).rows["values"][0]
    Figure(value=0.064, best=False, starred=False)
    """
    if number not in TABLES:
        raise AbslrpError(f"the paper has no table {number}: ask for one from {min(TABLES)} to {max(TABLES)}")
    return TABLES[number]


def figure(architecture: str, dataset: str, metric: str, method: str, part: str | None = None) -> Figure | None:
    """A published number with its print, or None where the paper has none; without ``part`` the main part.

    >>> figure("resnet50", "imagenet", "gae", "clrp")
    Figure(value=0.283, best=True, starred=True)
    """
    if metric not in METRICS:
        return None
    wanted = METRICS[metric].main if part in (None, MAIN) else part
    for number, (known, *_) in _KINDS.items():
        found = TABLES[number].figure(method, dataset, metric, str(wanted)) if known == architecture else None
        if found is not None:
            return found
    return None


def published(architecture: str, dataset: str, metric: str, method: str, part: str | None = None) -> float | None:
    """The number that the paper prints, or None where it has none; without ``part`` (or with "score") the main part.

    >>> published("vgg16", "imagenet", "gae", "abslrp"), published("vgg16", "imagenet", "gae", "abslrp", "LC")
    (0.272, 0.396)
    >>> published("resnet50", "imagenet", "gae", "saliency") is None
    True
    """
    found = figure(architecture, dataset, metric, method, part)
    return None if found is None else found.value


def methods_of(architecture: str) -> list[str]:
    """Our names of the methods that the paper compares on an architecture, in its order.

    >>> methods_of("vit-base")[-2:]
    ['tibav', 'abslrp']
    """
    for number, (known, *_) in _KINDS.items():
        if known == architecture:
            return list(TABLES[number].rows)
    raise AbslrpError(f"the paper has no {architecture!r}: ask for one of {', '.join(ARCHITECTURES)}")
