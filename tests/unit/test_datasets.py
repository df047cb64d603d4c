"""Datasets in every layout, made up small in a temporary folder, and one real one."""

from __future__ import annotations

import csv
import pickle
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from abslrp.inputs import voc as files
from abslrp.inputs.datasets import Dataset, Item, item_boxes, open_dataset, readable
from abslrp.inputs.images import Transform
from abslrp.inputs.voc import VOC_CLASSES, find_voc, read_annotation, read_mask
from abslrp.types import AbslrpError

SMALL = Transform(size=(16, 16), resize=16)


def picture(path: Path, size: tuple[int, int] = (40, 20), turn: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = turn
    Image.new("RGB", size, "white").save(path, exif=exif)
    return path


def labels_of(dataset: Dataset) -> dict[str, tuple[int, ...]]:
    return {item.id: item.labels for item in dataset.items}


def refused(spec: object, says: str, **options: object) -> str:
    with pytest.raises(AbslrpError, match=says) as caught:
        open_dataset(spec, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


# What all datasets have in common.


def test_samples_are_read_without_labels() -> None:
    dataset = open_dataset("samples", class_names=["a"])
    assert (dataset.name, len(dataset), dataset.class_names) == ("samples", 4, ["a"])
    assert [item.id for item in dataset.items] == ["chelsea", "coffee", "motorcycle_left", "rocket"]
    image = dataset.read(dataset.items[0])
    image.paste("black", (0, 0, *image.size))
    assert np.asarray(dataset.read(dataset.items[0])).max() > 0
    assert labels_of(dataset)["coffee"] == ()
    refused("samples", "takes no labels", labels="val.txt")


def numbered(folder: Path, count: int) -> Dataset:
    for index in range(count):
        picture(folder / f"{index:02d}.png")
    return open_dataset(folder)


def test_sample_depends_on_ids_and_seed_alone(tmp_path: Path) -> None:
    dataset = numbered(tmp_path / "here", 30)
    other = tmp_path / "elsewhere"
    for index in reversed(range(30)):
        picture(other / f"{index:02d}.png", size=(9, 9))
    drawn = [item.id for item in dataset.sample(7, seed=3).items]
    assert drawn == [item.id for item in open_dataset(other).sample(7, seed=3).items]
    assert drawn == sorted(drawn)
    assert len(set(drawn)) == 7
    assert drawn != [item.id for item in dataset.sample(7, seed=4).items]
    assert set(drawn) < {item.id for item in dataset.sample(8, seed=3).items}
    # Pinned, so that a later change of the draw does not pass unseen.
    assert [item.id for item in dataset.sample(3, seed=0).items] == ["06.png", "19.png", "26.png"]


def test_sample_of_more_than_there_are_is_all(tmp_path: Path) -> None:
    dataset = numbered(tmp_path, 3)
    assert dataset.sample(99, seed=0).items == dataset.items
    with pytest.raises(AbslrpError, match="sample of 0"):
        dataset.sample(0, seed=0)


def test_what_cannot_be_read_is_skipped_and_told(tmp_path: Path) -> None:
    dataset = numbered(tmp_path, 4)
    (tmp_path / "01.png").write_text("no image")
    (tmp_path / "02.png").unlink()
    images = readable(dataset, SMALL)
    for _ in range(2):  # Going through again does not count twice.
        read = list(images)
        assert [item.id for item, _ in read] == ["00.png", "03.png"]
        assert all(tensor.shape == (3, 16, 16) for _, tensor in read)
        assert [one for one, _ in images.skipped] == ["01.png", "02.png"]
    assert "not an image" in images.skipped[0][1]
    assert "does not exist" in images.skipped[1][1]
    assert torch.equal(dataset.tensor(dataset.items[0], SMALL), read[0][1])


def test_datasets_can_be_sent_to_other_processes(tmp_path: Path) -> None:
    for dataset in (numbered(tmp_path, 2), open_dataset("samples")):
        again = pickle.loads(pickle.dumps(dataset))
        assert again.items == dataset.items
        assert again.read(again.items[0]).size == dataset.read(dataset.items[0]).size


def test_boxes_need_the_size_of_the_image() -> None:
    item = Item("a", (1,), {1: [(0, 0, 20, 20)], 2: [(0, 0, 1, 1)]})
    transform = Transform(size=(10, 10), resize=20)
    assert item_boxes(item, transform, (40, 20)) == {1: [(0, 0, 5, 10)]}
    assert item_boxes(Item("b"), transform) == {}
    with pytest.raises(AbslrpError, match="size of a is not known"):
        item_boxes(item, transform)


def test_what_is_no_dataset_is_one_sentence(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "does not exist")
    refused("", "does not exist")
    refused("hf:", "does not exist")
    refused(tmp_path, "no image found")
    picture(tmp_path / ".hidden" / "a.png")
    refused(tmp_path, "only hidden images")
    refused(picture(tmp_path / "a.png"), "is a file")
    refused(tmp_path, "no split 'train'", split="train")


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    refused(tmp_path, "may not be read")


# Class folders.


def test_folders_without_any_names_count_in_order(tmp_path: Path) -> None:
    for name in ("dog/b.jpg", "cat/deep/a.jpg", "cat/.hidden.jpg", ".git/x.png"):
        picture(tmp_path / name)
    (tmp_path / "bird").mkdir()
    dataset = open_dataset(tmp_path)
    assert labels_of(dataset) == {"cat/deep/a.jpg": (1,), "dog/b.jpg": (2,)}
    assert dataset.class_names == ["bird", "cat", "dog"]
    assert dataset.name == tmp_path.name


def test_folders_take_the_models_classes_by_name(tmp_path: Path) -> None:
    for name in ("tiger_cat/1.jpg", "Dog/1.jpg"):
        picture(tmp_path / name)
    dataset = open_dataset(tmp_path, class_names=["mug", "dog", "tiger cat"])
    assert labels_of(dataset) == {"Dog/1.jpg": (1,), "tiger_cat/1.jpg": (2,)}
    assert dataset.class_names == ["mug", "dog", "tiger cat"]


def test_folders_take_the_models_classes_by_order_if_there_are_as_many(tmp_path: Path) -> None:
    for name in ("a/1.jpg", "b/1.jpg"):
        picture(tmp_path / name)
    assert labels_of(open_dataset(tmp_path, class_names=["mug", "dog"])) == {"a/1.jpg": (0,), "b/1.jpg": (1,)}
    assert labels_of(open_dataset(tmp_path, class_names=["A", "dog"])) == {"a/1.jpg": (0,), "b/1.jpg": (1,)}
    refused(tmp_path, "'b' in .* is no class of the model", class_names=["dog", "a"])


def test_folders_that_are_no_classes_of_the_model_are_no_labels(tmp_path: Path) -> None:
    for name in ("2019/1.jpg", "2020/1.jpg"):
        picture(tmp_path / name)
    assert set(labels_of(open_dataset(tmp_path, class_names=["a", "b", "c"])).values()) == {()}


def test_images_without_class_folders_have_no_labels(tmp_path: Path) -> None:
    for name in ("a.jpg", "holiday/b.jpg"):
        picture(tmp_path / name)
    dataset = open_dataset(str(tmp_path))
    assert labels_of(dataset) == {"a.jpg": (), "holiday/b.jpg": ()}
    assert dataset.class_names is None


@pytest.mark.parametrize("flat", [True, False])
def test_a_folder_of_splits_is_entered(tmp_path: Path, flat: bool) -> None:
    inside = "" if flat else "cat/"
    for split in ("train", "val"):
        picture(tmp_path / split / f"{inside}{split}.jpg")
    dataset = open_dataset(tmp_path)
    assert [item.id for item in dataset.items] == [f"{inside}val.jpg"]
    assert dataset.name == f"{tmp_path.name}-val"
    assert dataset.items == open_dataset(tmp_path / "val").items
    assert [item.id for item in open_dataset(tmp_path, split="train").items] == [f"{inside}train.jpg"]


def test_linked_class_folders_are_followed(tmp_path: Path) -> None:
    picture(tmp_path / "store" / "x.jpg")
    (tmp_path / "data").mkdir()
    try:
        (tmp_path / "data" / "cat").symlink_to(tmp_path / "store", target_is_directory=True)
    except OSError:
        pytest.skip("links cannot be made here")
    assert labels_of(open_dataset(tmp_path / "data")) == {"cat/x.jpg": (0,)}


# ImageNet.


def test_a_thousand_wordnet_ids_count_in_order_even_where_one_is_empty(tmp_path: Path) -> None:
    names = [f"n{10_000_000 + 7 * index}" for index in range(1000)]
    for name in names:
        (tmp_path / "val" / name).mkdir(parents=True)
    picture(tmp_path / "val" / names[999] / "a.JPEG")
    dataset = open_dataset(tmp_path)
    assert labels_of(dataset) == {f"{names[999]}/a.JPEG": (999,)}
    assert dataset.class_names == names


def test_fewer_wordnet_ids_are_those_of_imagenet(tmp_path: Path) -> None:
    for name in ("n02123045", "n01443537"):
        picture(tmp_path / name / "a.JPEG")
    assert [item.labels for item in open_dataset(tmp_path).items] == [(1,), (281,)]


def test_fewer_wordnet_ids_are_those_of_a_model_with_as_many_classes(tmp_path: Path) -> None:
    for name in ("n02123045", "n01443537"):
        picture(tmp_path / name / "a.JPEG")
    assert [item.labels for item in open_dataset(tmp_path, class_names=["fish", "cat"]).items] == [(0,), (1,)]
    refused(tmp_path, "has the label 281, but there are 3 classes", class_names=["fish", "cat", "dog"])


def test_wordnet_ids_beyond_imagenet_count_in_order(tmp_path: Path) -> None:
    for name in ("n99999999", "n01443537"):
        picture(tmp_path / name / "a.JPEG")
    assert [item.labels for item in open_dataset(tmp_path).items] == [(0,), (1,)]


def test_wordnet_ids_without_timm_are_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "n02123045" / "a.JPEG")
    monkeypatch.setitem(sys.modules, "timm.data", None)
    assert "classes.csv" in refused(tmp_path, r"abslrp\[models\]")


@pytest.mark.parametrize("head", ["class,wnid,name", "Index,WordNet ID,Class name", "\ufefflabel,folder,name"])
def test_classes_csv_says_which_class_a_folder_is(tmp_path: Path, head: str) -> None:
    (tmp_path / "classes.csv").write_text(f'{head}\n2,n2,"cat, tabby"\n0,n1,dog\n', encoding="utf-8")
    for name in ("val/n1", "val/n2"):
        picture(tmp_path / name / "a.JPEG")
    dataset = open_dataset(tmp_path)
    assert labels_of(dataset) == {"n1/a.JPEG": (0,), "n2/a.JPEG": (2,)}
    assert dataset.class_names == ["dog", "1", "cat, tabby"]
    assert open_dataset(tmp_path, class_names=["x", "y", "z"]).class_names == ["x", "y", "z"]
    refused(tmp_path, "n2/a.JPEG in .* has the label 2, but there are 2 classes, 0 to 1", class_names=["x", "y"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("wnid,name\nn1,dog\n", "no column 'index'"),
        ("class,wnid\nx,n1\n", "row without a class"),
        ("class,wnid\n-1,n1\n", "index -1"),
        ("class,wnid\n999999999999,n1\n", "index 999999999999"),
        ("", "no column 'index'"),
        ("class,wnid\n0," + "x" * 200_000, "is not a table"),
        ("class,wnid\n0,n2\n", "'n1' in .* is not in classes.csv"),
    ],
)
def test_broken_classes_csv(tmp_path: Path, text: str, says: str) -> None:
    picture(tmp_path / "n1" / "a.JPEG")
    (tmp_path / "classes.csv").write_text(text)
    refused(tmp_path, says)


def test_boxes_csv_gives_boxes_by_class(tmp_path: Path) -> None:
    for name in ("n1/a.JPEG", "n1/b.JPEG", "n2/a.JPEG", "n2/c.JPEG"):
        picture(tmp_path / name)
    (tmp_path / "classes.csv").write_text("class,wnid\n5,n1\n6,n2\n")
    rows = (
        "a.JPEG,n1,5,0,0,10,10",
        "b.JPEG,n1,,1,2,3,4.5",
        "n2/a.JPEG,,4,5,5,7,7",
        "c.JPEG,,,1,1,2,2",
        "no.JPEG,n1,x,,,,",
    )
    (tmp_path / "boxes.csv").write_text(
        "\n".join(("file,wnid,class,xmin,ymin,xmax,ymax", *rows, "a.JPEG,n1,5,1,1,2,2"))
    )
    found = {item.id: item for item in open_dataset(tmp_path).items}
    assert found["n1/a.JPEG"].boxes == {5: [(0, 0, 10, 10), (1, 1, 2, 2)]}
    assert found["n1/b.JPEG"].boxes == {5: [(1, 2, 3, 4.5)]}
    assert found["n2/a.JPEG"].boxes == {4: [(5, 5, 7, 7)]}
    assert found["n2/c.JPEG"].boxes == {6: [(1, 1, 2, 2)]}
    assert found["n2/c.JPEG"].size == (40, 20)
    assert item_boxes(found["n1/a.JPEG"], Transform(size=(20, 20), resize=(20, 20))) == {
        5: [(0, 0, 5, 10), (0.5, 1, 1, 2)]
    }


@pytest.mark.parametrize(
    "row", ["a.JPEG,0,x,0,1,1", "a.JPEG,0,5,0,5,1", "a.JPEG,0,nan,0,1,1", "a.JPEG,,0,0,1,1", "a.JPEG"]
)
def test_broken_boxes_csv(tmp_path: Path, row: str) -> None:
    picture(tmp_path / "a.JPEG")
    (tmp_path / "boxes.csv").write_text(f"file,class,xmin,ymin,xmax,ymax\n{row}\n")
    refused(tmp_path, r"line 2 of .*boxes.csv is not a box")


def white_square(path: Path, turn: int) -> None:
    pixels = np.zeros((32, 64, 3), dtype=np.uint8)
    pixels[4:12, 8:32] = 255
    exif = Image.Exif()
    exif[0x0112] = turn
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, exif=exif)


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_boxes_turn_with_the_image(tmp_path: Path, turn: int, suffix: str) -> None:
    white_square(tmp_path / f"a.{suffix}", turn)
    (tmp_path / "boxes.csv").write_text(f"file,class,xmin,ymin,xmax,ymax\na.{suffix},0,8,4,32,12\n")
    dataset = open_dataset(tmp_path)
    (item,) = dataset.items
    image = dataset.read(item)
    rows, columns = np.nonzero(np.asarray(image)[..., 0] > 127)
    assert item.boxes == {0: [(columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)]}
    assert item.size == image.size


