"""The report: what it says, that no name can break it, that it needs nothing from outside, and how it behaves in a browser."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from tests.experiments import tiny

from abslrp import registry
from abslrp.cli import main
from abslrp.experiments import paper, statistics
from abslrp.experiments.config import Config, Variant, make_config
from abslrp.experiments.findings import Findings, read_findings
from abslrp.experiments.pictures import Pictures, make_pictures
from abslrp.experiments.presets import expand
from abslrp.experiments.repeat import repeat_command
from abslrp.experiments.runner import run
from abslrp.experiments.store import Row, Store
from abslrp.report_command import write_run_report
from abslrp.reporting.answer import answer
from abslrp.reporting.figures import Bar, Line, Point, bars, curves, label_boxes, scatter
from abslrp.reporting.html import render, write_report
from abslrp.types import AbslrpError

MOST_BYTES = 6_000_000
NASTY = "<script>alert('x')</script>\"&"
VOID = {"meta", "img", "br", "link", "input", "line", "rect", "circle", "polyline", "polygon"}


def scores(means: Mapping[str, float], n: int = 40, spread: float = 0.05, seed: int = 0) -> dict[str, np.ndarray]:
    """Paired scores around these means, with what images have in common and what they have not."""
    chance = np.random.default_rng(seed)
    image = chance.normal(0, 0.05, n)
    return {name: np.clip(mean + image + chance.normal(0, spread, n), 0, 1) for name, mean in means.items()}


def fill(store: Store, values: Mapping[str, Mapping[str, np.ndarray]], ids: Sequence[str] | None = None) -> list[str]:
    """Write scores (images,) by metric and method; GAE gets its parts and its curves."""
    rows, arrays = [], {}
    names = list(ids or [])
    for metric, by_method in values.items():
        for method, found in by_method.items():
            names = names or [f"folder/{k:03d}.jpg" for k in range(len(found))]
            for name, value in zip(names, found.tolist(), strict=True):
                parts = {"score": value}
                if metric == "gae":
                    parts |= {"LC": math.sqrt(value), "C": math.sqrt(value), "LC_R": value, "LC_F": value}
                    for mode, curve in (("lerf", [1, 0.9, 0.2]), ("morf", [1, 0.3, 0.1])):
                        arrays[name, method, metric, f"outputs_{mode}"] = np.array(curve)
                        arrays[name, method, metric, f"similarity_{mode}"] = np.array(curve) * (0.5 + value / 2)
                rows += [Row(name, method, metric, part, one) for part, one in parts.items()]
    store.add(rows, arrays)
    return names


def make_run(folder: Path, values: Mapping[str, Mapping[str, np.ndarray]], **facts: Any) -> Path:
    """A run that nobody made."""
    with Store.open(folder, create=True) as store:
        ids = fill(store, values)
        labels = dict.fromkeys(method for by_method in values.values() for method in by_method)
        methods = [Variant(label, label if label in registry.methods() else "abslrp") for label in labels]
        config = make_config(
            {"methods": methods, "metrics": ",".join(values), "model": "timm:resnet50", "data": "samples"}
        )
        known = {
            "config": config.to_dict(),
            "hash": config.hash,
            "ids": ids,
            "model": "timm:resnet50",
            "dataset": "samples",
        }
        store.note(**{**known, "versions": {"torch": "2"}, "device": "cpu", **facts})
    return folder


def findings_of(folder: Path) -> Findings:
    with Store.open(folder) as store:
        return read_findings(store)


@pytest.fixture
def usual(tmp_path: Path) -> Path:
    """A clear winner, one that is level with it, others behind."""
    gae = scores({"abslrp": 0.4, "clrp": 0.4, "gradcam": 0.2, "random": 0.01})
    road = scores({"abslrp": 0.3, "clrp": 0.2, "gradcam": 0.25, "random": 0.6}, seed=1)
    return make_run(tmp_path / "run", {"gae": gae, "road-morf": road}, planned={"gae": 40, "road-morf": 40})


class Page(HTMLParser):
    """A page taken apart: tags that do not close are noted, headings, links, ids, pictures and cells are kept."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [found for tag, found in self.seen if tag in tags]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(folder: Path, pictures: Pictures | None = None, **settings: Any) -> tuple[str, Page]:
    text = render(findings_of(folder), pictures, **settings)
    return text, Page(text)


