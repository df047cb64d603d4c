"""Files made to harm: bombs, tricks in weights, entities, rings of links, odd names, tables in the wrong encoding."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
import pickle
import resource
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.trust import seeds
from tests.trust.fuzz import fuzz
from torch import nn

from abslrp import cli
from abslrp.experiments.config import make_config, read_file, read_value
from abslrp.inputs.datasets import open_dataset, readable
from abslrp.inputs.images import Transform, decode_image, find_images, read_image
from abslrp.inputs.models import load_model, resolve_target
from abslrp.inputs.sentences import class_indices, load_text_classifier, read_sentences, tiny_classifier
from abslrp.inputs.voc import listed_labels, read_annotation, read_mask
from abslrp.inputs.weights import load_weights, read_weights
from abslrp.reporting.files import unique_stems
from abslrp.reporting.heatmaps import write_whole
from abslrp.types import AbslrpError

SMALL = Transform(size=(8, 8))
ROOT = Path(__file__).resolve().parents[2]


def refused(says: str, call: Callable[..., object], *given: Any, **options: Any) -> str:
    with pytest.raises(AbslrpError, match=says) as caught:
        call(*given, **options)
    message = str(caught.value)
    assert "\n" not in message and message.endswith((".", "?")) and len(message) < 1500
    return message


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def peak_of(call: Callable[..., object], *given: Any, room: int = 2**32) -> tuple[str, float]:
    """What a call in another process says, with so many bytes of address space left, and how many MB it took."""
    hear, speak = os.pipe()
    child = os.fork()
    if not child:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room,) * 2)
        low = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            call(*given)
            said = "read"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - low) / 1024
        os.write(speak, f"{grown} {said}"[:2000].encode())
        os._exit(0)
    os.close(speak)
    with os.fdopen(hear) as file:
        told, _, said = file.read().partition(" ")
    assert os.waitpid(child, 0)[1] == 0
    return said.removeprefix("AbslrpError: "), float(told)


# Images.


def png(width: int, height: int, bits: int, colour: int, packed: bytes, extra: bytes = b"") -> bytes:
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + extra + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _zeros(count: int) -> bytes:
    packer = zlib.compressobj(1)
    return b"".join(packer.compress(bytes(min(2**24, count - at))) for at in range(0, count, 2**24)) + packer.flush()


@pytest.mark.parametrize("lifted", [False, True], ids=["Pillow's bound", "a bound that another library lifted"])
def test_a_small_file_of_many_pixels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lifted: bool) -> None:
    if lifted:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    path = written(tmp_path / "bomb.png", png(60000, 60000, 8, 0, b"x"))
    refused("too many pixels", read_image, path)
    refused("not a mask that Pillow can read", read_mask, path)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "colour"), [(16, 0), (8, 6)], ids=["16 bit", "transparent"])
def test_the_largest_picture_takes_bounded_memory(tmp_path: Path, bits: int, colour: int) -> None:
    side, deep = 13000, bits // 8 * (4 if colour == 6 else 1)
    path = written(tmp_path / "large.png", png(side, side, bits, colour, _zeros(side * (1 + side * deep))))
    said, grown = peak_of(read_image, path)
    assert said == "read" and path.stat().st_size < 5e6
    assert grown < 16 * side * side / 2**20


@pytest.mark.parametrize("kind", [b"zTXt", b"iCCP", b"iTXt"])
def test_a_bomb_in_a_text_is_not_unpacked(tmp_path: Path, kind: bytes) -> None:
    body = b"k\0\1\0\0\0" if kind == b"iTXt" else b"k\0\0"
    path = written(tmp_path / "text.png", png(2, 2, 8, 0, _zeros(6), _chunk(kind, body + _zeros(2**27))))
    said, grown = peak_of(read_image, path)
    assert "damaged or cut short" in said and grown < 64


def test_large_pictures_are_the_same_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    from abslrp.inputs import images

    chance = np.random.default_rng(0)
    kinds = [
        Image.fromarray(chance.integers(0, 65536, (50, 40)).astype(np.uint16)),
        Image.fromarray(chance.normal(size=(50, 40)).astype(np.float32)),
        Image.fromarray(chance.integers(0, 256, (50, 40, 4)).astype(np.uint8), "RGBA"),
        Image.fromarray(np.full((50, 40), 1e6, dtype=np.float32)),
    ]
    whole = [np.asarray(images.to_rgb(one)) for one in kinds]
    monkeypatch.setattr(images, "_LARGE", 100)
    monkeypatch.setattr(images, "_BAND", 170)
    assert all(np.array_equal(a, images.to_rgb(b)) for a, b in zip(whole, kinds, strict=True))


def test_no_format_starts_another_program(tmp_path: Path) -> None:
    text = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    refused("is not an image", read_image, written(tmp_path / "a.png", text))
    refused("row 3 is not an image", decode_image, text.encode(), "row 3")


def test_first_of_hundreds_of_frames(tmp_path: Path) -> None:
    frames = [Image.new("L", (64, 64), number % 256) for number in range(300)]
    for name in ("many.gif", "many.tif"):
        frames[7].save(tmp_path / name, save_all=True, append_images=frames)
        assert read_image(tmp_path / name).getpixel((0, 0)) == (7, 7, 7)


@pytest.mark.parametrize("name", ["a\0.png", "a" * 5000, "ring.png", "pipe.png"], ids=["zero", "long", "ring", "pipe"])
def test_names_that_no_image_has(tmp_path: Path, name: str) -> None:
    (tmp_path / "ring.png").symlink_to("ring.png")
    os.mkfifo(tmp_path / "pipe.png")
    (path,) = find_images([tmp_path / name])
    refused("name an image file", read_image, path)


def test_rings_of_links_are_not_followed(tmp_path: Path) -> None:
    home = tmp_path / "data"
    Image.new("RGB", (4, 4)).save(tmp_path / "outside.png")
    (home / "in").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(home / "in" / "a.png")
    for number in range(4):
        (home / f"here{number}").symlink_to(".")
        (home / "in" / f"up{number}").symlink_to("..")
    (home / "above").symlink_to("..")
    assert [item.id for item in open_dataset(home).items] == ["in/a.png"]
    for pattern in ("**/*.png", "in/**/a.png"):
        assert [path.name for path in find_images([f"{home}/{pattern}"])] == ["a.png"]


def test_names_in_no_encoding_are_left_out_and_told(tmp_path: Path) -> None:
    picture = seeds.masks()[0]
    for name in (b"a.png", b"b\xff.png", b"c\n\x1b[31m.png"):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            file.write(picture)
    dataset = open_dataset(tmp_path)
    assert [item.id for item in dataset.sample(9, seed=0).items] == ["a.png", "c\n\x1b[31m.png"]
    assert [name for name, _ in dataset.skipped] == ["b\N{REPLACEMENT CHARACTER}.png"]
    assert all(name.encode() for name in unique_stems(find_images([tmp_path])))
    for path in tmp_path.glob("[ac]*"):
        path.unlink()
    refused("no image has a name that is UTF-8", open_dataset, tmp_path)


def test_long_names_leave_room_for_what_is_written(tmp_path: Path) -> None:
    stem = unique_stems([Path("象" * 80 + ".png")])[0]
    write_whole(tmp_path / f"{stem}-{'x' * 100}-map.png", lambda file: file.write(b"x"))


def test_a_name_does_not_colour_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--image", str(tmp_path / "a\x1b[31m\nb.png"), "--random-weights"]) == 2
    assert "a\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}b.png does not exist" in capsys.readouterr().err


# Weights.


def torch_file(path: Path, content: Any = None, **inside: bytes) -> Path:
    """A torch file, with members of the archive replaced."""
    file = io.BytesIO()
    torch.save({"weight": torch.ones(4, 10)} if content is None else content, file)
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, inside.get(name.rpartition("/")[2].replace(".", "_"), old.read(name)))
    return path


class Ran:
    """Leaves a trace where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("form", ["zip", "old", "pickle", "tar"])
