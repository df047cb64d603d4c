"""Words of texts: joined from their tokens, independent of company, and scored as loops by hand would."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import abslrp
from abslrp import evaluate_text, explain_text
from abslrp.evaluate_text import class_probabilities
from abslrp.inputs.sentences import load_text_classifier, read_sentences

from .conftest import KINDS, make

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["a really good movie", "the plots was very, very bad!", "good", "a bad movie"]
METHODS = [
    "lrp-text",
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
]
FOR_IMAGES = {
    "gradcam", "gradcam++", "hirescam", "layercam", "eigencam", "guided-gradcam", "rise", "guided-backprop", "deconvolution", "deeplift",
}  # fmt: skip


def test_sub_words_are_joined_and_special_tokens_kept_apart(model: Any, tokenizer: Any) -> None:
    a = explain_text(model, tokenizer, TEXTS[0])
    assert a.tokens == ("[CLS]", "a", "real", "##ly", "good", "movie", "[SEP]")
    assert a.words == ("a", "really", "good", "movie") and a.of_word == (None, 0, 1, 1, 2, 3, None)
    torch.testing.assert_close(a.relevance[1], a.token_relevance[2:4].sum())
    assert a.target == int(a.outputs.argmax()) and a.outputs.shape == (3,)


@pytest.mark.parametrize("method", sorted(set(abslrp.methods()) - FOR_IMAGES))
def test_texts_do_not_touch_each_other(model: Any, tokenizer: Any, method: str) -> None:
    together = explain_text(model, tokenizer, TEXTS, targets=[0, 1, 2, 1], method=method)
    for k, text in enumerate(TEXTS):
        alone = explain_text(model, tokenizer, text, targets=[0, 1, 2, 1][k], method=method)
        assert alone.words == together[k].words and alone.target == [0, 1, 2, 1][k]
        scale = float(alone.relevance.abs().max())
        torch.testing.assert_close(alone.relevance, together[k].relevance, rtol=1e-3, atol=1e-4 * scale)


def _trained(transformers: Any, kind: str) -> Any:
    """A tokenizer as GPT-2 and RoBERTa have it (bytes) or as DeBERTa has it (pieces with a mark for the blank)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    texts = ["a good film", "a bad plot", "good plots", "so good"] * 3
    if kind == "bytes":
        made, trainer = (
            Tokenizer(models.BPE()),
            trainers.BpeTrainer(
                vocab_size=290,
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                special_tokens=["<s>"],
                show_progress=False,
            ),
        )
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    else:
        made, trainer = (
            Tokenizer(models.Unigram()),
            trainers.UnigramTrainer(
                vocab_size=40, unk_token="<unk>", special_tokens=["<s>", "<unk>"], show_progress=False
            ),
        )
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", pad_token="<s>")


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_words_of_other_tokenizers(transformers: Any, kind: str) -> None:
    """Blanks that tokens carry belong to no word; bytes of one letter and pieces of one word are joined."""
    pieces = _trained(transformers, kind)
    net = make(transformers, "GPT2", len(pieces))
    text = "  so  goodly né 😀 plot"
    a = explain_text(net, pieces, text, method="input-x-gradient")
    assert a.words == ("so", "goodly", "né", "😀", "plot")
    assert tuple(text[start:end] for start, end in a.spans) == a.words
    assert len(a.tokens) > len(a.words)
    for number, value in enumerate(a.relevance):
        own = [v for v, word in zip(a.token_relevance, a.of_word, strict=True) if word == number]
        torch.testing.assert_close(value, torch.stack(own).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_architectures(transformers: Any, tokenizer: Any, kind: str) -> None:
    """Every method on every kind: finite, for the model's own outputs, without touching the model."""
    net = make(transformers, kind, len(tokenizer))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    texts, quiet = ["a really good movie", "a bad movie"], []
    for method in METHODS:
        for text, a in zip(texts, explain_text(net, tokenizer, texts, method=method), strict=True):
            with torch.no_grad():
                own = net(torch.tensor([tokenizer(text)["input_ids"]])).logits[0]
            torch.testing.assert_close(a.outputs, own, rtol=1e-4, atol=1e-5)
            assert a.relevance.isfinite().all() and a.target == int(own.argmax())
            quiet += [] if a.relevance.any() else [method]
    assert not quiet
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_decoders_are_read_at_their_last_token(transformers: Any, tokenizer: Any) -> None:
    net = make(transformers, "GPT2", len(tokenizer))
    net.set_attn_implementation("eager")
    a = explain_text(net, tokenizer, "a good movie", method="rollout")
    with torch.no_grad():
        layers = net(torch.tensor([a.token_ids]), output_attentions=True).attentions
    matrix = torch.eye(len(a.tokens))
    for layer in layers:
        matrix = (torch.eye(len(a.tokens)) + layer[0].mean(0)) @ matrix
    torch.testing.assert_close(a.token_relevance, matrix[-1], rtol=1e-4, atol=1e-5)


def test_padding_changes_nothing(model: Any, tokenizer: Any) -> None:
    """What the model says of a padded batch under its mask is what it says here, and there is no token for the padding."""
    padded = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        own = model(input_ids=padded["input_ids"], attention_mask=padded["attention_mask"]).logits
    found = explain_text(model, tokenizer, TEXTS)
    for row, a in enumerate(found):
        torch.testing.assert_close(a.outputs, own[row], rtol=1e-4, atol=1e-5)
        assert tokenizer.pad_token not in a.tokens and len(a.tokens) == int(padded["attention_mask"][row].sum())
    lists = [list(a.token_ids) for a in found]
    torch.testing.assert_close(class_probabilities(model, lists), own.double().softmax(1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [1, 3])
def test_batches_change_nothing(model: Any, tokenizer: Any, size: int) -> None:
    texts = ["a bad movie", "a good movie", "the good plot", "the bad plot", "very very good"]
    whole = explain_text(model, tokenizer, texts)
    for a, b in zip(whole, explain_text(model, tokenizer, texts, batch_size=size), strict=True):
        torch.testing.assert_close(a.relevance, b.relevance, rtol=1e-3, atol=1e-5 * float(a.relevance.abs().max()))
    metrics = ["text-abpc", "text-aopc", "text-consistency"]
    one, other = (evaluate_text(model, tokenizer, texts, metrics=metrics, batch_size=n) for n in (8, size))
    for metric in metrics:
        torch.testing.assert_close(
            one[metric]["lrp-text"].scores, other[metric]["lrp-text"].scores, rtol=1e-3, atol=1e-4
        )


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
        *(({"method": name}, f"^{re.escape(name)} .*choose another method for text") for name in sorted(FOR_IMAGES)),
        ({"method": "lrp-txt"}, "did you mean lrp-text"),
        ({"batch_size": 0}, "batch_size=0 must be"),
        ({"method": "abslrp", "speed": 1}, "'speed' is unknown"),
        ({"targets": 7}, "out of range"),
    ],
)
def test_bad_settings_get_one_sentence(model: Any, tokenizer: Any, settings: Any, words: str) -> None:
    with pytest.raises(abslrp.AbslrpError, match=words):
        explain_text(model, tokenizer, TEXTS, **settings)