def test_the_page_is_sound(usual: Path) -> None:
    _, page = page_of(usual)
    assert not page.wrong and not page.open
    ids = [found["id"] for _, found in page.seen if "id" in found]
    assert len(ids) == len(set(ids)) and {"answer", "table", "metrics", "pairs", "curves", "pictures", "repeat"} <= set(
        ids
    )
    links = [found["href"] for found in page.all("a")]
    assert "#evidence" in links and all(link and link.removeprefix("#") in ids for link in links)
    levels = [int(tag[1]) for tag, _ in page.seen if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.all("html")[0]["lang"] == "en" and page.all("main") and page.all("nav")
    assert all(found.get("aria-label") for found in page.all("svg"))
    labelled = [found for found in page.all("div") if found.get("class") == "scroll"]
    assert labelled and all(found.get("tabindex") == "0" and found.get("role") == "region" for found in labelled)


def test_names_stay_text(tmp_path: Path) -> None:
    nasty = {f"{NASTY}{k}": mean for k, mean in enumerate((0.4, 0.2))}
    folder = tmp_path / "run"
    with Store.open(folder, create=True) as store:
        fill(store, {"gae": scores(nasty, 8)}, [f"{NASTY}/{k}.jpg" for k in range(8)])
        store.skip({f"{NASTY}.png": NASTY})
        store.set_unfit({NASTY: NASTY})
        store.note(
            config={"model": NASTY, NASTY: [NASTY]}, model=NASTY, dataset=NASTY, device=NASTY, versions={NASTY: NASTY}
        )
    text, page = page_of(folder, run=NASTY, why=NASTY, command=shlex.join(["abslrp", NASTY]))
    assert text.count("<script") == 1 and "alert('x')</script>" not in text and not page.wrong
    assert NASTY in page.text
    assert not any(name.startswith("on") for _, found in page.seen for name in found)


def test_pictures_with_nasty_labels_stay_text(tmp_path: Path) -> None:
    data, folder = tiny.pictures(tmp_path / "data", 8), tmp_path / "run"
    loaded = tiny.loaded(names=[f"{NASTY}{k}" for k in range(4)])
    run(tiny.configuration(data, methods="abslrp,gradcam", metrics="gae:T=2"), folder, loaded=loaded).close()
    text, page = page_of(folder, make_pictures(findings_of(folder), loaded=loaded))
    assert text.count("<script") == 1 and not page.wrong
    assert any(NASTY in (found["alt"] or "") for found in page.all("img"))


def test_nothing_comes_from_outside(usual: Path) -> None:
    text, page = page_of(usual)
    assert not re.search(r"https?:|@import|url\(", text)
    for found in page.all("img", "script", "link", "iframe", "source", "use"):
        assert not found.get("href") and (found.get("src") or "data:").startswith("data:")
    policy = next(found["content"] or "" for found in page.all("meta") if found.get("http-equiv"))
    script = re.search(r"<script>(.*)</script>", text, flags=re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert "default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy


def test_the_table_can_be_sorted(usual: Path) -> None:
    text, _ = page_of(usual)
    table = re.search(r'<table class="sortable.*?</table>', text, flags=re.DOTALL)
    assert table is not None
    inside = Page(table[0])
    heads = [found for found in inside.all("th") if found.get("scope") == "col"]
    assert [found["data-first"] for found in heads] == ["ascending", *["descending"] * 3, "ascending"]
    assert [found.get("aria-sort") for found in heads] == [None, "descending", None, None, None]
    rows = [found["data-value"] for found in inside.all("th") if found.get("scope") == "row"]
    cells = [float(found["data-value"] or "nan") for found in inside.all("td")]
    found = findings_of(usual).comparison.cells
    expected = [found[m, metric, part].mean for m in rows if m for metric, part in
                (("gae", "score"), ("gae", "LC"), ("gae", "C"), ("road-morf", "score"))]  # fmt: skip
    assert cells == pytest.approx(expected)
    assert cells[0::4] == sorted(cells[0::4], reverse=True)
    assert "<strong>" in table[0] and 'class="star"' in table[0]


def test_published_figures_stand_beside(tmp_path: Path) -> None:
    folder = make_run(tmp_path, {"gae": scores({"abslrp": 0.3, "clrp": 0.2})})
    with Store.open(folder) as store:
        config = store.facts()["config"]
        store.note(config={**config, "data": "/data/imagenet-val"})
    text, _ = page_of(folder)
    wanted = paper.published("resnet50", "imagenet", "gae", "abslrp")
    assert wanted is not None and f"the paper has {wanted:.3f}" in text and 'class="published"' in text
    assert "paper" not in page_of(make_run(tmp_path / "b", {"gae": scores({"abslrp": 0.3})}))[1].text.split("Repeat")[0]


def svgs(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)]


def test_bars_have_the_right_numbers(usual: Path) -> None:
    text, _ = page_of(usual)
    gae = findings_of(usual).standings["gae"]
    charts = [chart for chart in svgs(text) if chart.get("aria-label", "").startswith("Bar chart of GAE")]
    assert charts
    for chart in charts:
        rows = chart.findall("g")
        assert [row.get("data-method") for row in rows] == list(gae.scores)
        for row in rows:
            wanted = statistics.interval(gae.main[str(row.get("data-method"))])
            given = [float(row.get(f"data-{name}") or "nan") for name in ("mean", "low", "high")]
            assert given == pytest.approx([wanted.mean, wanted.low, wanted.high], abs=1e-5)
        widths = [float(row.find("rect").get("width")) for row in rows]  # type: ignore[union-attr, arg-type]
        means = [float(row.get("data-mean") or "nan") for row in rows]
        assert np.allclose(np.array(widths[:3]) / widths[0], np.array(means[:3]) / means[0], atol=0.01)
        assert [row.get("class") for row in rows] == ["row best", "row tied", "row other", "row control"]


def test_a_bar_lies_where_its_numbers_say() -> None:
    chart = ElementTree.fromstring(bars([Bar("a", 0.5, 0.25, 0.75, "best", published=1.0), Bar("b", -0.5, -1, 0)], "x"))
    first, second = chart.findall("g")
    rect, other = first.find("rect"), second.find("rect")
    assert rect is not None and other is not None
    zero, width = float(rect.get("x", "")), float(rect.get("width", ""))
    line = first.find("line")
    assert line is not None
    assert float(line.get("x1", "")) == pytest.approx(zero + width / 2, abs=0.2)
    assert float(line.get("x2", "")) == pytest.approx(zero + width * 1.5, abs=0.2)
    assert float(other.get("x", "")) == pytest.approx(zero - width, abs=0.2)
    diamond = first.find("polygon")
    assert diamond is not None
    places = [float(pair.split(",")[0]) for pair in diamond.get("points", "").split()]
    assert np.mean(places) == pytest.approx(zero + 2 * width, abs=0.2)


@pytest.mark.parametrize("values", [[0.0, 0.0], [5.0, 5.0], [-2.0, -1.0], [1e-9, 2e-9], [1e6, 3e6]])
def test_charts_bear_any_numbers(values: list[float]) -> None:
    for chart in (
        bars([Bar(str(k), value, value, value) for k, value in enumerate(values)], "x"),
        scatter([Point(str(k), value, value) for k, value in enumerate(values)], "x", ("a", "b")),
        curves([Line("a", values, "lerf")], "x", low=min(values), high=max(values)),
        curves([Line("a", values[:1], "lerf")], "x"),
    ):
        assert "nan" not in chart and "inf" not in chart
        ElementTree.fromstring(chart)
    ElementTree.fromstring(bars([], "nothing"))


def test_scatter_puts_points_and_names_in_their_places() -> None:
    chance = np.random.default_rng(3)
    points = [Point(f"method-{k}", float(x), float(y)) for k, (x, y) in enumerate(chance.random((18, 2)) ** 2)]
    points += [Point("twin-1", 0.5, 0.5), Point("twin-2", 0.5, 0.5)]
    chart = ElementTree.fromstring(scatter(points, "x", ("LC", "C")))
    groups = [group for group in chart.findall("g") if "point" in str(group.get("class"))]
    assert len(groups) == 20
    placed = {group.get("data-method"): group.find("circle") for group in groups}
    left = sorted(points, key=lambda point: point.x)
    across = [float(placed[point.name].get("cx", "")) for point in left]  # type: ignore[union-attr]
    assert across == sorted(across)
    names = {group.get("data-method"): group.find("text") for group in groups}
    heights = [float(names[name].get("y", "")) for name in ("twin-1", "twin-2")]  # type: ignore[union-attr]
    assert abs(heights[0] - heights[1]) == pytest.approx(13, abs=0.2)


def test_labels_do_not_cover_each_other() -> None:
    chance = np.random.default_rng(0)
    places = [(float(x), float(y)) for x, y in chance.random((20, 2)) * (600, 400) + 20]
    boxes = label_boxes(places, [["a-long-method"]] * 20, (0, 0, 760, 440))
    for i, one in enumerate(boxes):
        assert one[0] >= 0 and one[2] <= 760 and one[1] >= 0 and one[3] <= 440
        for other in boxes[:i]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_curves_are_the_means_that_were_kept(usual: Path) -> None:
    text, _ = page_of(usual)
    gae = findings_of(usual).standings["gae"]
    chart = next(
        one for one in svgs(text) if one.get("aria-label") == "Similarity of abslrp's maps while features are masked."
    )
    given = [float(value) for value in chart.findall("polyline")[0].get("data-values", "").split()]
    assert given == pytest.approx(np.array([1, 0.9, 0.2]) * (0.5 + gae.main["abslrp"].mean() / 2), abs=1e-3)
    assert any("model's output" in str(one.get("aria-label")) for one in svgs(text))


def test_matrices_have_p_above_and_differences_below(usual: Path) -> None:
    _, page = page_of(usual)
    pairs = findings_of(usual).standings["gae"].pairs
    row, column = pairs.methods.index("abslrp"), pairs.methods.index("gradcam")
    told = [found.get("title") for found in page.all("td")]
    assert f"abslrp less gradcam: {pairs.differences[row, column]:.3f}, p < 0.001 after Holm" in told
    tau = findings_of(usual).agreement
    assert tau is not None and f"{tau.tau[0, 1]:.2f}".replace("-", "−") in page.text


def test_a_winner_alone(tmp_path: Path) -> None:
    said = answer(findings_of(make_run(tmp_path, {"gae": scores({"a": 0.6, "b": 0.3, "random": 0.1})})))
    assert said.headline == "For resnet50, believe a."
    assert "a has a mean GAE of 0.6" in said.sentences[0] and "over 40 images" in said.sentences[0]
    assert (
        "b, is 0.3" in said.sentences[1]
        and "p < 0.001" in said.sentences[1]
        and "100% of the images" in said.sentences[1]
    )
    low, high = re.search(r"difference (\S+) to (\S+),", said.sentences[1]).groups()  # type: ignore[union-attr]
    assert 0.2 < float(low) < 0.3 < float(high) < 0.4
    assert "control random, a map that knows nothing, has 0.09" in said.sentences[2] and len(said.sentences) == 3
    assert not said.cautions


def test_a_tie_is_called_a_tie(usual: Path) -> None:
    said = answer(findings_of(usual))
    assert said.headline in ("For resnet50, believe abslrp or clrp.", "For resnet50, believe clrp or abslrp.")
    assert any("cannot be told from" in sentence for sentence in said.sentences)
    assert [one.title for one in said.verdicts] == ["GAE", "ROAD MoRF"] and said.verdicts[1].arrow == "↓"


@pytest.mark.parametrize(
    "means, n, words",
    [
        ({"a": 0.5, "b": 0.2}, 4, "4 images cannot settle it"),
        ({"a": 0.5, "b": 0.2}, 20, "a leads, but 20 images leave doubt"),
        ({"a": 0.5}, 40, "Only a was scored"),
        ({"random": 0.5, "b": 0.2}, 40, "no method does better than the control random"),
        ({"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5, "e": 0.5}, 12, "other methods cannot be told from it"),
    ],
)
def test_headlines_claim_no_more_than_there_is(tmp_path: Path, means: dict[str, float], n: int, words: str) -> None:
    assert words in answer(findings_of(make_run(tmp_path, {"gae": scores(means, n)}))).headline


def test_cautions(tmp_path: Path) -> None:
    few = answer(findings_of(make_run(tmp_path / "few", {"gae": scores({"a": 0.5, "b": 0.2}, 12)}))).cautions
    assert "12 images are few" in few[0]
    folder = make_run(
        tmp_path / "half", {"gae": scores({"a": 0.5, "b": 0.2})}, planned={"gae": 500}, notes=["focus is left out."]
    )
    half = answer(findings_of(folder)).cautions
    assert "GAE has 40 of 500 scores" in half[0] and half[1] == "focus is left out."


def test_methods_that_got_less_far_are_compared_on_what_all_have(tmp_path: Path) -> None:
    folder = make_run(tmp_path, {"gae": scores({"a": 0.5, "b": 0.2})})
    with Store.open(folder) as store:
        fill(store, {"gae": scores({"c": 0.4}, 10)})
    found = findings_of(folder)
    assert len(found.standings["gae"].items) == 10 and "10 of 40 images" in found.notes[0]


def test_without_gae_every_metric_speaks(tmp_path: Path) -> None:
    road, focus = scores({"a": 0.2, "b": 0.5}), scores({"a": 0.3, "b": 0.8})
    folder = make_run(tmp_path / "apart", {"road-morf": road, "focus": focus})
    said = answer(findings_of(folder))
    assert said.headline == "For resnet50, the metrics do not agree on one method." and len(said.sentences) == 2
    text, page = page_of(folder)
    assert not page.wrong and 'id="curves"' not in text and "the run has no GAE" in page.text
    both = make_run(tmp_path / "same", {"road-morf": road, "focus": scores({"a": 0.8, "b": 0.3})})
    assert "believe a: level with the best by every metric" in answer(findings_of(both)).headline


def test_one_method_one_metric_one_image(tmp_path: Path) -> None:
    text, page = page_of(make_run(tmp_path, {"focus": scores({"a": 0.5}, 1)}))
    assert not page.wrong and "there is only one method" in page.text and "fewer than two metrics" in page.text
    assert "nan" not in text.lower().split("<style>")[0] and 'data-mean="' in text


def test_an_empty_run_has_a_report(tmp_path: Path) -> None:
    Store.open(tmp_path, create=True).close()
    _, page = page_of(tmp_path)
    assert not page.wrong and "This run has no scores yet." in page.text and "holds no configuration" in page.text


def test_what_was_left_out_is_listed(usual: Path) -> None:
    with Store.open(usual) as store:
        store.skip({f"broken/{k}.jpg": "cut short" for k in range(130)})
        store.set_unfit({"rollout": "needs attention"})
        store.add([Row("folder/000.jpg", "gradcam", "gae", "score", 0.2, "constant")])
    _, page = page_of(usual)
    assert "130" in page.text and "and 30 more" in page.text and "broken/0.jpg" in page.text
    assert "rollout needs attention" in page.text and "constant (1)" in page.text and "†1" in page.text


def test_a_metric_of_unknown_direction_is_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path, {"gae": scores({"a": 0.5, "b": 0.2})})
    with Store.open(folder) as store:
        fill(store, {"mine": scores({"a": 0.5, "b": 0.2})})
    assert "mine is left out" in findings_of(folder).notes[0]
    with Store.open(folder) as store:
        store.note(metrics=[{"name": "mine", "higher_is_better": False}])
    assert findings_of(folder).standings["mine"].best.best == "b"


def test_pictures_that_cannot_be_made_are_explained(usual: Path) -> None:
    told: list[str] = []
    with Store.open(usual) as store:
        store.note(config={**store.facts()["config"], "data": str(usual / "gone"), "model": "efficientnet-lite0"})
    path = write_run_report(usual, tell=told.append)
    text = path.read_text(encoding="utf-8")
    assert path == usual / "report.html" and "There are no pictures in this report." in text
    assert len(told) == 1 and told[0].startswith("without pictures:") and "gone" in told[0]
    assert "They were not asked for." in write_run_report(usual, pictures=False).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A real run of a small network, and its images."""
    data, folder = tiny.pictures(tmp_path_factory.mktemp("data"), 12), tmp_path_factory.mktemp("run")
    run(tiny.configuration(data, metrics="gae:T=4,lipschitz:samples=2"), folder, loaded=tiny.loaded()).close()
    return folder, data


def test_pictures_of_a_real_run(small: tuple[Path, Path]) -> None:
    found, loaded = findings_of(small[0]), tiny.loaded()
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    made = make_pictures(found, loaded=loaded)
    assert all(torch.equal(value, before[name]) for name, value in loaded.model.state_dict().items())
    assert len(made.best) == len(made.worst) == 5 and len(made.grid) == 6 and len(made.mosaics) == 4
    assert not {one.id for one in made.best} & {one.id for one in made.worst}
    assert all(set(one.maps) == set(found.comparison.methods) for one in made.grid)
    assert made.impact is not None and np.allclose(made.impact.difference, made.impact.lerf - made.impact.morf)
    assert len(made.classes) == 3 and all(len(pair) == 2 for one in made.classes for pair in one.maps.values())
    assert not any("differs by" in note for note in made.notes)
    leader, gae = found.leader, found.standings["gae"]
    assert leader is not None and made.best[0].scores["GAE"] == pytest.approx(gae.main[leader].max())
    text, page = page_of(small[0], made)
    pictures = page.all("img")
    assert len(text) < MOST_BYTES and not page.wrong and len(pictures) > 50
    assert all(found["alt"] and found["width"] and found["height"] for found in pictures)
    for found_picture in pictures[:8]:
        data = str(found_picture["src"]).removeprefix("data:image/jpeg;base64,")
        assert max(Image.open(io.BytesIO(base64.b64decode(data))).size) <= 224


def test_pictures_under_the_authors_settings(small: tuple[Path, Path], tmp_path: Path) -> None:
    """There an image is drawn out of each mosaic: several scores may belong to one image, and each is shown once."""
    run(tiny.configuration(small[1], metrics="gae:T=4,settings=authors"), tmp_path, loaded=tiny.loaded()).close()
    made = make_pictures(findings_of(tmp_path), loaded=tiny.loaded())
    shown = [one.id for one in (*made.best, *made.worst)]
    assert made.best and len(shown) == len(set(shown)) and len(made.mosaics) == 4
    assert not any("differs by" in note for note in made.notes)


def test_a_model_that_changed_is_noticed(small: tuple[Path, Path]) -> None:
    other = tiny.loaded()
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    notes = make_pictures(findings_of(small[0]), loaded=other).notes
    assert any("not quite those that were scored" in note for note in notes)


def test_pictures_without_gae(tmp_path: Path, small: tuple[Path, Path]) -> None:
    config = tiny.configuration(small[1], metrics="lipschitz:samples=2", images=3)
    run(config, tmp_path, loaded=tiny.loaded()).close()
    made = make_pictures(findings_of(tmp_path), loaded=tiny.loaded())
    assert len(made.best) == 2 and len(made.worst) == 1 and not made.mosaics and made.impact is None
    assert page_of(tmp_path, made)[1].text.count("Every method on the same images") == 1


def test_images_that_moved_can_be_named(small: tuple[Path, Path], tmp_path: Path) -> None:
    found, loaded = findings_of(small[0]), tiny.loaded()
    moved = shutil.copytree(small[1], tmp_path / "moved")
    assert make_pictures(found, data=str(moved), loaded=loaded).best
    next(iter(moved.rglob("*.png"))).unlink()
    with pytest.raises(AbslrpError, match="1 of the run's 12 images are not in the data"):
        make_pictures(found, data=str(moved), loaded=loaded)


def test_twenty_methods_stay_small(tmp_path: Path) -> None:
    names = [f"method-{k}" for k in range(20)]
    values = scores({name: 0.02 * k for k, name in enumerate(names)}, 60)
    with Store.open(tmp_path, create=True) as store:
        fill(store, {metric: values for metric in ("gae", "focus", "road-morf", "lipschitz")})
    text, page = page_of(tmp_path)
    # Numbers take a tenth of the room, pictures may have the rest.
    assert not page.wrong and len(text) < MOST_BYTES / 10


def test_the_file_is_written_whole(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_report("first", usual / "report.html")

    def fail(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr("abslrp.reporting.heatmaps.os.replace", fail)
    with pytest.raises(AbslrpError, match="cannot be written"):
        write_report("second", path)
    assert path.read_text() == "first" and not list(usual.glob(".*.part"))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "methods": "abslrp,sign=abslrp-agree:conserve=sign,start=contrastive,smoothgrad:samples=4",
            "images": 8,
            "seed": 3,
        },
        {
            "metrics": "gae:settings=authors,T=4,road-morf:percentages=10,50",
            "data": "samples",
            "model": "timm:resnet18",
        },
        {"preset": "paper", "model": "torchvision:vgg16", "data": "samples", "images": 4},
        {"preset": "paper", "model": "torchvision:vgg16", "methods": "abslrp"},
        {"random_weights": True, "num_classes": 5, "model": "timm:resnet18", "weights": "some file.pt"},
    ],
)
def test_the_command_makes_the_same_run(values: dict[str, Any]) -> None:
    ((_, expanded),) = expand(values)
    config = make_config(expanded)
    command = repeat_command(config, "a folder", "cuda")
    assert (
        command is not None
        and command.startswith("abslrp evaluate ")
        and command.endswith("--device cuda --out 'a folder'")
    )
    words = shlex.split(command)[2:]
    again: dict[str, Any] = {}
    while words:
        key = words.pop(0).removeprefix("--").replace("-", "_")
        value: Any = True if not words or words[0].startswith("--") else words.pop(0)
        again[key] = int(value) if key in ("images", "seed", "num_classes") else value
    ((_, expanded),) = expand({key: value for key, value in again.items() if key not in ("device", "out")})
    assert make_config(expanded).hash == config.hash


def test_a_configuration_beyond_flags_has_no_command() -> None:
    assert repeat_command(Config((), ()), "run") is None


def test_command_line(usual: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "elsewhere" / "page.html"
    assert main(["report", str(usual), "--no-pictures", "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out) and out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main(["report", str(tmp_path / "nothing")]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_colours_can_be_read() -> None:
    """WCAG AA: 4.5 to 1 between words and what they stand on, in light and in dark."""
    style = resources.files("abslrp.reporting").joinpath("report.css").read_text(encoding="utf-8")
    pairs = [("ink", "paper"), ("ink", "card"), ("ink", "faint"), ("soft", "paper"), ("soft", "card"), ("soft", "faint"),
             ("accent-ink", "paper"), ("warn-ink", "warn"), ("ink", "p1"), ("p-ink", "p2"), ("p-ink", "p3")]  # fmt: skip
    light, dark = re.findall(r":root \{(.*?)\n *\}", style, flags=re.DOTALL)[:2]
    for text in (light, dark):
        known = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})\b", text))
        for one, other in pairs:
            first, second = sorted((_luminance(known[one]), _luminance(known[other])))
            assert (second + 0.05) / (first + 0.05) >= 4.5, (one, other)


def _luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.fixture(scope="module")
def browser() -> Any:
    api = pytest.importorskip("playwright.sync_api", reason="no browser test: pip install playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no browser test: Debian's chromium is not here")
    quiet = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    with api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=chromium, args=[*quiet, "--no-first-run"])
        yield started
        started.close()


def test_in_a_browser(usual: Path, browser: Any) -> None:
    path = write_run_report(usual, pictures=False).resolve()
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda message: trouble.append(message.text))
    page.on("request", lambda request: trouble.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(path.as_uri())

    def column(number: int) -> list[float]:
        cells = page.query_selector_all(f".sortable tbody td:nth-child({number})")
        return [float(cell.get_attribute("data-value")) for cell in cells]

    assert column(2) == sorted(column(2), reverse=True)
    page.click(".sortable th:nth-child(5) button")
    assert (
        column(5) == sorted(column(5)) and page.get_attribute(".sortable th:nth-child(5)", "aria-sort") == "ascending"
    )
    assert page.get_attribute(".sortable th:nth-child(2)", "aria-sort") is None
    page.keyboard.press("Enter")
    assert column(5) == sorted(column(5), reverse=True)
    assert "descending" in page.text_content("#sorted")
    page.click(".sortable th:nth-child(1) button")
    names = [row.text_content() for row in page.query_selector_all(".sortable tbody th")]
    assert names == sorted(names)
    for width in (1280, 768, 390, 320):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0, width
    assert not trouble
    page.close()


def test_without_scripts_the_table_is_there(usual: Path, browser: Any) -> None:
    path = write_run_report(usual, pictures=False).resolve()
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator(".sortable tbody tr").count() == 4 and page.locator(".sortable button").count() == 0
    context.close()