def test_nothing_is_ever_unpickled(tmp_path: Path, form: str) -> None:
    bad, path = {"weight": Ran(tmp_path / "trace")}, tmp_path / "w.pth"
    if form in ("zip", "old"):
        torch.save(bad, path, _use_new_zipfile_serialization=form == "zip")
    elif form == "pickle":
        path.write_bytes(pickle.dumps(bad, protocol=2))
    else:
        with tarfile.open(path, "w") as archive:
            for name in ("sys_info", "pickle", "storages", "tensors"):
                content = pickle.dumps(bad, protocol=2)
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    refused("is a tar file" if form == "tar" else "is not a torch file of plain tensors", read_weights, path)
    assert not (tmp_path / "trace").exists()


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = torch_file(tmp_path / "plain.pth")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            with new.open(name, "w") as member:
                for _ in range(2**8 if name.endswith("data/0") else 0):
                    member.write(bytes(2**20))
    said, grown = peak_of(read_weights, tmp_path / "bomb.pth")
    assert "is packed" in said and "would unpack to 256.0 MB" in said and grown < 64


class Reserves:
    def __reduce__(self) -> Any:
        return bytearray, (2**31,)


@pytest.mark.parametrize("old", [False, True])
def test_a_pickle_reserves_no_memory(tmp_path: Path, old: bool) -> None:
    pickled = pickle.dumps({"weight": Reserves()}, protocol=2)
    path = written(tmp_path / "w.pth", pickled) if old else torch_file(tmp_path / "w.pth", data_pkl=pickled)
    said, grown = peak_of(read_weights, path)
    assert "reserves memory as weights never do" in said and grown < 64