# Lists of labels.


@pytest.mark.parametrize("between", [" ", "\t", ",", ", ", ";"])
def test_labels_file_names_files(tmp_path: Path, between: str) -> None:
    for name in ("images/a.JPEG", "images/my cat, old.JPEG", "images/c.JPEG"):
        picture(tmp_path / name)
    lines = (("images/a.JPEG", "3"), ("my cat, old.JPEG", "n01443537"), ("a.JPEG", "5"), ("", ""))
    (tmp_path / "val.txt").write_text("\n".join(map(between.join, lines)))
    dataset = open_dataset(tmp_path / "images", labels=tmp_path / "val.txt")
    assert labels_of(dataset) == {"a.JPEG": (3, 5), "my cat, old.JPEG": (1,)}


def test_labels_file_may_have_a_heading_and_quotes(tmp_path: Path) -> None:
    picture(tmp_path / "a.JPEG")
    (tmp_path / "val.csv").write_text('filename,label\n"a.JPEG","4"\n')
    assert labels_of(open_dataset(tmp_path, labels=tmp_path / "val.csv")) == {"a.JPEG": (4,)}


def test_labels_file_with_windows_paths(tmp_path: Path) -> None:
    picture(tmp_path / "x" / "a.JPEG")
    picture(tmp_path / "y" / "a.JPEG")
    (tmp_path / "val.txt").write_text("val\\y\\a.JPEG 4\r\n")
    assert labels_of(open_dataset(tmp_path, labels=tmp_path / "val.txt")) == {"y/a.JPEG": (4,)}