def test_scores_equal_loops_by_hand(model: Any, tokenizer: Any) -> None:
    found = evaluate_text(model, tokenizer, TEXTS, "abslrp", ["text-abpc", "text-aopc"])  # TEXTS: 1 to 8 words
    for k, text in enumerate(TEXTS):
        a = explain_text(model, tokenizer, text, method="abslrp")
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


def test_consistency_equals_loops_by_hand(model: Any, tokenizer: Any) -> None:
    """LC of input × gradient, written out from the paper's equations 13 to 16 in float64."""
    text, T = "a really bad movie , the plot was bad", 3
    found = evaluate_text(model, tokenizer, [text], "input-x-gradient", "text-consistency", T=T)["text-consistency"]
    a = explain_text(model, tokenizer, text, method="input-x-gradient")
    double = copy.deepcopy(model).double()
    whole = double.get_input_embeddings()(torch.tensor([a.token_ids])).detach()
    cover = double.get_input_embeddings()(torch.tensor([tokenizer.mask_token_id])).detach()[0]
    number = len(a.words)

    def look(gone: set[int]) -> tuple[list[float], list[float], float]:
        x = whole.clone()
        for place, word in enumerate(a.of_word):
            if word in gone:
                x[0, place] = cover
        x.requires_grad_()
        output = double(inputs_embeds=x).logits[0, a.target]
        product = (x * torch.autograd.grad(output, x)[0])[0].detach()
        impact, relevance = [0.0] * number, [0.0] * number
        for place, word in enumerate(a.of_word):
            if word is not None:
                impact[word] += 0.0 if word in gone else float(product[place].abs().sum())
                relevance[word] += float(product[place].sum())
        top = max([*relevance, 0.0])
        return impact, [max(r, 0.0) / top if top else 0.0 for r in relevance], float(output.detach())

    first_impact, first_map, first_output = look(set())
    gaps, shares = {}, {}
    for sign in (1, -1):
        gone: set[int] = set()
        impact, total = first_impact, [0.0] * number
        outputs, alike = [first_output / abs(first_output)], [1.0]
        for t in range(1, T + 1):
            total = [s + i / sum(impact) for s, i in zip(total, impact, strict=True)]
            turn = sorted((w for w in range(number) if w not in gone), key=lambda w: (-sign * impact[w], w))
            gone |= set(turn[: round(t * number / T) - len(gone)])
            impact, now, output = look(gone)
            outputs.append(output / abs(first_output))
            size = sum(first_map) + sum(now)
            alike.append(1 - sum(abs(p - q) for p, q in zip(first_map, now, strict=True)) / size if size else 1.0)
        gaps[sign], shares[sign] = (outputs, alike), total
    d_output, d_map = ([low - high for low, high in zip(gaps[-1][k], gaps[1][k], strict=True)] for k in (0, 1))
    apart = 2 * sum(abs(p - q) for p, q in zip(d_output, d_map, strict=True))
    robust = 1 - apart / (sum(map(abs, d_output)) + sum(map(abs, d_map)))
    signs = [(low > high) - (low < high) for low, high in zip(shares[-1], shares[1], strict=True)]
    faithful = sum(r * s for r, s in zip(first_map, signs, strict=True)) / sum(first_map)
    score = found["input-x-gradient"]
    assert float(score.parts["LC_R"][0]) == pytest.approx(robust, abs=1e-4)
    assert float(score.parts["LC_F"][0]) == pytest.approx(faithful, abs=1e-4)
    assert float(score.scores[0]) == pytest.approx(max(0.0, (robust + faithful) / 2), abs=1e-4)