def test_tensors_larger_than_their_file(tmp_path: Path) -> None:
    whole, lie = io.BytesIO(), tmp_path / "lie.pth"
    torch.save({"weight": torch.ones(1000)}, whole)
    with zipfile.ZipFile(whole) as archive:
        told = next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
    assert told.count(b"M\xe8\x03") > 1
    torch_file(lie, {"weight": torch.ones(1000)}, data_pkl=told.replace(b"M\xe8\x03", b"J\0\0\0\x10"))
    refused("is not a torch file of plain tensors", read_weights, lie)
    for name, value in {
        "expanded": torch.ones(1).expand(10**11),
        "sparse": torch.sparse_coo_tensor(
            torch.zeros(1, 1, dtype=torch.long), torch.ones(1), (10**12,), check_invariants=False
        ),
    }.items():
        torch.save({"weight": value}, tmp_path / f"{name}.pth")
        refused("larger than what is stored", read_weights, tmp_path / f"{name}.pth")


def test_weights_that_hold_themselves(tmp_path: Path) -> None:
    ring: dict[str, Any] = {}
    ring["model"] = ring
    torch.save(ring, tmp_path / "ring.pth")
    refused("hold no tensors", read_weights, tmp_path / "ring.pth")


@pytest.mark.parametrize(
    ("head", "length"),
    [
        ({}, 2**63),
        ({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}, None),
        (
            {
                "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
            },
            None,
        ),
        ({"a": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]}}, None),
    ],
    ids=["length", "range", "overlap", "overflow"],
)
def test_safetensors_that_lie(tmp_path: Path, head: dict[str, Any], length: int | None) -> None:
    text = json.dumps(head).encode()
    path = written(tmp_path / "w.safetensors", struct.pack("<Q", length or len(text)) + text + bytes(12))
    refused("is not a whole safetensors file", read_weights, path)


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    kind = nn.Linear(10, 4)
    good = {"weight": torch.ones(4, 10), "bias": torch.zeros(4)}
    bad = {**good, "weight": torch.ones(4, 10, dtype=torch.int8)}
    refused(
        r"of another type than decimal numbers weight \(int8\)", load_weights, lambda _: nn.Linear(10, 4), bad, "linear"
    )
    assert kind.weight.shape == load_weights(lambda _: kind, good, "linear").weight.shape  # type: ignore[union-attr]
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is missing: pip install 'abslrp[models]'")
    loaded = load_model("timm:resnet18", pretrained=False, num_classes=4)
    for name, value in (("fc.bias", math.nan), ("bn1.running_var", math.inf)):
        weights = {key: value.clone() for key, value in loaded.model.state_dict().items()}
        weights[name][1] = value
        torch.save(weights, tmp_path / "w.pth")
        refused(
            f"the weights of timm:resnet18 hold NaN or infinity in {name}",
            load_model,
            "timm:resnet18",
            tmp_path / "w.pth",
        )


