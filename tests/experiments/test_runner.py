"""Runs in this process: what is kept, what is skipped, what is refused."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.experiments.tiny import METHODS, configuration, contents, loaded, pictures
from torch import nn

import abslrp
from abslrp.experiments import runner
from abslrp.experiments.runner import Step, finished, known_of, run
from abslrp.experiments.store import Store
from abslrp.experiments.worker import Images
from abslrp.inputs.datasets import Dataset, Item, open_dataset
from abslrp.inputs.models import LoadedModel
from abslrp.types import AbslrpError

LABELS = ["abslrp", "gradcam", "random", "rough"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("pictures"), 12)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    run(configuration(data), out, loaded=loaded()).close()
    return out


def test_scores_are_those_of_evaluate(done: Path, data: Path) -> None:
    dataset, model = open_dataset(data), loaded()
    x = torch.stack([dataset.tensor(item, model.transform) for item in dataset.items])
    methods = {"abslrp": "abslrp", "gradcam": "gradcam", "random": "random", "rough": ("smoothgrad", {"samples": 3})}
    metrics: dict[str, dict[str, Any]] = {
        "gae": {"T": 4, "settings": "authors"},
        "road-morf": {"percentages": (20, 60)},
        "lipschitz": {"samples": 3},
        "focus": {},
    }
    names = [item.id for item in dataset.items]
    labels = [item.labels[0] for item in dataset.items]
    expected = abslrp.evaluate(model.model, x, methods, metrics, ids=names, labels=labels)
    with Store.open(done) as store:
        found = store.scores()
        for metric in metrics:
            for method in methods:
                score = expected[metric][method]
                assert found[metric][method]["score"] == pytest.approx(
                    dict(zip(score.ids, score.scores.tolist(), strict=True)), abs=1e-6
                )
        for part in ("LC_R", "LC_F", "LC", "C"):
            score = expected["gae"]["abslrp"]
            assert list(found["gae"]["abslrp"][part].values()) == pytest.approx(score.parts[part].tolist(), abs=1e-6)
        curve = store.array(names[0], "abslrp", "gae", "similarity_lerf")
        assert curve is not None
        np.testing.assert_allclose(curve, expected["gae"]["abslrp"].parts["similarity_lerf"][0], atol=1e-6)
        assert {metric for _, _, metric, _ in store.kept()} == {"gae"}


def test_facts_tell_what_was_done(done: Path, data: Path) -> None:
    with Store.open(done) as store:
        facts = store.facts()
        assert finished(store)
    assert facts["hash"] == configuration(data).hash
    assert facts["config"] == configuration(data).to_dict()
    assert facts["ids"][0] == "class0/000.png" and len(facts["ids"]) == 12
    assert facts["labels"][:4] == [[0], [0], [0], [1]]
    assert facts["planned"] == {"gae": 12, "road-morf": 12, "lipschitz": 12, "focus": 12}
    assert facts["versions"]["torch"] == torch.__version__
    assert (facts["device"], facts["seed"], facts["model"], facts["class_names"]) == ("cpu", 0, "tiny", None)
    gae = next(one for one in facts["metrics"] if one["name"] == "gae")
    assert (gae["higher_is_better"], gae["parts"], gae["options"]["T"]) == (True, ["LC_R", "LC_F", "LC", "C"], 4)


def test_facts_are_written_before_the_first_score(data: Path, tmp_path: Path) -> None:
    def stop(step: Step) -> None:
        if step.stage == "scoring":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(configuration(data), tmp_path, loaded=loaded(), progress=stop)
    with Store.open(tmp_path) as store:
        assert store.facts()["hash"] == configuration(data).hash
        assert not store.rows() and not finished(store)


def test_progress_tells_of_every_piece(data: Path, tmp_path: Path) -> None:
    steps: list[Step] = []
    run(configuration(data, methods="constant,random", metrics="gae:T=2"), tmp_path, loaded=loaded(), progress=steps.append).close()  # fmt: skip
    assert [step.done for step in steps if step.stage == "reading"] == list(range(13))
    scoring = [step for step in steps if step.stage == "scoring"]
    assert [step.done for step in scoring] == [0, 8, 16, 20, 24] and {step.total for step in scoring} == {24}
    assert [step.method for step in scoring[1:]] == ["constant", "random"] * 2


def test_a_finished_run_needs_neither_model_nor_data(done: Path, data: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(runner.models, "load_model", lambda *args, **kwargs: pytest.fail("the model was loaded"))
    before = contents(done)
    run(configuration(data), done).close()
    assert contents(done) == before


def test_another_configuration_is_refused_and_nothing_is_changed(done: Path, data: Path) -> None:
    before = contents(done)
    with pytest.raises(AbslrpError, match=r"another configuration \(methods: without rough; seed: 0 before, 3 now\)"):
        run(configuration(data, seed=3, methods="abslrp,gradcam,random"), done, loaded=loaded())
    assert contents(done) == before


def test_other_weights_are_refused(data: Path, tmp_path: Path) -> None:
    interrupted(configuration(data), tmp_path)
    torch.manual_seed(1)
    other = LoadedModel(nn.Sequential(nn.Flatten(), nn.Linear(768, 4)).eval(), loaded().transform, None, "tiny")
    with pytest.raises(AbslrpError, match="the weights of tiny are not those"):
        run(configuration(data), tmp_path, loaded=other)


def interrupted(config: Any, out: Path, after: int = 2, **how: Any) -> None:
    """A run that ends in the middle."""
    count = 0

    def stop(step: Step) -> None:
        nonlocal count
        count += step.stage == "scoring"
        if count > after:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(config, out, loaded=loaded(), progress=stop, **how)


def test_images_that_are_gone_are_told(data: Path, tmp_path: Path) -> None:
    mine = pictures(tmp_path / "mine", 8)
    interrupted(configuration(mine), tmp_path / "run")
    (mine / "class0" / "000.png").unlink()
    with pytest.raises(AbslrpError, match=r"1 of the run's 8 images are no longer in mine, such as class0/000.png"):
        run(configuration(mine), tmp_path / "run", loaded=loaded())


def test_broken_images_are_skipped_told_and_counted(tmp_path: Path) -> None:
    mine = pictures(tmp_path / "mine", 12)
    broken = mine / "class1" / "001.png"
    broken.write_bytes(broken.read_bytes()[:100])
    said: list[str] = []
    config = configuration(mine, methods="constant", metrics="gae:T=2,focus")
    with run(config, tmp_path / "run", loaded=loaded(), tell=said.append) as store:
        assert list(store.skipped()) == ["class1/001.png"]
        assert len(store.facts()["ids"]) == 11 and set(store.facts()["planned"].values()) == {11}
        assert all(row.image != "class1/001.png" for row in store.rows())
    assert len(said) == 1 and said[0].startswith("skipped class1/001.png: ")


def test_what_was_readable_at_first_is_what_the_run_is_about(tmp_path: Path) -> None:
    mine = pictures(tmp_path / "mine", 12)
    broken, image = mine / "class1" / "001.png", (mine / "class1" / "001.png").read_bytes()
    broken.write_bytes(b"")
    run(configuration(mine), tmp_path / "whole", loaded=loaded()).close()
    interrupted(configuration(mine), tmp_path / "run")
    broken.write_bytes(image)  # mended in between: mosaics are planned without it all the same
    run(configuration(mine), tmp_path / "run", loaded=loaded()).close()
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_no_readable_image_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.png").write_bytes(b"nothing")
    with pytest.raises(AbslrpError, match="none of the 1 images can be read"):
        run(configuration(tmp_path / "mine", metrics="road-morf"), tmp_path / "run", loaded=loaded())


def test_methods_that_do_not_fit_are_left_out(data: Path, tmp_path: Path) -> None:
    said: list[str] = []
    config = configuration(data, methods="rollout,constant", metrics="gae:T=2")
    with run(config, tmp_path, loaded=loaded(), tell=said.append) as store:
        assert list(store.unfit()) == ["rollout"] and "no attention" in store.unfit()["rollout"]
        assert set(store.scores()["gae"]) == {"constant"} and finished(store)
    assert len(said) == 1 and said[0].startswith("left out rollout: ")


def test_no_method_that_fits_is_a_sentence(data: Path, tmp_path: Path) -> None:
    with pytest.raises(AbslrpError, match="no method can be used on tiny; of rollout, the model has no attention"):
        run(configuration(data, methods="rollout", metrics="gae:T=2"), tmp_path, loaded=loaded())


def test_a_method_that_fails_on_the_way_is_left_out_and_the_others_go_on(
    data: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    module = sys.modules["abslrp.evaluate"]
    real, calls = module.explain, []

    def failing(model: Any, x: Any, t: Any, method: str, **options: Any) -> Any:
        calls.append(method)
        if method == "random" and calls.count("random") > 3:
            raise AbslrpError("enough of this.")
        return real(model, x, t, method, **options)

    monkeypatch.setattr(module, "explain", failing)
    with run(configuration(data, methods="random,constant", metrics="gae:T=2"), tmp_path, loaded=loaded()) as store:
        assert store.unfit() == {"random": "enough of this."}
        assert store.counts()["gae", "constant"] == 12 and finished(store)


def test_metrics_that_need_what_the_data_lacks_are_refused_before_any_work(data: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(sorted(data.rglob("*.png"))):
        (flat / f"{number}.png").write_bytes(path.read_bytes())
    for metric, need in (("focus", "labels"), ("pointing-game", "boxes")):
        with pytest.raises(AbslrpError, match=f"metric '{metric}' needs {need}, and flat has none"):
            run(configuration(flat, metrics=metric), tmp_path / "run", loaded=loaded())
    assert not (tmp_path / "run").exists()


def test_an_optional_metric_is_left_out_and_noted(tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    pictures(flat, 6, classes=1)
    for path in flat.rglob("*.png"):
        path.rename(flat / path.name)
    (flat / "class0").rmdir()
    said: list[str] = []
    config = configuration(flat, methods="constant", metrics="gae:T=2,focus", optional=("focus",))
    with run(config, tmp_path / "run", loaded=loaded(), tell=said.append) as store:
        assert store.facts()["planned"] == {"gae": 6}
        assert store.facts()["notes"] == said == ["focus is left out: flat has no labels in the model's classes."]


def test_labels_of_other_things_are_no_labels() -> None:
    def dataset(names: list[str] | None, *labels: int) -> Dataset:
        items = tuple(Item(str(k), (label,), {label: [(0, 0, 9, 9)]}, size=(20, 20)) for k, label in enumerate(labels))
        return Dataset("d", items, names, lambda name: Image.new("RGB", (20, 20)))

    four = ["a", "b", "c", "d"]
    assert known_of(dataset(None, 1, 3), loaded())[0] == [frozenset({1}), frozenset({3})]
    assert known_of(dataset(four, 1), loaded())[0] == [frozenset({1})]
    assert known_of(dataset(four, 1), loaded(names=four))[0] == [frozenset({1})]
    assert known_of(dataset(None, 4), loaded()) == (None, None)
    assert known_of(dataset(["x", "y"], 1), loaded()) == (None, None)
    assert known_of(dataset(["x", "y"], 1), loaded(names=four)) == (None, None)
    labels, boxes = known_of(dataset(["D", "A"], 0), loaded(names=four))
    assert labels == [frozenset({3})] and boxes is not None and list(boxes[0]) == [3]


def test_boxes_reach_the_metrics_on_the_networks_input(tmp_path: Path) -> None:
    mine = pictures(tmp_path / "mine", 4)
    lines = ["file,index,xmin,ymin,xmax,ymax", *(f"class{k}/{k:03d}.png,{k},0,0,30,24" for k in range(4))]
    (mine / "boxes.csv").write_text("\n".join(lines))
    with run(configuration(mine, methods="constant", metrics="box-mass"), tmp_path / "run", loaded=loaded()) as store:
        assert list(store.scores()["box-mass"]["constant"]["score"].values()) == [1.0] * 4


@pytest.mark.parametrize("size", [1, 3, 64])
def test_the_batch_changes_no_score(done: Path, data: Path, tmp_path: Path, size: int) -> None:
    run(configuration(data), tmp_path, batch=size, loaded=loaded()).close()
    for one, other in zip(contents(tmp_path)[0], contents(done)[0], strict=True):
        assert (one.image, one.method, one.metric, one.part) == (other.image, other.method, other.metric, other.part)
        assert one.value == pytest.approx(other.value, abs=1e-5)


def test_images_are_read_again_rather_than_all_kept(data: Path) -> None:
    dataset, reads = open_dataset(data), []
    counted = Dataset("d", dataset.items, None, lambda name: (reads.append(name), dataset.reader(name))[1])
    transform = loaded().transform
    images = Images(counted, transform, "cpu", room=3 * 3 * 16 * 16 * 4)
    whole = images(range(12))
    assert len(images._kept) == 3 and len(reads) == 12
    assert torch.equal(images([11, 10]), whole[[11, 10]]) and len(reads) == 12
    assert torch.equal(images([0]), whole[:1]) and len(reads) == 13


def test_random_weights_are_the_same_again(tmp_path: Path, monkeypatch: Any) -> None:
    def fresh(*args: Any, **kwargs: Any) -> LoadedModel:
        model = nn.Sequential(nn.Flatten(), nn.Linear(768, 4)).eval()
        return LoadedModel(model, loaded().transform, None, "random")

    monkeypatch.setattr(runner.models, "load_model", fresh)
    config = configuration(pictures(tmp_path / "mine", 4), random_weights=True)
    state = torch.get_rng_state()
    one, other = runner.load(config, "cpu"), runner.load(config, "cpu")
    assert torch.equal(one.model[1].weight, other.model[1].weight) and torch.equal(state, torch.get_rng_state())  # type: ignore[index]


def test_a_folder_that_cannot_be_written_is_a_sentence(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for out in (file / "run", Path("/proc/abslrp/run")):
        with pytest.raises(AbslrpError, match=r"cannot be opened as a run .*: name another folder"):
            run(configuration(data), out, loaded=loaded())


def test_a_full_disk_is_a_sentence_and_the_run_goes_on_later(
    done: Path, data: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    real = Store.open.__func__  # type: ignore[attr-defined]

    def cramped(cls: Any, folder: Path, *, create: bool = False) -> Store:
        store: Store = real(cls, folder, create=create)
        store._db.execute("PRAGMA max_page_count=30")
        return store

    with monkeypatch.context() as patch:
        patch.setattr(Store, "open", classmethod(cramped))
        with pytest.raises(AbslrpError, match=r"cannot be written \(database or disk is full\): free the disk"):
            run(configuration(data), tmp_path, loaded=loaded())
    run(configuration(data), tmp_path, loaded=loaded()).close()
    assert contents(tmp_path) == contents(done)


def test_a_file_that_is_no_run_is_a_sentence(data: Path, tmp_path: Path) -> None:
    (tmp_path / "run.sqlite").write_bytes(b"no database at all, by no means" * 100)
    with pytest.raises(AbslrpError, match="cannot be opened as a run"):
        run(configuration(data), tmp_path, loaded=loaded())
    assert (tmp_path / "run.sqlite").read_bytes().startswith(b"no database")


def test_a_run_killed_before_its_tables_were_made_begins_again(done: Path, data: Path, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "run.sqlite").close()
    run(configuration(data), tmp_path, loaded=loaded()).close()
    assert contents(tmp_path) == contents(done)
    assert METHODS.count(",") + 1 == len(LABELS) == len({row.method for row in contents(tmp_path)[0]})
