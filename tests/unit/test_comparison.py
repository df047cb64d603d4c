"""Tables of a comparison: what they say, and that no name can break them."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from abslrp.experiments import paper, statistics
from abslrp.reporting.comparison import (
    CSV_FIELDS,
    Cell,
    Column,
    Comparison,
    MetricInfo,
    compare,
    csv_text,
    latex,
    markdown,
    terminal,
)
from abslrp.types import AbslrpError

GAE = MetricInfo("gae", True, "GAE", ("LC", "C", "GAE"), "GAE")
ROAD = MetricInfo("road-morf", False, title="ROAD MoRF")
NASTY = ["a_b & 50%", "$x^2$ #1", r"back\slash {~}", "[red]*bold*", "a|b <i>`c`</i>", 'com,ma "q"', "LRP-α1β0 ×−ε"]


def written(*, nasty: bool = False) -> Comparison:
    """Two columns of one metric and one of another, with every kind of cell."""
    columns = (
        Column("gae", "LC", "LC", True, main=False),
        Column("gae", "GAE", "GAE", True),
        Column("road-morf", "score", "ROAD MoRF", False),
    )
    cells = {
        ("clrp", "gae", "LC"): Cell(0.35849, 0.3, 0.4, 80, flagged=3, published=0.358),
        ("clrp", "gae", "GAE"): Cell(0.321, 0.301, 0.3404, 80, best=True, tied=True, flagged=3, published=0.283),
        ("abslrp", "gae", "LC"): Cell(-0.0004, -0.01, 0.01, 80),
        ("abslrp", "gae", "GAE"): Cell(0.32, 0.3, 0.34, 80, tied=True, published=0.272),
        ("abslrp", "road-morf", "score"): Cell(0.1, 0.05, 0.15, 40, best=True),
        ("gradcam", "gae", "GAE"): Cell(-0.0746, -0.08, 0.07, 80),
    }
    methods = ["clrp", "abslrp", "gradcam"]
    if nasty:
        methods += NASTY
        cells |= {(method, "gae", "GAE"): Cell(0.1, 0.0, 0.2, 80) for method in NASTY}
    return Comparison("Seven & a half: 100%", tuple(methods), columns, cells, ("Seed 0_1.",))


def rendered(comparison: Comparison, width: int = 200, **settings: bool) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(terminal(comparison, **settings))
    return console.export_text()


def scores_of(means: dict[str, float], n: int = 40) -> dict[str, np.ndarray]:
    """Paired scores with exactly these means, apart by a steady step where the means are."""
    image = np.random.default_rng(0).normal(0, 0.1, n)
    return {method: image - image.mean() + mean for method, mean in means.items()}


def test_compare_joins_statistics_flags_and_paper() -> None:
    lc, c = (
        scores_of({"clrp": 0.4, "abslrp": 0.5, "gradcam": 0.2}),
        scores_of({"clrp": 0.7, "abslrp": 0.6, "gradcam": 0.3}),
    )
    gae = scores_of({"clrp": 0.3, "abslrp": 0.25, "gradcam": 0.05})
    road = scores_of({"gradcam": 0.3, "clrp": 0.2, "random": 0.5})
    made = compare(
        {
            "gae": {m: {"LC": lc[m], "C": c[m], "GAE": gae[m]} for m in gae},
            "road-morf": {m: {"score": road[m]} for m in road},
        },
        {"gae": GAE, "road-morf": ROAD},
        title="T",
        flagged={"gae": {"abslrp": 2}},
        published=lambda metric, method, part: paper.published("resnet50", "imagenet", metric, method, part),
        notes=["n"],
        level=0.9,
        draws=300,
        seed=4,
    )
    assert made.methods == ("clrp", "abslrp", "gradcam", "random")
    assert [(one.heading, one.higher_is_better, one.main) for one in made.columns] == [
        ("LC", True, False), ("C", True, False), ("GAE", True, True), ("ROAD MoRF", False, True),
    ]  # fmt: skip
    wanted = statistics.interval(gae["abslrp"], level=0.9, draws=300, seed=4)
    assert made.cells["abslrp", "gae", "GAE"] == Cell(
        wanted.mean, wanted.low, wanted.high, 40, flagged=2, published=0.272
    )
    assert made.cells["abslrp", "gae", "C"].published == 0.75
    assert {key for key, cell in made.cells.items() if cell.best} == {
        ("clrp", "gae", "GAE"),
        ("clrp", "road-morf", "score"),
    }
    assert not any(cell.tied for cell in made.cells.values())
    assert ("random", "gae", "GAE") not in made.cells and made.cell("random", made.columns[2]) is None
    assert made.cells["random", "road-morf", "score"].published is None
    assert (made.title, made.notes, made.level) == ("T", ("n",), 0.9)


def test_compare_marks_ties_of_the_main_part() -> None:
    wave = np.tile([1.0, -1.0], 20) * np.arange(1, 41)
    totals = {"a": np.ones(40), "b": 0.99 + wave - wave.mean(), "c": np.zeros(40)}
    scores = {method: {"LC": np.ones(40), "C": np.ones(40), "GAE": total} for method, total in totals.items()}
    made = compare({"gae": scores}, {"gae": GAE})
    standing = {key: (cell.best, cell.tied) for key, cell in made.cells.items() if cell.bold}
    assert standing == {("a", "gae", "GAE"): (True, True), ("b", "gae", "GAE"): (False, True)}


def test_compare_passes_p_and_correction_on() -> None:
    """Six images all ahead: p = 2/64 alone, 4/64 after Holm's correction for two methods."""
    values = {"a": np.arange(1.0, 7), "b": np.zeros(6), "c": np.full(6, 0.5)}
    scores = {"focus": {method: {"score": one} for method, one in values.items()}}
    info = {"focus": MetricInfo("focus", True)}
    for settings, tied in (({}, 0), ({"corrected": True}, 3), ({"p": 0.01}, 3)):
        made = compare(scores, info, **settings)
        assert sum(cell.tied for cell in made.cells.values()) == tied
    assert "p=0.01" in markdown(made) and "Holm" not in markdown(made)
    assert "p=0.05, corrected after Holm" in markdown(compare(scores, info, corrected=True))