def test_libraries_unpickle_nothing_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torchvision finds in its cache it would unpickle."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is missing: pip install 'abslrp[models]'")
    from abslrp.inputs.torchvision_ops import ensure_torchvision

    models = ensure_torchvision().models
    place = tmp_path / "checkpoints"
    place.mkdir()
    torch.save({"weight": Ran(tmp_path / "trace")}, place / Path(models.get_model_weights("resnet18").DEFAULT.url).name)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", raising=False)
    refused("could not be fetched", load_model, "torchvision:resnet18")
    assert not (tmp_path / "trace").exists() and "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    pytest.importorskip("transformers", reason="transformers is missing: pip install 'abslrp[text]'")
    model, tokenizer = tiny_classifier()
    for one in (model, tokenizer):
        one.save_pretrained(tmp_path / "classifier")
    return tmp_path / "classifier"


def test_code_beside_a_model_is_not_run(classifier: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    (classifier / "own.py").write_text(f"import os\nos.mkdir({str(trace)!r})\n")
    config = json.loads((classifier / "config.json").read_text())
    maps = {
        "AutoConfig": "own.C",
        "AutoModelForSequenceClassification": "own.M",
        "AutoModelForImageClassification": "own.M",
    }
    (classifier / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": maps}))
    refused("the configuration in .* cannot be read", load_text_classifier, str(classifier))
    refused("trust_remote_code|contains custom code", load_model, f"hf:{classifier}")
    assert not trace.exists()


def test_weights_beside_a_model_are_looked_at(classifier: Path, tmp_path: Path) -> None:
    (classifier / "model.safetensors").unlink()
    torch.save({"weight": Ran(tmp_path / "trace")}, classifier / "pytorch_model.bin")
    refused("cannot be read", load_text_classifier, str(classifier))
    torch_file(classifier / "pytorch_model.bin", data_pkl=pickle.dumps({"weight": Reserves()}, protocol=2))
    refused("reserves memory", load_text_classifier, str(classifier))
    refused("reserves memory", load_model, f"hf:{classifier}")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    "change",
    [{"num_hidden_layers": 10**7}, {"num_labels": 10**9}, {"encoder": {"depths": [2, 10**8]}}],
    ids=["layers", "labels", "nested"],
)
def test_a_model_that_asks_for_too_much_is_not_built(classifier: Path, change: dict[str, Any]) -> None:
    told = json.loads((classifier / "config.json").read_text())
    (classifier / "config.json").write_text(json.dumps({**told, **change}))
    refused("asks for .* more than", load_text_classifier, str(classifier))
    refused("asks for .* more than", load_model, f"hf:{classifier}")


def test_a_configuration_of_a_model_without_end(classifier: Path) -> None:
    (classifier / "config.json").write_text("[" * 10**5)
    refused("too deep", load_text_classifier, str(classifier))


# Annotations, labels and tables.

LAUGHS = (
    '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><annotation>&b;</annotation>',
    '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation><object><name>&x;</name></object></annotation>',
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((text, "declares a DOCTYPE") for text in LAUGHS),
        (seeds.ANNOTATION.replace("<bndbox>", "<b>").replace("</bndbox>", "</b>"), "no bndbox"),
        (seeds.ANNOTATION.replace("<xmax>30", "<xmax>0"), "has no inside"),
        (seeds.ANNOTATION.replace("<xmax>30", "<xmax>nan"), "has no inside"),
        (seeds.ANNOTATION.replace("<xmax>30", "<xmax>1e999"), "has no inside"),
        (seeds.ANNOTATION.replace("cat", "../../etc/passwd"), "none of the twenty classes"),
        (seeds.ANNOTATION.replace("cat", "c" * 10**5), "none of the twenty classes"),
        ("<annotation>" * 10**5, "not an annotation"),
        (" " * 2**21, "more than 1048576 bytes"),
    ],
)
def test_annotations_that_harm(tmp_path: Path, text: str, says: str) -> None:
    refused(says, read_annotation, written(tmp_path / "a.xml", text))


