"""What the page computes and says, without a browser."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import abslrp
from abslrp.app import views
from abslrp.app.actions import ImageActions, Seen
from abslrp.app.shelf import Shelf
from abslrp.app.uploads import Picked, pick_file, pick_sample
from abslrp.app.views import View
from abslrp.app.workshop import Chosen, Workshop
from abslrp.inputs.models import load_model
from abslrp.reporting.side_by_side import full_colour, pictures, share
from abslrp.types import AbslrpError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shop() -> Workshop:
    return Workshop()


@pytest.fixture(scope="module")
def cat() -> Picked:
    return pick_sample("chelsea")


def view_of(cat: Picked, **changes: Any) -> View:
    return replace(View(cat, Chosen(), (282, 285), ("abslrp", "gradcam")), **changes)


def test_maps_are_those_of_the_library_and_made_once(shop: Workshop, cat: Picked) -> None:
    view = view_of(cat)
    made, failed = views.maps(shop, view)
    assert not failed and next(iter(made)) == ("tiger cat (282)", "abslrp") and len(made) == 4
    loaded = load_model()
    direct = abslrp.explain(loaded.model, loaded.transform(cat.image)[None], 285, "gradcam").maps[0].numpy()
    assert np.array_equal(made["Egyptian cat (285)", "gradcam"], direct)
    before = shop.maps.made
    for changes in ({"opacity": 0.3}, {"against": 0.0}, {"one_scale": False}, {"compare": True}):
        assert views.maps_html(shop, replace(view, **changes)) != views.maps_html(shop, view), changes
    assert shop.maps.made == before


def test_the_program_makes_the_same_picture_again(shop: Workshop, cat: Picked, tmp_path: Path) -> None:
    view = view_of(cat, against=0.4, opacity=0.7, compare=True)
    picture, numbers, program = (Path(path) for path in views.write_files(shop, view, tmp_path / "page"))
    again = tmp_path / "again"
    again.mkdir()
    done = subprocess.run([sys.executable, str(program)], cwd=again, capture_output=True, text=True, timeout=120,
                          env={"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PATH": ""})  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, two = (np.asarray(Image.open(path), dtype=int) for path in (picture, again / picture.name))
    # Sums in another order move the last digits of a map, and so a colour by one step.
    assert one.shape == two.shape and np.abs(one - two).max() <= 2 and (one != two).mean() < 0.01
    stored = np.load(numbers)
    assert stored["maps"].shape[:2] == (2, 2) and stored["classes"].tolist() == [282, 285]
    assert np.array_equal(stored["maps"][1, 0], shop.map_of(Chosen(), cat, 285, "abslrp"))


def test_an_uploaded_file_is_in_the_program_by_its_name(shop: Workshop, tmp_path: Path) -> None:
    file = tmp_path / "my 'cat'.png"
    pick_sample("chelsea").image.save(file)
    said = views.snippet(shop, view_of(pick_file(file)))
    compile(said, "snippet", "exec")
    assert repr("my 'cat'.png") in said and str(tmp_path) not in said


def test_a_method_that_does_not_fit_leaves_the_others(shop: Workshop, cat: Picked) -> None:
    made, failed = views.maps(shop, view_of(cat, methods=("rollout", "gradcam")))
    assert list(failed) == ["rollout"] and {method for _, method in made} == {"gradcam"}
    assert "rollout: " in views.maps_html(shop, view_of(cat, methods=("rollout", "gradcam")))
    with pytest.raises(AbslrpError, match="tick at least one"):
        views.maps(shop, view_of(cat, methods=()))


def test_visitors_at_once_get_their_own(shop: Workshop) -> None:
    samples = [pick_sample(name) for name in ("chelsea", "coffee", "rocket")]
    found: dict[str, list[str]] = {}

    def visit(picked: Picked) -> None:
        found[picked.name] = [shop.classes(Chosen(), picked)[0].label for _ in range(3)]

    threads = [threading.Thread(target=visit, args=(one,)) for one in samples * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: set(labels) for name, labels in found.items()} == {
        "chelsea": {"tiger cat"},
        "coffee": {"espresso"},
        "rocket": {"missile"},
    }


def test_parts_of_gae_are_those_of_evaluate(shop: Workshop, cat: Picked) -> None:
    import torch

    mine = shop.parts(Chosen(), cat, "gradcam", steps=3)
    loaded = load_model()
    names = ["chelsea", "coffee", "rocket", "motorcycle_left"]
    x = torch.stack([loaded.transform(pick_sample(name).image) for name in names])
    ids = ["this image", *names[1:]]
    scores = abslrp.evaluate(loaded.model, x, ["gradcam"], "gae", ids=ids, T=3)["gae"]["gradcam"]
    assert float(mine["score"]) == pytest.approx(float(scores.scores[0]), abs=1e-4)
    assert float(mine["LC_F"]) == pytest.approx(float(scores.parts["LC_F"][0]), abs=1e-4)
    said = views.parts_html({"gradcam": mine, "<b>": mine})
    assert said.count("<svg") == 3 and "<b>" not in said and f"{float(mine['C']):.3f}" in said


def test_coverage_names_what_had_a_rule(shop: Workshop, cat: Picked) -> None:
    said = views.coverage_html(shop.coverage(Chosen(), cat), "efficientnet-lite0")
    assert "<caption>What had a rule</caption>" in said and "affine" in said and "%" in said


def test_files_that_are_no_good_are_refused_in_one_sentence(tmp_path: Path) -> None:
    broken, large, wide = (tmp_path / name for name in ("broken.png", "large.png", "wide.png"))
    whole = tmp_path / "whole.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 60, 3), dtype=np.uint8)).save(whole)
    broken.write_bytes(whole.read_bytes()[:2000])
    large.write_bytes(whole.read_bytes() + bytes(20000))
    Image.new("L", (3000, 2000)).save(wide)
    for path, words in (
        (broken, "damaged or cut short"),
        (large, "and the page takes 0"),
        (wide, "3000 by 2000 pixels"),
        (tmp_path / "none.png", "cannot be read"),
    ):
        with pytest.raises(AbslrpError) as caught:
            pick_file(path, most_bytes=16000, most_pixels=1_000_000)
        assert (
            words in str(caught.value)
            and str(tmp_path) not in str(caught.value)
            and str(caught.value).startswith(path.name)
        )


def test_only_what_is_on_the_shelf_is_opened(tmp_path: Path) -> None:
    (tmp_path / "mine.safetensors").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("secret")
    shelf = Shelf([tmp_path])
    assert shelf.weights("mine.safetensors") == (tmp_path / "mine.safetensors").resolve()
    for name in ("notes.txt", "/etc/passwd", "../mine.safetensors", str(tmp_path / "mine.safetensors")):
        with pytest.raises(AbslrpError, match="not offered here"):
            shelf.weights(name)
    for name in (
        f"hf:{tmp_path}",
        "hf:../x",
        "timm:local-dir:/tmp",
        "hf:~/x",
        "/tmp",
        "timm:",
        f"hf:{Path.cwd().name}/../..",
    ):
        with pytest.raises(AbslrpError, match="not offered here"):
            shelf.model(name)
        with pytest.raises(AbslrpError, match="not offered here"):
            shelf.text_model(name)
    with pytest.raises(AbslrpError, match="is no folder"):
        Shelf([tmp_path / "none"])


def test_whatever_comes_from_outside_is_escaped(cat: Picked) -> None:
    evil = '<img src=x onerror="alert(1)">'
    for said in (
        views.preview_html(replace(cat, name=evil)),
        views.message_html(evil),
        views.table_html(evil, [evil], [[evil, evil]]),
    ):
        assert "<img src=x" not in said and "&lt;img" in said


def test_one_scale_is_one_scale() -> None:
    picture = np.full((8, 8, 3), 255, dtype=np.uint8)
    strong, weak = np.zeros((8, 8)), np.ones((8, 8))
    strong[0, 0], strong[1, 1], weak[0, 0] = 100.0, -100.0, -1.0
    shared = pictures({("a", "strong"): strong, ("a", "weak"): weak}, picture)
    alone = pictures({("a", "strong"): strong, ("a", "weak"): weak}, picture, one_scale=False)
    assert np.abs(share(weak)).sum() == pytest.approx(1) and full_colour([share(weak)]) < full_colour([share(strong)])
    # The weak map is pale beside the strong one, and full of colour by itself.
    assert shared["a", "weak"][3, 3, 1] > alone["a", "weak"][3, 3, 1]
    assert not np.array_equal(share(np.ones((4, 4))), np.ones((4, 4)))
    with pytest.raises(AbslrpError, match="opacity is 2"):
        pictures({("a", "b"): weak}, picture, opacity=2)


def test_a_refused_choice_leaves_the_one_before(shop: Workshop, cat: Picked, tmp_path: Path) -> None:
    act = ImageActions(shop, tmp_path)
    seen, note = act.choose(Seen(), lambda: cat, None, None)
    assert not note and seen.offered[0].startswith("tiger cat (282) 39")
    after, note = act.choose(seen, None, "hf:/etc", None)
    assert after.failed and after.picked is cat and "not offered here" in note and 'role="alert"' in note
    more, note = act.add_class(seen, "504")
    assert not note and more.offered[-1].startswith("coffee mug (504)")
    again, _ = act.add_class(more, "282")
    assert sorted(again.offered) == sorted(more.offered)
    assert "tick at least one" in act.draw([seen, [], ["gradcam"], [], 1, 1, True, False], lambda done, what: None)[1]
    assert "no image is chosen" in act.coverage([Seen(), [], [], [], 1, 1, True, False])[1]
    drawn, note = act.draw([more, [more.offered[-1]], ["gradcam"], [], 1, 1, True, False], lambda done, what: None)
    assert "coffee mug" in drawn and "1 map of chelsea" in note