def test_a_method_alone_is_not_the_best() -> None:
    made = compare({"focus": {"a": {"score": np.ones(3)}}}, {"focus": MetricInfo("focus", True)})
    assert not made.cells["a", "focus", "score"].bold


def test_headings_that_two_metrics_share_are_told_apart() -> None:
    part = {"a": {"x": np.ones(3), "score": np.ones(3)}}
    info = {name: MetricInfo(name, True, parts=("x", "score")) for name in ("one", "two")}
    made = compare({"one": part, "two": part}, info)
    assert [column.heading for column in made.columns] == ["one x", "one", "two x", "two"]


@pytest.mark.parametrize(
    "scores, words",
    [
        ({"other": {"a": {"score": np.ones(3)}}}, "'other'"),
        ({"focus": {"a": {"LC": np.ones(3)}}}, "'a' has no part 'score' of 'focus': it has LC"),
        ({"focus": {"a": {"score": np.array([1, np.nan])}}}, "focus: .*not finite"),
        ({"focus": {"a": {"score": np.ones(3)}, "b": {"score": np.ones(2)}}}, "focus: 'a' has 3 scores but 'b' has 2"),
        ({"named": {"a": {"score": np.ones(3)}}}, "'named' is described as 'focus'"),
    ],
)
def test_compare_refuses_with_a_sentence(scores: dict, words: str) -> None:
    focus = MetricInfo("focus", True)
    with pytest.raises(AbslrpError, match=words):
        compare(scores, {"focus": focus, "named": focus})


def test_markdown_as_a_whole() -> None:
    assert markdown(written()) == "\n".join(
        [
            r"**Seven \& a half: 100%**",
            "",
            "| method | LC ↑ | GAE ↑ | ROAD MoRF ↓ |",
            "| --- | ---: | ---: | ---: |",
            r"| clrp | 0.358 (paper 0.358) | **0.321**\* †3 \[0.301,0.340\] (paper 0.283) | — |",
            r"| abslrp | 0.000 | **0.320**\* \[0.300,0.340\] (paper 0.272) | **0.100** \[0.050,0.150\] |",
            r"| gradcam | — | -0.075 \[-0.080,0.070\] | — |",
            "",
            "- Means of 40 to 80 scores.",
            r"- \[low,high\]: 95% bootstrap interval of the mean.",
            r"- \* A difference from the best mean is not confirmed by the Wilcoxon signed-rank test at p=0.05.",
            "- † Number of images that the metric flagged as doubtful.",
            r"- Seed 0\_1.",
            "",
        ]
    )


def test_footnotes_are_only_there_when_needed() -> None:
    plain = Comparison("", ("a",), (Column("gae", "GAE", "GAE", True),), {("a", "gae", "GAE"): Cell(0.1, 0.0, 0.2, 8)})
    text = markdown(plain, intervals=False)
    assert text == "| method | GAE ↑ |\n| --- | ---: |\n| a | 0.100 |\n\n- Means of 8 scores.\n"
    assert "Wilcoxon" not in latex(plain) and "Grey" not in latex(plain) and r"\caption" not in latex(plain)


