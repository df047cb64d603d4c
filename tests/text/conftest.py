"""A tokenizer of a dozen words and tiny networks with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from abslrp.inputs.torchvision_ops import ensure_torchvision

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0}
KINDS = ("Bert", "DistilBert", "Roberta", "Deberta", "DebertaV2", "Electra", "GPT2", "GPT2 without padding", "Llama")


@pytest.fixture(scope="session")
def transformers() -> Any:
    ensure_torchvision()
    return pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture(scope="session")
def tokenizer(transformers: Any) -> Any:
    from abslrp.inputs.sentences import tiny_classifier

    return tiny_classifier()[1]


def make(transformers: Any, kind: str, words: int, classes: int = 3) -> Any:
    """A sequence classifier of this kind."""
    family = kind.split()[0]
    given: dict[str, Any] = {"vocab_size": words, "num_labels": classes, "max_position_embeddings": 20}
    given |= {"pad_token_id": None if "without" in kind else 0}
    given |= {
        "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
        "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 2, "eos_token_id": 3},
        "Llama": {**SIZES, "bos_token_id": 2, "eos_token_id": 3},
        "Electra": {**SIZES, "embedding_size": 12},
        "Deberta": {**SIZES, **RELATIVE},
        "DebertaV2": {**SIZES, **RELATIVE, "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    }.get(family, SIZES)
    config = getattr(transformers, f"{family}Config")(**given)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForSequenceClassification")(config).eval()
    for name, weights in model.named_parameters():
        # Fresh networks hardly depend on their words.
        if weights.ndim > 1 and "embed" not in name and "wte" not in name and "wpe" not in name:
            torch.nn.init.normal_(weights, std=0.3)
    return model


@pytest.fixture(scope="session")
def model(transformers: Any, tokenizer: Any) -> Any:
    return make(transformers, "Bert", len(tokenizer))


@pytest.fixture(scope="session")
def folder(transformers: Any, tokenizer: Any, tmp_path_factory: Any) -> Path:
    """A classifier with its tokenizer as save_pretrained writes them."""
    from abslrp.inputs.sentences import tiny_classifier

    place: Path = tmp_path_factory.mktemp("classifier")
    tiny_classifier()[0].save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place
