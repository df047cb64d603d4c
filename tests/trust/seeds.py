"""Small whole files of every kind that abslrp reads: what the fuzz run damages."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, PngImagePlugin, features
from scipy.io import savemat

from abslrp.experiments.store import FILE, Row, Store

ANNOTATION = (
    "<annotation><size><width>40</width><height>20</height></size><object><name>cat</name><difficult>0</difficult>"
    "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>30</xmax><ymax>20</ymax></bndbox></object></annotation>"
)
TOML = (
    'model = "timm:resnet18"\nmethods = ["abslrp", "rough=smoothgrad:samples=3"]\nimages = 8\nseed = 1\nbatch = "auto"\n'
    '[metrics.gae]\nT = 4\nsettings = "paper"\n[metrics.road-morf]\npercentages = [20, 60]\n'
)


def images() -> list[bytes]:
    """Pictures in every format and mode that people have."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    plain, exif, text = Image.fromarray(pixels), Image.Exif(), PngImagePlugin.PngInfo()
    exif[0x0112], exif[0x010E] = 6, "a picture"
    text.add_text("note", "long " * 200, zip=True)
    palette = plain.quantize(16)
    deep = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    frames: dict[str, Any] = {"save_all": True, "append_images": [plain.rotate(90), plain]}
    wanted: list[tuple[Image.Image, str, dict[str, Any]]] = [
        (plain, "PNG", {"pnginfo": text, "icc_profile": bytes(200)}),
        (palette, "PNG", {"transparency": 3}),
        (deep, "PNG", {}),
        (plain.convert("RGBA"), "PNG", {}),
        (plain, "JPEG", {"exif": exif}),
        (plain.convert("CMYK"), "JPEG", {}),
        (plain, "JPEG", {"progressive": True}),
        (palette, "GIF", frames),
        (plain, "TIFF", {**frames, "compression": "tiff_lzw"}),
        (plain.convert("L").convert("F"), "TIFF", {"exif": exif}),
        (deep, "TIFF", {"compression": "tiff_deflate"}),
        (plain, "WEBP", frames),
        (plain, "BMP", {}),
        (plain, "PPM", {}),
        (plain, "ICO", {}),
        (plain, "PCX", {}),
        (plain, "TGA", {"compression": "tga_rle"}),
        *([(plain, "JPEG2000", {})] if features.check("jpg_2000") else []),
        *([(plain, "AVIF", {})] if features.check("avif") else []),
    ]
    return [_saved(*one) for one in wanted]


def masks() -> list[bytes]:
    """Palette pictures of classes."""
    mask = Image.fromarray(np.array([[0, 1, 255], [20, 8, 0]], dtype=np.uint8)).convert("P")
    return [_saved(mask, "PNG", {})]


def weights() -> list[bytes]:
    """Torch files, new and old, plain and nested."""
    tensors = {"fc.weight": torch.arange(40.0).reshape(4, 10), "fc.bias": torch.zeros(4, dtype=torch.float16)}
    made = []
    for content, new in ((tensors, True), ({"state_dict": tensors, "epoch": 3}, True), (tensors, False)):
        file = io.BytesIO()
        torch.save(content, file, _use_new_zipfile_serialization=new)
        made.append(file.getvalue())
    return made


def safetensors() -> list[bytes]:
    """Safetensors files, written by hand: a length, a head in JSON, and the numbers."""
    head = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    second = {"b": {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]}, "__metadata__": {"format": "pt"}}
    made = []
    for one in (head, {**head, **second}):
        text = json.dumps(one).encode()
        made.append(len(text).to_bytes(8, "little") + text + bytes(32 if "b" in one else 24))
    return made


def mats() -> list[bytes]:
    """The devkit's table, packed and not."""
    kind = [("ILSVRC2012_ID", object), ("WNID", object), ("num_children", object)]
    rows = np.array([(1, "n02119789", 0), (2, "n02100735", 0), (3, "n00001740", 2)], dtype=kind)
    made = []
    for packed in (True, False):
        file = io.BytesIO()
        savemat(file, {"synsets": rows}, do_compression=packed)
        made.append(file.getvalue())
    return made


def run(folder: Path) -> bytes:
    """A run of a few scores, curves and facts."""
    config = {
        **{
            "methods": [
                {"label": "a", "name": "abslrp", "options": {}},
                {"label": "b", "name": "random", "options": {}},
            ]
        },
        **{
            "metrics": [{"label": "gae", "name": "gae", "options": {"T": 4}}],
            "optional": [],
            "model": "tiny",
            "seed": 0,
        },
    }
    known: dict[str, Any] = {"sizes": {"": 8}, "versions": {}, "device": "cpu", "notes": [], "ids": ["i0", "i1"]}
    names = [f"i{number}" for number in range(60)]
    with Store.open(folder, create=True) as store:
        store.note(config=config, hash="x", planned={"gae": 60}, **known)
        curve = np.linspace(0, 1, 5)
        rows = [
            Row(name, label, "gae", part, number / 7)
            for number, name in enumerate(names)
            for label in "ab"
            for part in ("score", "LC", "C")
        ]
        parts = [f"{what}_{mode}" for what in ("outputs", "similarity") for mode in ("lerf", "morf")]
        store.add(rows, {(name, label, "gae", part): curve for name in names[:6] for label in "ab" for part in parts})
        store.skip({"z": "z is damaged."})
    connection = sqlite3.connect(folder / FILE)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return (folder / FILE).read_bytes()


def _saved(image: Image.Image, kind: str, settings: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()
