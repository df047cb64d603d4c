"""Words of texts: joined from their tokens, independent of company, and scored as loops by hand would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import abslrp
from abslrp.evaluate_text import class_probabilities, evaluate_text
from abslrp.inputs.torchvision_ops import ensure_torchvision
from abslrp.text import explain_text

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "good",
    "bad",
    "movie",
    "##s",
    "##ly",
    "real",
    "very",
    "plot",
    "was",
    "the",
    ",",
    ".",
    "!",
]
TEXTS = ["a really good movie", "the plots was very, very bad!", "good", "a bad movie"]
METHODS = [
    "abslrp",
    "abslrp-agree",
    "lrp-epsilon",
    "lrp-alpha1beta0",
    "attnlrp",
    "input-x-gradient",
    "integrated-gradients",
    "rollout",
    "tibav",
    "occlusion",
    "random",
    "constant",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: Any) -> Any:
    ensure_torchvision()
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: k for k, word in enumerate(WORDS)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=16, **special)


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        num_labels=3,
    )
    return BertForSequenceClassification(config).eval()


def test_sub_words_are_joined_and_special_tokens_kept_apart(model: Any, tokenizer: Any) -> None:
    a = explain_text(model, tokenizer, TEXTS[0])
    assert a.tokens == ("[CLS]", "a", "real", "##ly", "good", "movie", "[SEP]")
    assert a.words == ("a", "really", "good", "movie") and a.of_word == (None, 0, 1, 1, 2, 3, None)
    torch.testing.assert_close(a.relevance[1], a.token_relevance[2:4].sum())
    assert a.target == int(a.outputs.argmax()) and a.outputs.shape == (3,)


@pytest.mark.parametrize("method", METHODS)
def test_texts_do_not_touch_each_other(model: Any, tokenizer: Any, method: str) -> None:
    together = explain_text(model, tokenizer, TEXTS, targets=[0, 1, 2, 1], method=method)
    for k, text in enumerate(TEXTS):
        alone = explain_text(model, tokenizer, text, targets=[0, 1, 2, 1][k], method=method)
        assert alone.words == together[k].words and alone.target == [0, 1, 2, 1][k]
        scale = float(alone.relevance.abs().max())
        torch.testing.assert_close(alone.relevance, together[k].relevance, rtol=1e-3, atol=1e-4 * scale)


def test_relevance_of_tokens_is_that_of_their_embeddings(model: Any, tokenizer: Any) -> None:
    a = explain_text(model, tokenizer, TEXTS[1], targets=1, method="input-x-gradient")
    ids = torch.tensor([a.token_ids])
    x = model.get_input_embeddings()(ids).detach().requires_grad_()
    (slope,) = torch.autograd.grad(model(inputs_embeds=x).logits[0, 1], x)
    torch.testing.assert_close(a.token_relevance, (x * slope).sum(-1)[0].detach(), rtol=1e-4, atol=1e-6)


def test_occlusion_covers_words(model: Any, tokenizer: Any) -> None:
    a = explain_text(model, tokenizer, TEXTS[0], targets=0, method="occlusion")
    ids = torch.tensor([a.token_ids])
    covered = ids.clone()
    covered[0, 2:4] = tokenizer.mask_token_id
    with torch.no_grad():
        drop = model(ids).logits[0, 0] - model(covered).logits[0, 0]
    assert float(a.relevance[1]) == pytest.approx(float(drop), abs=1e-5)


def test_long_texts_are_cut_with_a_warning(model: Any, tokenizer: Any) -> None:
    with pytest.warns(UserWarning, match="has 32 tokens and the model takes 16"):
        a = explain_text(model, tokenizer, "good " * 30)
    assert len(a.tokens) == 16 and len(a.words) == 14


@pytest.mark.parametrize(
    ("texts", "words"), [("", "text 0 is ''"), (["good", 3], "text 1 is 3"), ([], "texts is empty")]
)
def test_bad_texts_get_one_sentence(model: Any, tokenizer: Any, texts: Any, words: str) -> None:
    with pytest.raises(abslrp.AbslrpError, match=words):
        explain_text(model, tokenizer, texts)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "gradcam"}, "makes maps of images"),
        ({"method": "abslrp", "speed": 1}, "'speed' is unknown"),
        ({"targets": 7}, "out of range"),
    ],
)
def test_bad_settings_get_one_sentence(model: Any, tokenizer: Any, settings: Any, words: str) -> None:
    with pytest.raises(abslrp.AbslrpError, match=words):
        explain_text(model, tokenizer, TEXTS, **settings)


def test_scores_equal_loops_by_hand(model: Any, tokenizer: Any) -> None:
    found = evaluate_text(model, tokenizer, TEXTS, "abslrp", ["text-abpc", "text-aopc"])
    for k, text in enumerate(TEXTS):
        a = explain_text(model, tokenizer, text)
        curves = {}
        for largest in (True, False):
            turn = sorted(
                range(len(a.words)), key=lambda w: (-float(a.relevance[w]) if largest else float(a.relevance[w]), w)
            )
            curve = []
            for count in range(len(a.words) + 1):
                ids = [t for t, w in zip(a.token_ids, a.of_word, strict=True) if w is None or w not in turn[:count]]
                with torch.no_grad():
                    curve.append(float(model(torch.tensor([ids])).logits.double().softmax(1)[0, a.target]))
            curves[largest] = curve
        drop = sum(curves[True][0] - value for value in curves[True]) / len(curves[True])
        gap = sum(low - high for low, high in zip(curves[False], curves[True], strict=True)) / len(curves[True])
        assert float(found["text-aopc"]["abslrp"].scores[k]) == pytest.approx(drop, abs=1e-6)
        assert float(found["text-abpc"]["abslrp"].scores[k]) == pytest.approx(gap, abs=1e-6)


def test_consistency_of_a_constant_is_nothing(model: Any, tokenizer: Any) -> None:
    found = evaluate_text(model, tokenizer, TEXTS[:2], ["constant", "input-x-gradient"], "text-consistency")[
        "text-consistency"
    ]
    assert all(float(s) <= 0.5 for s in found["constant"].scores) and (found["constant"].parts["LC_R"] <= 0).all()
    for score in found.values():
        assert score.scores.isfinite().all() and (score.scores >= 0).all() and (score.scores <= 1).all()


def test_probabilities_do_not_depend_on_company(model: Any) -> None:
    lists = [[2, 5, 6, 3], [2, 6, 3], [2, 7, 8, 3]]
    together = class_probabilities(model, lists)
    alone = torch.cat([class_probabilities(model, [one]) for one in lists])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_sentiment_of_a_trained_network(shared: Path) -> None:
    """LRP-ε knows which words count; a random map and input × gradient do not."""
    ensure_torchvision()
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = shared / "weights" / "minilm-sentiment"
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    lines = (shared / "data" / "sst2" / "dev.tsv").read_text(encoding="utf-8").splitlines()[:200:10]
    texts = [line.split("\t")[0] for line in lines]
    found = evaluate_text(model, tokenizer, texts, ["lrp-epsilon", "input-x-gradient", "random"], "text-abpc")[
        "text-abpc"
    ]
    assert found["lrp-epsilon"].mean > 0.3 > max(found["random"].mean, found["input-x-gradient"].mean)