def test_boxes_outside_and_names_that_climb(tmp_path: Path) -> None:
    from abslrp.inputs.datasets import item_boxes

    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (tmp_path / "VOC2012" / name).mkdir(parents=True)
    Image.new("RGB", (40, 20)).save(tmp_path / "VOC2012/JPEGImages/a.jpg")
    Image.new("RGB", (40, 20)).save(tmp_path / "secret.jpg")
    written(
        tmp_path / "VOC2012/Annotations/a.xml",
        seeds.ANNOTATION.replace(">1<", ">100<").replace(">30<", ">900<").replace(">20<", ">900<"),
    )
    written(tmp_path / "VOC2012/ImageSets/Main/val.txt", "a\n../../secret\n")
    dataset = open_dataset(tmp_path)
    assert [item.id for item in dataset.items] == ["JPEGImages/a.jpg"]
    assert item_boxes(dataset.items[0], SMALL) == {}
    assert [name for name, _ in dataset.skipped] == ["../../secret"]


@pytest.mark.parametrize(
    "content",
    [
        "a.png 1\n".encode("utf-16"),
        "a.png 1\n".encode("utf-16-le"),
        "ä.png 1\n".encode("latin-1"),
        b"\0" * 100,
        os.urandom(500) + b"\xff",
    ],
    ids=["UTF-16", "UTF-16 unmarked", "latin-1", "zeros", "noise"],
)
def test_lists_in_no_utf8(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path / "a.txt", content)
    refused("cannot be read as text", listed_labels, path, ["a.png"], {})
    refused("is not a table in UTF-8", read_sentences, path)
    refused("cannot be read", read_file, path)


@pytest.mark.parametrize("name", ["pipe.txt", "/dev/zero"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    path = tmp_path / name
    refused("no plain file", listed_labels, path, ["a.png"], {})
    refused("no plain file", read_file, path)
    refused("no plain file|no file of sentences", read_sentences, path)
    refused("no plain file", read_annotation, path)


@pytest.mark.parametrize("text", ["3\n7-1\n", "3\n1e999\n", "0\nn99\n"])
def test_labels_in_order_are_numbers(tmp_path: Path, text: str) -> None:
    refused(
        "line 2 of .* is not an index or a WordNet id", listed_labels, written(tmp_path / "l.txt", text), ["a", "b"], {}
    )


def test_the_devkits_table_cannot_be_a_bomb(tmp_path: Path) -> None:
    packed = _zeros(2**27)
    written(tmp_path / "meta.mat", bytes(126) + b"IM" + struct.pack("<II", 15, len(packed)) + packed)
    written(tmp_path / "val.txt", "1\n")
    said, grown = peak_of(listed_labels, tmp_path / "val.txt", ["a"], {})
    assert "unpacks to more than" in said and grown < 128


def test_sentences_that_are_none(tmp_path: Path) -> None:
    refused("more than 100000 letters", read_sentences, written(tmp_path / "a.txt", "x" * 200_000))
    refused("field larger", read_sentences, written(tmp_path / "a.tsv", "sentence\n" + "x" * 200_000))
    for label in ("²", "9" * 5000):
        refused("is no class of the model", class_indices, [label], ["a", "b"])


def test_targets_that_are_no_numbers() -> None:
    for text in ("²", "+-3"):
        refused("is a name", resolve_target, text, None, 3)
    refused("is no class", resolve_target, "9" * 5000, None, 3)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 10**5,
        "images = " + "9" * 5000,
        "images = 0x" + "f" * 9000,
        "seed = 9" + "9" * 30,
        'data = "a\\u0000b"',
        "images = " + "[1]" * 9,
        "#" * 2**21,
    ],
    ids=["deep", "digits", "hex", "seed", "zero", "wrong", "large"],
)
def test_configurations_that_are_none(tmp_path: Path, text: str) -> None:
    refused(
        "no TOML|not understood|must be|zero byte|cannot be read",
        lambda: make_config(read_file(written(tmp_path / "run.toml", text))),
    )


