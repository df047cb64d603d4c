"""The paper's tables as data equal the paper's source, number by number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import abslrp
from abslrp.experiments import paper
from abslrp.types import AbslrpError

ARCHITECTURES = {"vgg16": "VGG", "resnet50": "ResNet50", "vit-base": "ViT-Base"}
DATASETS = {"imagenet": "ImageNet", "voc": "PascalVOC"}
HEADS = {
    ("gae", "LC"): "LC",
    ("gae", "C"): "C",
    ("gae", "GAE"): "Total",
    ("road-morf", "score"): r"ROAD^{MoRF} (\downarrow)",
    ("road-lerf", "score"): r"ROAD^{LeRF} (\uparrow)",
    ("lipschitz", "score"): r"Lipschitz (\downarrow)",
    ("focus", "score"): r"Focus (\uparrow)",
}
NUMBERS = range(1, 14)


@pytest.fixture(scope="module")
def printed(shared: Path) -> list[tuple[str, list[str], list[list[str]]]]:
    """Caption, column heads and rows of every table of the source, in its order."""
    source = shared / "paper" / "abslrp-gae.tex"
    if not source.is_file():
        pytest.skip("the paper's source is not in ../shared/paper")
    tex = source.read_text(encoding="utf-8")
    pattern = r"\\caption(?:of\{table\})?\{((?:(?!\\caption).)*?)\\toprule(.*?)\\midrule(.*?)\\bottomrule"
    found = re.findall(pattern, tex, re.DOTALL)
    return [
        (caption, [cell.strip(" \\\n") for cell in head.split("&")], [row(line) for line in body.strip().splitlines()])
        for caption, head, body in found
    ]


def row(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removesuffix(r"\\").split("&")]


def name(cell: str) -> str:
    """A method's name without its mathematics."""
    text = re.sub(r"\\textbf\{(.*)\}", r"\1", cell)
    for macro, sign in ((r"\epsilon", "ε"), (r"\alpha", "α"), (r"\beta", "β"), ("$", ""), ("_", "")):
        text = text.replace(macro, sign)
    return text


def figure(cell: str) -> paper.Figure:
    found = re.fullmatch(r"(\\textbf\{)?([\d.]+)\}?(\*?)(?: \(-[\d.]+\\%\))?", cell)
    assert found, cell
    bold, number, star = found.groups()
    # The one misprint: a share of 747 for GradCAM++.
    return paper.Figure(0.747 if number == "747" else float(number), bool(bold), bool(star))


def test_source_has_all_tables(printed: list) -> None:
    assert len(printed) == len(NUMBERS) == len(paper.TABLES)
    assert list(paper.TABLES) == list(NUMBERS)
    assert sum(len(cells) - 1 for *_, rows in printed for cells in rows) == sum(
        len(row) for table in paper.TABLES.values() for row in table.rows.values()
    )


@pytest.mark.parametrize("number", NUMBERS)
def test_every_figure_is_the_printed_one(printed: list, number: int) -> None:
    """Values, bold print and stars, with the methods in the paper's order and under its names."""
    _, _, rows = printed[number - 1]
    names = paper.ABLATIONS if number == paper.ABLATION else paper.NAMES
    table = paper.table(number)
    assert [name(cells[0]) for cells in rows] == [names[method] for method in table.rows]
    for cells, (method, figures) in zip(rows, table.rows.items(), strict=True):
        assert tuple(figure(cell) for cell in cells[1:]) == figures, method


@pytest.mark.parametrize("number", NUMBERS)
def test_columns_are_the_printed_ones(printed: list, number: int) -> None:
    caption, heads, _ = printed[number - 1]
    table = paper.table(number)
    assert table.number == number
    assert ARCHITECTURES[table.architecture] in caption
    if number == paper.ABLATION:
        assert heads[1:] == [DATASETS[column.dataset] for column in table.columns]
        return
    assert all(DATASETS[column.dataset] in caption for column in table.columns)
    assert heads[1:] == [rf"$\overline{{{HEADS[column.metric, column.part]}}}$" for column in table.columns]


def test_directions_are_the_printed_ones() -> None:
    for (metric, _), head in HEADS.items():
        assert paper.METRICS[metric].higher_is_better == ("down" not in head)


def test_losses_of_the_ablation_follow_from_its_figures(printed: list) -> None:
    variants = printed[paper.ABLATION - 1][2][1:]
    table = paper.table(paper.ABLATION)
    for cells, variant in zip(variants, list(table.rows)[1:], strict=True):
        for at in range(2):
            loss = re.search(r"\((-[\d.]+)\\%\)", cells[1 + at])
            ours = table.rows[variant][at].value / table.rows["abslrp"][at].value - 1
            assert loss and round(100 * ours, 1) == float(loss[1])


def test_published_by_hand() -> None:
    assert paper.published("vgg16", "imagenet", "gae", "abslrp") == 0.272
    assert paper.published("vgg16", "imagenet", "gae", "abslrp", "C") == 0.676
    assert paper.published("vgg16", "imagenet", "gae", "abslrp", "score") == 0.272
    assert paper.published("resnet50", "imagenet", "focus", "gradcam++") == 0.747
    assert paper.published("vit-base", "voc", "road-morf", "gradcam") == 0.131
    assert paper.published("vit-base", "voc", "lipschitz", "abslrp", "score") == 0.46
    assert paper.published("vgg16", "voc", "lipschitz", "constant") == 0.0


@pytest.mark.parametrize(
    "question",
    [
        ("convnext", "imagenet", "gae", "abslrp"),
        ("vgg16", "cifar", "gae", "abslrp"),
        ("vgg16", "imagenet", "aopc", "abslrp"),
        ("resnet50", "imagenet", "gae", "saliency"),
        ("vgg16", "imagenet", "gae", "abslrp", "total"),
        ("vit-base", "imagenet", "gae", "patches"),
    ],
)
def test_what_is_not_published_is_none(question: tuple[str, ...]) -> None:
    assert paper.published(*question) is None


def test_best_means_are_bold() -> None:
    for table in paper.TABLES.values():
        for at, column in enumerate(table.columns):
            metric = paper.METRICS[column.metric]
            if column.part != metric.main:
                assert not any(row[at].best for row in table.rows.values())
                continue
            pick = max if metric.higher_is_better else min
            top = pick(table.rows, key=lambda method, table=table, at=at: table.rows[method][at].value)
            assert table.rows[top][at].best, (table.number, column)
            stars = [row[at].starred for row in table.rows.values() if row[at].best]
            assert all(stars) == any(stars) == (len(stars) > 1), (table.number, column)


def test_methods_are_ours_and_in_order() -> None:
    assert {len(paper.methods_of(architecture)) for architecture in paper.ARCHITECTURES} == {20, 11, 8}
    for table in paper.TABLES.values():
        if table.number != paper.ABLATION:
            assert list(table.rows) == paper.methods_of(table.architecture)
    assert paper.methods_of("vit-base")[:3] == ["gradcam", "gradcam++", "hirescam"]
    assert set(paper.NAMES) <= set(abslrp.methods())
    assert {method for architecture in paper.ARCHITECTURES for method in paper.methods_of(architecture)} == set(
        paper.NAMES
    )


def test_unknown_is_refused() -> None:
    with pytest.raises(AbslrpError, match="no table 14"):
        paper.table(14)
    with pytest.raises(AbslrpError, match="vgg16, resnet50, vit-base"):
        paper.methods_of("convnext")