def test_labels_in_the_order_of_the_files(tmp_path: Path) -> None:
    for name in ("b.JPEG", "a.JPEG"):
        picture(tmp_path / name)
    (tmp_path / "truth.txt").write_text("7\n8\n")
    assert labels_of(open_dataset(tmp_path, labels=tmp_path / "truth.txt")) == {"a.JPEG": (7,), "b.JPEG": (8,)}
    (tmp_path / "truth.txt").write_text("label\nn01443537\nn01440764\n")
    assert labels_of(open_dataset(tmp_path, labels=tmp_path / "truth.txt")) == {"a.JPEG": (1,), "b.JPEG": (0,)}


def test_official_ground_truth_is_read_by_its_devkit(tmp_path: Path) -> None:
    from scipy.io import savemat

    images, truth = tmp_path / "val", tmp_path / "data" / "ILSVRC2012_validation_ground_truth.txt"
    for name in ("b.JPEG", "a.JPEG"):
        picture(images / name)
    truth.parent.mkdir()
    truth.write_text("3\n1\n")
    refused(images, "put the devkit's meta.mat beside it", labels=truth)
    kinds = [("ILSVRC2012_ID", float), ("WNID", object), ("num_children", float)]
    rows = [(1, "n30", 0), (2, "n10", 0), (3, "n20", 0), (4, "n00", 3)]
    savemat(truth.with_name("meta.mat"), {"synsets": np.array(rows, dtype=kinds)})
    assert labels_of(open_dataset(images, labels=truth)) == {"a.JPEG": (1,), "b.JPEG": (2,)}
    truth.write_text("3\n4\n")
    refused(images, "has the label 4, which meta.mat", labels=truth)
    truth.with_name("meta.mat").write_text("no matrix")
    refused(images, "is not the devkit's meta.mat", labels=truth)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no labels"),
        ("a.JPEG 1\nz.JPEG 2\n", "names 1 files that are not in the folder or are there twice, the first 'z.JPEG'"),
        ("other/a.JPEG 1\n", "the first 'other/a.JPEG'"),
        ("a.JPEG 1\nb.JPEG dog\n", "line 2 of"),
        ("a.JPEG 1\n\n3\n", "line 3 of"),
        ("1\n", "has 1 labels for 2 images"),
        ("a.JPEG 3\n", "a.JPEG in .* has the label 3, but there are 3 classes, 0 to 2"),
        ("a.JPEG -1\n", "has the label -1"),
        ("b.JPEG 1\na.JPEG " + "9" * 5000, "line 2 of"),
        ("a.JPEG n99999999\n", "WordNet id n99999999"),
    ],
)
def test_labels_that_do_not_fit(tmp_path: Path, text: str, says: str) -> None:
    for name in ("sub/a.JPEG", "sub/b.JPEG"):
        picture(tmp_path / "images" / name)
    (tmp_path / "val.txt").write_text(text)
    refused(tmp_path / "images", says, labels=tmp_path / "val.txt", class_names=["a", "b", "c"])


