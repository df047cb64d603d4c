"""Sentences from files, classifiers from folders: what is taken, and the one sentence for what is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from abslrp.inputs.sentences import class_indices, load_text_classifier, read_sentences
from abslrp.types import AbslrpError


@pytest.mark.parametrize(
    ("name", "content", "texts", "labels"),
    [
        ("a.tsv", "sentence\tlabel\na film\t1\n\n\"odd\tnames\n", ('a film', '"odd'), ("1", "names")),
        ("a.tsv", "a film\t1\na plot\t0\n", ("a film", "a plot"), ("1", "0")),
        ("a.tsv", "\ufeffTEXT\na film, no label\n", ("a film, no label",), None),
        ("a.csv", 'id,Label,Sentence\n7,positive,"a ""fine"" film, really"\n', ('a "fine" film, really',), ("positive",)),
        ("a.csv", "text\r\na film\r\n", ("a film",), None),
        ("a.txt", "text\na film\t1\n\n", ("text", "a film\t1".strip()), None),
        ("a.CSV", "a film\na plot\n", ("a film", "a plot"), None),
    ],
)  # fmt: skip
def test_files_that_are_read(tmp_path: Path, name: str, content: str, texts: Any, labels: Any) -> None:
    file = tmp_path / name
    file.write_bytes(content.encode("utf-8"))
    found = read_sentences(file)
    assert (found.texts, found.labels, len(found)) == (texts, labels, len(texts))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.tsv", b"", "holds no sentence"),
        ("a.tsv", b"sentence\tlabel\n", "holds a heading and no sentence"),
        ("a.tsv", b"review\tscore\na film\t1\n", r"begins with 'review, score': name its columns"),
        ("a.csv", b"a film, really\na plot\n", "name its columns in the first line"),
        ("a.csv", b"text,label\n,1\n", "line 2 of .* has no sentence"),
        ("a.csv", b"text,label\na film\n", "line 2 of .* has 1 columns instead of 2"),
        ("a.csv", b"text\n\xff\xfe\n", "is not a table in UTF-8"),
        ("a.csv", b'text\n"open\n', "is not a table in UTF-8"),
        ("a.json", b"[]", "give a .tsv, a .csv or a .txt"),
        ("none.tsv", None, "cannot be read"),
    ],
)
def test_files_that_get_one_sentence(tmp_path: Path, name: str, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(AbslrpError, match=says) as caught:
        read_sentences(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_labels_that_are_no_class() -> None:
    assert class_indices(["0", "POSITIVE"], ["negative", "positive"]) == [0, 1]
    for wrong in ("2", "great", "-1"):
        with pytest.raises(AbslrpError, match=f"label '{wrong}' is no class of the model: write one of negative"):
            class_indices([wrong], ["negative", "positive"])


def test_a_folder_is_loaded_as_it_was_saved(folder: Path, model: Any, tokenizer: Any) -> None:
    for spec in (str(folder), f"hf:{folder}"):
        loaded = load_text_classifier(spec)
        assert loaded.class_names == ["negative", "positive"] and not loaded.model.training
        assert loaded.tokenizer("a really good movie")["input_ids"] == tokenizer("a really good movie")["input_ids"]
        assert next(loaded.model.parameters()).dtype == torch.float32


def copied(folder: Path, place: Path) -> Path:
    shutil.copytree(folder, place)
    return place


def test_folders_that_get_one_sentence(
    folder: Path, transformers: Any, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    bare = copied(folder, tmp_path / "bare")
    for file in bare.glob("*token*"):
        file.unlink()
    headless = tmp_path / "headless"
    transformers.BertModel(model.config).save_pretrained(headless)
    tokenizer.save_pretrained(headless)
    picture = tmp_path / "picture"
    transformers.ViTConfig().save_pretrained(picture)
    broken = copied(folder, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing")
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "config.json").write_text(json.dumps({"model_type": "no-such-thing"}))
    empty = tmp_path / "empty"
    empty.mkdir()
    for place, says in (
        (bare, "has no tokenizer: put its tokenizer.json beside its config.json"),
        (headless, "so it is not a trained classifier"),
        (picture, "is a vit model, which is no text classifier"),
        (broken, "the model in .* cannot be read"),
        (strange, "the configuration in .* cannot be read"),
        (empty, "holds no config.json"),
        (tmp_path / "nowhere", "is no folder"),
    ):
        with pytest.raises(AbslrpError, match=says) as caught:
            load_text_classifier(str(place))
        assert "\n" not in str(caught.value)


def test_a_name_that_cannot_be_fetched_gets_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(AbslrpError, match="is no folder here, and its configuration could not be fetched") as caught:
        load_text_classifier("nobody/no-such-classifier")
    assert "\n" not in str(caught.value)
