"""What results show of themselves in a notebook, and what they write."""

from __future__ import annotations

import io
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import abslrp
from abslrp.types import AbslrpError, Score, Scores


@pytest.fixture(scope="module")
def batch() -> abslrp.Attribution:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 14 * 14, 3)
    ).eval()
    return abslrp.explain(model, torch.randn(3, 3, 16, 16))


def opened(data: bytes | None) -> np.ndarray:
    assert data is not None
    return np.asarray(Image.open(io.BytesIO(data)))


def test_a_map_shows_itself_over_its_image(batch: abslrp.Attribution) -> None:
    one = batch[1]
    assert one.inputs is not None and one.inputs.shape == (1, 3, 16, 16)
    shown = opened(one._repr_png_())
    assert np.array_equal(shown, one.overlay()[0]) and shown.std() > 5
    assert not np.array_equal(one.overlay(), one.overlay(alpha=0.2))


def test_a_batch_is_a_grid(batch: abslrp.Attribution, tmp_path: Path) -> None:
    shown = opened(batch._repr_png_())
    assert shown.shape[1] > 3 * 112
    batch.save(tmp_path / "grid.png")
    batch[0].save(tmp_path / "one.png")
    assert np.asarray(Image.open(tmp_path / "grid.png")).shape[1] > 3 * 112
    assert np.array_equal(np.asarray(Image.open(tmp_path / "one.png")), batch.heatmaps()[0])


def test_images_of_ones_own_lie_under_maps(batch: abslrp.Attribution) -> None:
    photos = [Image.new("RGB", (40, 30), colour) for colour in ("black", "white", "grey")]
    assert batch.overlay([np.asarray(one) for one in photos]).shape == (3, 30, 40, 3)
    assert batch[0].overlay(photos[0]).mean() < batch[0].overlay(photos[1]).mean()
    with pytest.raises(AbslrpError, match="2 images for 3 maps"):
        batch.overlay(photos[:2])
    with pytest.raises(AbslrpError, match="does not know its images"):
        abslrp.Attribution(batch.maps, batch.targets, batch.outputs, "abslrp").overlay()


def test_maps_that_are_no_pictures_are_left_to_their_text() -> None:
    model = torch.nn.Linear(4, 2).eval()
    a = abslrp.explain(model, torch.randn(2, 4))
    assert a._repr_png_() is None
    with pytest.raises(AbslrpError, match="are no pictures"):
        a.show()


def test_show_uses_the_notebook_where_there_is_one(batch: abslrp.Attribution, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: object()  # type: ignore[attr-defined]
    display.display = shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    batch[0].show()
    assert np.array_equal(np.asarray(shown[0]), batch[0].overlay()[0])


def test_scores_show_themselves_as_a_table() -> None:
    def score(method: str, values: list[float], better: bool = True) -> Score:
        return Score("gae", method, torch.tensor(values), ("a", "b"), better, {}, ((), ()))

    said = Scores(
        {
            "gae": {"<i>": score("<i>", [0.1, 0.3]), "b": score("b", [0.5, 0.7])},
            "road": {"b": score("b", [0.2, 0.2], False)},
        }
    )._repr_html_()
    assert (
        "<i>" not in said
        and "<td>0.200</td>" in said
        and "<strong>0.600</strong>" in said
        and "<td>—</td>" in said
        and "road ↓" in said
    )


def test_words_show_themselves() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from abslrp.inputs.sentences import tiny_classifier

    assert "<span style=" in abslrp.explain_text(*tiny_classifier(), "a good <b> movie")._repr_html_()