def test_labels_file_that_cannot_be_read(tmp_path: Path) -> None:
    picture(tmp_path / "a.JPEG")
    refused(tmp_path, "does not exist", labels=tmp_path / "none.txt")
    refused(tmp_path, "cannot be read as text", labels=tmp_path)
    refused(tmp_path, "cannot be read as text", labels=tmp_path / "a.JPEG")


def test_real_imagenet_has_the_right_classes(shared: Path) -> None:
    folder = shared / "data" / "imagenet-val"
    if not folder.is_dir():
        pytest.skip("no ImageNet here: put data/imagenet-val into the shared folder")
    with (folder / "classes.csv").open() as stream:
        classes = {row["wnid"]: int(row["class"]) for row in csv.DictReader(stream)}
    dataset = open_dataset(folder)
    assert len(dataset) == 500
    assert len(dataset.class_names or []) == 1000
    assert all(item.labels == (classes[item.id.partition("/")[0]],) for item in dataset.items)
    assert len({item.labels for item in dataset.items}) == 100
    assert all(list(item.boxes) == list(item.labels) for item in dataset.items)
    for item, tensor in readable(dataset.sample(5, seed=0), Transform()):
        assert tensor.shape == (3, 224, 224)
        assert dataset.read(item).size == item.size
        assert item_boxes(item, Transform())