def test_the_default_equals_its_formula_in_float64() -> None:
    """LRP-ε from the logit on, with one factor an operation that keeps Σ|R|: two layers by loops."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double().eval()
    x, eps = torch.randn(1, 4, dtype=torch.float64), abslrp.methods()["lrp-text"].options["eps"]
    hidden = net[0](x)
    with torch.no_grad():
        outputs = net(x)[0].tolist()
    for target in range(3):
        R = [value if j == target else 0.0 for j, value in enumerate(outputs)]
        for layer, given in ((net[2], hidden.tanh()), (net[0], x)):
            W, h, v = layer.weight.tolist(), layer(given)[0].tolist(), given[0].tolist()
            ratio = [
                [W[j][i] * v[i] / (h[j] + (eps if h[j] >= 0 else -eps)) for i in range(len(v))] for j in range(len(h))
            ]
            handed = sum(abs(R[j]) * abs(sum(ratio[j])) for j in range(len(h)))
            k = sum(map(abs, R)) / handed if abslrp.methods()["lrp-text"].options["conserve"] == "joint" else 1.0
            R = [k * sum(ratio[j][i] * R[j] for j in range(len(h))) for i in range(len(v))]
        a = abslrp.explain(net, x, targets=target, method="lrp-text")
        torch.testing.assert_close(a.maps[0].double(), torch.tensor(R, dtype=torch.float64), rtol=1e-4, atol=1e-6)


def test_the_default_knows_for_from_against_whatever_the_logit(model: Any, tokenizer: Any) -> None:
    """Of two classes that are each other's opposite, what speaks for one speaks against the other; the plain ε rule, which divides by
    the logit, tells them apart by size only."""
    net = copy.deepcopy(model)
    with torch.no_grad():
        net.classifier.weight[1] = -net.classifier.weight[0]
        net.classifier.bias[:2] = 0.0
    for_one, for_other = (explain_text(net, tokenizer, TEXTS[0], targets=t).relevance for t in (0, 1))
    torch.testing.assert_close(for_one, -for_other, rtol=1e-3, atol=1e-5)
    plain = [explain_text(net, tokenizer, TEXTS[0], targets=t, method="lrp-epsilon").relevance for t in (0, 1)]
    torch.testing.assert_close(plain[0], plain[1], rtol=1e-3, atol=1e-4)


def test_import_stays_light() -> None:
    code = (
        "import sys, abslrp; abslrp.explain_text; assert not {'transformers', 'scipy', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("wrong", ["BertForMaskedLM", "BertModel"])
def test_models_without_classes_get_one_sentence(transformers: Any, model: Any, tokenizer: Any, wrong: str) -> None:
    net = getattr(transformers, wrong)(model.config).eval()
    with pytest.raises(abslrp.AbslrpError, match=f"^{wrong} gives no class scores for whole texts"):
        explain_text(net, tokenizer, "good")


def test_one_output_is_no_choice_of_classes(transformers: Any, tokenizer: Any) -> None:
    net = make(transformers, "Bert", len(tokenizer), classes=1)
    assert explain_text(net, tokenizer, "good", method="input-x-gradient").outputs.shape == (1,)
    with pytest.raises(abslrp.AbslrpError, match="has one output, whose probability is always 1"):
        evaluate_text(net, tokenizer, ["good"], "random")


def test_functions_are_no_methods_for_texts(model: Any, tokenizer: Any) -> None:
    own: Any = {"mine": lambda net, x, t: x}
    with pytest.raises(abslrp.AbslrpError, match="method 'mine' is a function, which texts do not take"):
        evaluate_text(model, tokenizer, ["good"], own)


def _real(shared: Path, every: int) -> tuple[Any, list[str]]:
    sentences = read_sentences(shared / "data" / "sst2" / "dev.tsv")
    return load_text_classifier(str(shared / "weights" / "minilm-sentiment")), list(sentences.texts[1::every])


def test_words_of_a_trained_network(shared: Path) -> None:
    """The word a person would name is the strongest, red for its class and blue against the other."""
    net, _ = _real(shared, 100)
    for text, word, target in (("a charming film", "charming", 1), ("the script was embarrassing", "embarrassing", 0)):
        mine, other = (explain_text(net.model, net.tokenizer, text, targets=t) for t in (target, 1 - target))
        assert mine.words[int(mine.relevance.argmax())] == word
        assert other.words[int(other.relevance.argmin())] == word


def test_ranks_on_a_trained_network(shared: Path) -> None:
    """The default knows which words count; chance and input × gradient do not."""
    net, texts = _real(shared, 60)
    found = evaluate_text(net.model, net.tokenizer, texts, ["lrp-text", "input-x-gradient", "random"])["text-abpc"]
    assert found["lrp-text"].mean > 0.35 > 0.2 > max(found["random"].mean, found["input-x-gradient"].mean)


@pytest.mark.slow
def test_the_default_beats_others_on_a_trained_network(shared: Path) -> None:
    net, texts = _real(shared, 8)
    names = ["lrp-text", "integrated-gradients", "rollout", "abslrp", "input-x-gradient", "random"]
    found = evaluate_text(net.model, net.tokenizer, texts, names)["text-abpc"]
    assert all(found["lrp-text"].mean > found[name].mean + 0.03 for name in names[1:])