def test_markdown_keeps_its_columns() -> None:
    """However a method is called, its row has as many bars as the head."""
    lines = [line for line in markdown(written(nasty=True)).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {5}
    assert any(r"a\|b \<i\>\`c\`\</i\>" in line for line in lines)


def test_terminal_says_the_same() -> None:
    text = rendered(written())
    assert "Seven & a half: 100%" in text and "ROAD MoRF ↓" in text and "GAE ↑" in text
    row = next(line for line in text.splitlines() if line.startswith("clrp"))
    assert row.split() == [
        "clrp",
        "0.358",
        "(paper",
        "0.358)",
        "0.321*",
        "†3",
        "[0.301,0.340]",
        "(paper",
        "0.283)",
        "—",
    ]
    assert re.search(r"^abslrp +0\.000 +0\.320\* \[0\.300,0\.340\] \(paper 0\.272\) +0\.100 ", text, re.MULTILINE)
    assert "Wilcoxon signed-rank test at p=0.05" in " ".join(text.split()) and "Seed 0_1." in text
    assert "[0.301,0.340]" not in rendered(written(), intervals=False)


def test_terminal_takes_names_literally() -> None:
    text = rendered(written(nasty=True))
    assert all(method in text for method in NASTY)


def test_bold_in_the_terminal_marks_best_and_tied() -> None:
    table = terminal(written())
    bold = {
        (method, column)
        for column in range(1, 4)
        for method, text in zip(written().methods, table.columns[column]._cells, strict=True)
        if any("bold" in str(span.style) for span in text.spans)
    }
    assert bold == {("clrp", 2), ("abslrp", 2), ("abslrp", 3)}


def test_csv_comes_back_as_it_was() -> None:
    made = written(nasty=True)
    reader = csv.DictReader(io.StringIO(csv_text(made)))
    truth = {"true": True, "false": False}
    back = {
        (row["method"], row["metric"], row["part"]): Cell(
            float(row["mean"]),
            float(row["low"]),
            float(row["high"]),
            int(row["n"]),
            truth[row["best"]],
            truth[row["tied"]],
            int(row["flagged"]),
            float(row["published"]) if row["published"] else None,
        )
        for row in reader
    }
    assert tuple(reader.fieldnames or ()) == CSV_FIELDS
    assert back == dict(made.cells)


def test_no_name_is_a_formula_of_a_spreadsheet() -> None:
    names = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", " =1"]
    cells = {(name, "gae", "GAE"): Cell(0.1, 0.0, 0.2, 80) for name in names}
    made = Comparison("", tuple(names), (Column("gae", "GAE", "GAE", True),), cells)
    rows = list(csv.DictReader(io.StringIO(csv_text(made), newline="")))
    assert [row["method"] for row in rows] == [f"'{name}" for name in names]


def latex_rows(text: str) -> list[str]:
    body = text.split(r"\toprule")[1].split(r"\bottomrule")[0]
    return [line.strip() for line in body.strip().splitlines() if line.strip() != r"\midrule"]


def test_latex_rows_by_hand() -> None:
    text = latex(written())
    assert latex_rows(text) == [
        r"Method & LC ($\uparrow$) & GAE ($\uparrow$) & ROAD MoRF ($\downarrow$) \\",
        r"clrp & 0.358 \textcolor{gray}{(0.358)} & \textbf{0.321}*$^{\dagger 3}$ \textcolor{gray}{(0.283)} & -- \\",
        r"abslrp & 0.000 & \textbf{0.320}* \textcolor{gray}{(0.272)} & \textbf{0.100} \\",
        r"gradcam & -- & $-$0.075 & -- \\",
    ]
    assert r"\caption{Seven \& a half: 100\%}" in text
    assert r"{*} A difference from the best mean is not confirmed by the Wilcoxon signed-rank test at p=0.05." in text
    assert "Grey: the number published in the paper." in text and r"Seed 0\_1." in text


def test_latex_is_sound_whatever_the_names() -> None:
    text = latex(written(nasty=True))
    unescaped = re.sub(r"\\[#$%&_{}\\]", "", text)
    assert unescaped.count("{") == unescaped.count("}") and unescaped.count("$") % 2 == 0
    assert not re.search(r"[#_~|<>]", unescaped) and not set("αβε×−") & set(text)
    # The only comment is the first line; the only power signs are those of flags.
    assert unescaped.count("%") == 1 and unescaped.startswith("%")
    assert set(re.findall(r"\^.", unescaped)) == {"^{"}
    for row in latex_rows(text):
        assert len(re.findall(r"(?<!\\)&", row)) == 3 and row.endswith(r" \\")
        # A star or bracket here would be an argument of the line's end before it.
        assert not row.startswith(("*", "["))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not here")
def test_latex_compiles(tmp_path: Path) -> None:
    document = "\n".join(
        [
            r"\documentclass{article}\usepackage{booktabs,xcolor}\begin{document}",
            latex(written(nasty=True)),
            r"\end{document}",
        ]
    )
    (tmp_path / "t.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]


def test_writing_needs_no_scipy() -> None:
    import sys

    code = (
        "import sys; from abslrp.reporting.comparison import *; c = Comparison('', (), (), {});"
        "markdown(c), csv_text(c), latex(c), terminal(c); assert 'scipy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