def test_timm_and_classes_csv_agree_on_imagenet(shared: Path, tmp_path: Path) -> None:
    if not (shared / "data" / "imagenet-val").is_dir():
        pytest.skip("no ImageNet here: put data/imagenet-val into the shared folder")
    with (shared / "data" / "imagenet-val" / "classes.csv").open() as stream:
        wnids = [row["wnid"] for row in csv.DictReader(stream)]
    assert files.imagenet_ids("here") == wnids == sorted(wnids)


# Pascal VOC.


def thing(name: str, box: tuple[float, ...], extra: str = "") -> str:
    edges = "".join(
        f"<{edge}>{value}</{edge}>" for edge, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    part = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
    return f"<object><name>{name}</name>{extra}{part}<bndbox>{edges}</bndbox></object>"


def annotate(root: Path, name: str, *objects: str, size: tuple[int, int] = (40, 20)) -> None:
    (root / "Annotations").mkdir(parents=True, exist_ok=True)
    shape = f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>"
    (root / "Annotations" / f"{name}.xml").write_text(f"<annotation>{shape}{''.join(objects)}</annotation>")


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """VOC 2012 of four images, three of them in val."""
    root = tmp_path / "VOCdevkit" / "VOC2012"
    for name in ("a", "b", "c", "d"):
        picture(root / "JPEGImages" / f"{name}.jpg")
    hard = "<difficult>1</difficult>"
    annotate(root, "a", thing("dog", (1, 1, 10, 20)), thing("cat", (5.5, 2, 40, 20)), thing("dog", (3, 3, 3, 3)))
    annotate(
        root, "b", thing("person", (1, 1, 2, 2), hard), thing("tvmonitor", (1, 1, 2, 2), "<difficult>0</difficult>")
    )
    annotate(root, "c", thing("sheep", (1, 1, 2, 2), hard))
    annotate(root, "d", thing("aeroplane", (1, 1, 2, 2)))
    (root / "ImageSets" / "Main").mkdir(parents=True)
    (root / "ImageSets" / "Main" / "val.txt").write_text("a\nb\nc\n")
    (root / "ImageSets" / "Main" / "train.txt").write_text("d\n")
    mask = Image.new("P", (40, 20), 0)
    mask.putpalette(list(range(256)) * 3)
    mask.paste(8, (4, 1, 40, 20))
    mask.paste(255, (0, 0, 4, 1))
    (root / "SegmentationClass").mkdir()
    mask.save(root / "SegmentationClass" / "a.png")
    return root


def test_voc_has_several_labels_and_boxes_by_class(voc: Path) -> None:
    dataset = open_dataset(voc)
    dog, cat = VOC_CLASSES.index("dog"), VOC_CLASSES.index("cat")
    assert (dataset.name, dataset.class_names, dataset.skipped) == ("VOC2012-val", sorted(VOC_CLASSES), ())
    assert labels_of(dataset) == {"JPEGImages/a.jpg": (cat, dog), "JPEGImages/b.jpg": (19,), "JPEGImages/c.jpg": ()}
    assert dataset.items[0].boxes == {cat: [(4.5, 1, 40, 20)], dog: [(0, 0, 10, 20), (2, 2, 3, 3)]}
    assert dataset.items[0].size == dataset.read(dataset.items[0]).size == (40, 20)
    assert dataset.items[0].mask == voc / "SegmentationClass" / "a.png"
    assert dataset.items[1].mask is None


def test_voc_difficult_objects_on_request(voc: Path) -> None:
    assert [item.labels for item in open_dataset(voc, difficult=True).items][1:] == [(14, 19), (16,)]


def test_voc_is_found_from_the_folders_above(voc: Path) -> None:
    wanted = open_dataset(voc).items
    for folder in (voc.parent, voc.parent.parent):
        assert open_dataset(folder).items == wanted
        assert find_voc(folder) == voc
    assert find_voc(voc / "JPEGImages") is None


def test_voc_splits(voc: Path) -> None:
    assert [item.id for item in open_dataset(voc, split="train").items] == ["JPEGImages/d.jpg"]
    refused(voc, r"no list of the split 'test' .* \(train, val\)", split="test")
    (voc / "ImageSets" / "Main" / "val.txt").unlink()
    dataset = open_dataset(voc)
    assert (dataset.name, len(dataset)) == ("VOC2012", 4)
    (voc / "ImageSets" / "Main" / "val.txt").write_text("")
    refused(voc, "list of the split 'val' is empty")


def test_voc_mask_has_class_numbers(voc: Path) -> None:
    mask = read_mask(voc / "SegmentationClass" / "a.png")
    assert (mask.shape, mask.dtype) == ((20, 40), np.uint8)
    assert set(np.unique(mask)) == {0, 8, 255}
    Image.new("L", (2, 2), 77).save(voc / "odd.png")
    with pytest.raises(AbslrpError, match="not a mask of Pascal VOC"):
        read_mask(voc / "odd.png")
    Image.new("RGB", (2, 2)).save(voc / "odd.png")
    with pytest.raises(AbslrpError, match="not a mask of Pascal VOC"):
        read_mask(voc / "odd.png")
    Image.new("L", (6000, 6000)).save(voc / "odd.png")
    with pytest.raises(AbslrpError, match="too many pixels for a mask"):
        read_mask(voc / "odd.png")
    with pytest.raises(AbslrpError, match="not a mask that Pillow can read"):
        read_mask(voc / "ImageSets" / "Main" / "val.txt")


BOMB = '<!DOCTYPE a [<!ENTITY x "xxxxxxxxxx"><!ENTITY y "&x;&x;&x;">]><annotation>&y;</annotation>'
OUTSIDE = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>'
BROKEN = {
    "cut": "<annotation><object>",
    "empty": "",
    "bomb": BOMB,
    "outside": OUTSIDE,
    "small doctype": "<!doctype annotation><annotation/>",
    "other": "<html></html>",
    "entity": "<annotation>&undeclared;</annotation>",
    "no name": "<annotation><object><bndbox/></object></annotation>",
    "no box": "<annotation><object><name>cat</name></object></annotation>",
    "no edge": "<annotation><object><name>cat</name><bndbox><xmin>1</xmin></bndbox></object></annotation>",
    "no class": f"<annotation>{thing('unicorn', (1, 1, 2, 2))}</annotation>",
    "no inside": f"<annotation>{thing('cat', (5, 1, 2, 2))}</annotation>",
    "not a number": f"<annotation>{thing('cat', (float('nan'), 1, 2, 2))}</annotation>",
    "deep": "<annotation>" + "<a>" * 200_000,
    "large": "<annotation>" + " " * (1 << 20) + "</annotation>",
    "zero byte": "<annotation>\0</annotation>",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_voc_broken_annotation_is_skipped_and_told(voc: Path, kind: str) -> None:
    (voc / "Annotations" / "a.xml").write_text(BROKEN[kind])
    dataset = open_dataset(voc)
    assert [item.id for item in dataset.items] == ["JPEGImages/b.jpg", "JPEGImages/c.jpg"]
    ((name, sentence),) = dataset.skipped
    assert name == "JPEGImages/a.jpg"
    assert "a.xml is not an annotation that can be used" in sentence
    assert "\n" not in sentence
    assert len(sentence) < 1000
    images = readable(dataset, SMALL)
    assert len(list(images)) == 2
    assert images.skipped == list(dataset.skipped)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_voc_annotation_in_another_encoding_is_not_parsed(voc: Path, encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>{BOMB}<!--é-->'
    (voc / "Annotations" / "a.xml").write_bytes(text.encode(encoding))
    with pytest.raises(AbslrpError, match="not an annotation"):
        read_annotation(voc / "Annotations" / "a.xml")


def test_voc_declared_encoding_cannot_smuggle_a_doctype(voc: Path) -> None:
    hidden = '<?xml version="1.0" encoding="utf-7"?>+ADwAIQ-DOCTYPE a><annotation/>'
    (voc / "Annotations" / "a.xml").write_text(hidden)
    with pytest.raises(AbslrpError, match="not an annotation"):
        read_annotation(voc / "Annotations" / "a.xml")


def test_voc_deeply_nested_annotation_is_harmless(voc: Path) -> None:
    depth = 100_000
    (voc / "Annotations" / "a.xml").write_text(f"<annotation>{'<a>' * depth}{'</a>' * depth}</annotation>")
    assert read_annotation(voc / "Annotations" / "a.xml").boxes == {}


def test_voc_missing_image_or_annotation_is_told(voc: Path) -> None:
    (voc / "JPEGImages" / "b.jpg").unlink()
    (voc / "Annotations" / "c.xml").unlink()
    assert [name for name, _ in open_dataset(voc).skipped] == ["b", "JPEGImages/c.jpg"]
    (voc / "Annotations" / "a.xml").unlink()
    refused(voc, "has no image to use")


@pytest.mark.parametrize(("size", "turns"), [((64, 32), True), ((32, 64), False), ((0, 0), True)])
def test_voc_boxes_drawn_on_the_upright_image_stay(voc: Path, size: tuple[int, int], turns: bool) -> None:
    white_square(voc / "JPEGImages" / "a.jpg", turn=6)
    annotate(voc, "a", thing("cat", (9, 5, 32, 12)), size=size)
    item = open_dataset(voc).items[0]
    assert item.size == (32, 64)
    assert item.boxes == {7: [(20, 8, 28, 32) if turns else (8, 4, 32, 12)]}


def test_voc_image_that_is_damaged_keeps_its_boxes_until_it_is_read(voc: Path) -> None:
    (voc / "JPEGImages" / "a.jpg").write_text("no image")
    dataset = open_dataset(voc)
    assert dataset.items[0].boxes
    images = readable(dataset, SMALL)
    assert len(list(images)) == 2
    assert [name for name, _ in images.skipped] == ["JPEGImages/a.jpg"]


# Hugging Face.


@pytest.fixture
def hub() -> types.ModuleType:
    return pytest.importorskip("datasets", reason="the package datasets is missing: pip install datasets")


def test_hugging_face_folder(hub: types.ModuleType, tmp_path: Path) -> None:
    pictures = [str(picture(tmp_path / f"{turn}.jpg", turn=turn)) for turn in (1, 6, 1)]
    features = hub.Features({"photo": hub.Image(), "kind": hub.ClassLabel(names=["mug", "cat"])})
    rows = hub.Dataset.from_dict({"photo": pictures, "kind": [1, 0, -1]}, features=features)
    rows.save_to_disk(tmp_path / "stored")
    dataset = open_dataset(f"hf:{tmp_path}/stored")
    assert (dataset.name, dataset.class_names) == ("hf:stored", ["mug", "cat"])
    assert labels_of(dataset) == {"00000000": (1,), "00000001": (0,), "00000002": ()}
    assert [dataset.read(item).size for item in dataset.items] == [(40, 20), (20, 40), (40, 20)]
    named = open_dataset(f"hf:{tmp_path}/stored", class_names=["Cat", "dog", "mug"])
    assert [item.labels for item in named.items] == [(0,), (2,), ()]
    assert {item.labels for item in open_dataset(f"hf:{tmp_path}/stored", class_names=["x"]).items} == {()}
    again = pickle.loads(pickle.dumps(dataset))
    assert again.read(again.items[1]).size == (20, 40)
    refused(f"hf:{tmp_path}/stored", "takes no labels", labels="x")


def test_hugging_face_splits_and_several_labels(hub: types.ModuleType, tmp_path: Path) -> None:
    one = str(picture(tmp_path / "a.jpg"))
    many = hub.Dataset.from_dict({"image": [one], "labels": [[4, 2]]}).cast_column("image", hub.Image())
    plain = hub.Dataset.from_dict({"image": [one], "label": [3]}).cast_column("image", hub.Image())
    hub.DatasetDict({"train": many, "validation": plain}).save_to_disk(tmp_path / "stored")
    dataset = open_dataset(f"hf:{tmp_path}/stored")
    assert (dataset.name, dataset.class_names, labels_of(dataset)) == ("hf:stored-validation", None, {"00000000": (3,)})
    assert labels_of(open_dataset(f"hf:{tmp_path}/stored", split="train")) == {"00000000": (2, 4)}
    refused(f"hf:{tmp_path}/stored", "no split 'test': choose one of train, validation", split="test")
    refused(f"hf:{tmp_path}/stored", "has the label 3", class_names=["a", "b"])


def test_hugging_face_folder_that_is_none(hub: types.ModuleType, tmp_path: Path) -> None:
    refused(f"hf:{tmp_path}/no", "does not exist")
    refused(f"hf:{tmp_path}", "made by save_to_disk")
    hub.Dataset.from_dict({"text": ["a"]}).save_to_disk(tmp_path / "text")
    refused(f"hf:{tmp_path}/text", "no column of images, only text")


def test_hugging_face_damaged_image_is_skipped(hub: types.ModuleType, tmp_path: Path) -> None:
    images = [{"bytes": picture(tmp_path / "a.jpg").read_bytes(), "path": None}, {"bytes": b"none", "path": None}, None]
    rows = hub.Dataset.from_dict({"image": images}, features=hub.Features({"image": hub.Image()}))
    rows.save_to_disk(tmp_path / "stored")
    passed = readable(open_dataset(f"hf:{tmp_path}/stored"), SMALL)
    assert [item.id for item, _ in passed] == ["00000000"]
    assert ["has no image that Pillow can read" in sentence for _, sentence in passed.skipped] == [True, True]


@pytest.mark.parametrize("found", [None, types.ModuleType("datasets")], ids=["missing", "a folder of that name"])
def test_hugging_face_without_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: types.ModuleType | None
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", found)
    refused(f"hf:{tmp_path}", "needs the package datasets: pip install datasets")