def test_values_too_deep_stay_text() -> None:
    for text in ("-" * 10**5 + "1", "(" * 10**4, "[" * 150 + "]" * 150):
        assert read_value(text) == text


@pytest.mark.parametrize("name", ["~nobody-of-that-name/x", "a\0b", "a" * 5000])
def test_places_that_cannot_be(name: str) -> None:
    refused("does not exist", open_dataset, name)
    refused("cannot be read|no file", read_sentences, f"{name}.tsv")
    refused("cannot be read", read_file, name)
    refused("do not exist", read_weights, name)


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The superuser may read anything, so the system's refusal is made up."""

    def deny(self: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", deny)
    refused("cannot be searched, for .*: Permission denied", open_dataset, tmp_path)


# Rows of the datasets library.


def test_rows_fetch_nothing_and_offsets_are_checked(tmp_path: Path) -> None:
    hub = pytest.importorskip("datasets", reason="the package datasets is missing: pip install datasets")
    good = {"bytes": seeds.masks()[0], "path": None}
    lost = {"bytes": None, "path": "http://localhost:9/a.png"}
    plain = hub.Dataset.from_dict({"image": [good, lost]})
    plain.save_to_disk(tmp_path / "stored")
    info = tmp_path / "stored" / "dataset_info.json"
    told = {**json.loads(info.read_text()), "features": {"image": {"_type": "Image"}}}
    info.write_text(json.dumps(told))
    passed = readable(open_dataset(f"hf:{tmp_path}/stored"), SMALL)
    assert [item.id for item, _ in passed] == ["00000000"]
    assert "http://localhost:9/a.png is not on this machine" in passed.skipped[0][1]


# What is written.


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    path = written(tmp_path / "map.npz", b"old")
    room = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, room[1]))
    try:
        refused("cannot be written .*free the disk", write_whole, path, lambda file: np.save(file, np.zeros(10**5)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["map.npz"]


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/nothing"])
@pytest.mark.parametrize(
    "words",
    [
        ["explain", "missing.png"],
        ["demo"],
        ["evaluate", "--data", "samples"],
        ["evaluate", "--data", "s.csv", "--model", "nowhere"],
        ["explain-text", "a film", "--model", "nowhere"],
    ],
    ids=lambda words: f"{words[0]} {len(words)}",
)
def test_a_place_to_write_is_looked_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "file", "kept")
    written(tmp_path / "s.csv", "sentence\na film\n")
    assert cli.main([*words, "--out", where]) == 2
    err = capsys.readouterr().err
    assert "cannot be " in err and "name a folder with --out" in err and err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "kept"


# By the thousand.


def test_damaged_files_are_read_or_refused() -> None:
    found = fuzz(400, seed=0)
    assert not [fault for one in found.values() for fault in one.faults]
    assert sum(one.tried for one in found.values()) >= 400
    assert all(one.grown < 200 * 1024 for one in found.values())


@pytest.mark.slow
def test_damaged_files_by_the_thousand() -> None:
    found = fuzz(10_000, seed=1)
    assert {name: one.faults for name, one in found.items() if one.faults} == {}
    assert all(one.grown < 300 * 1024 for one in found.values())


def test_the_fuzz_run_counts_what_it_is_for(tmp_path: Path) -> None:
    """A loader that crashes, one that takes all memory, and one whose error is no sentence are each found."""
    from tests.trust import fuzz as program

    def die(_: Path) -> None:
        os.abort()

    def grow(_: Path) -> None:
        bytearray(2**36)

    def mumble(_: Path) -> None:
        raise AbslrpError("no\nsentence")

    for read, says in ((die, "death of the process"), (grow, "MemoryError"), (mumble, "no clear sentence")):
        outcome = program._apart(program.Loader("it", read, [b"x"]), 3, 0, tmp_path)
        assert len(outcome.faults) == 3 and all(says in fault for fault in outcome.faults)
