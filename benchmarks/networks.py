"""The networks that speed is measured on, with random weights, and one plain gradient, the unit of all figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from abslrp.inputs.torchvision_ops import ensure_torchvision


@dataclass(frozen=True)
class Task:
    """A model with inputs; ``forward`` where the model takes something else than they are."""

    model: nn.Module
    inputs: Tensor
    forward: Callable[[Tensor], Any] | None = None

    def to(self, where: Any) -> Task:
        return replace(self, model=self.model.to(where), inputs=self.inputs.to(where))

    def outputs(self, x: Tensor) -> Tensor:
        found = self.model(x) if self.forward is None else self.forward(x)
        assert isinstance(found, Tensor)
        return found


def gradient(task: Task) -> Tensor:
    leaf = task.inputs.detach().clone().requires_grad_()
    (g,) = torch.autograd.grad(task.outputs(leaf)[:, 0].sum(), leaf)
    return g


def _image(model: nn.Module, batch: int) -> Task:
    return Task(model.eval().requires_grad_(False), torch.randn(batch, 3, 224, 224))


def _torchvision(name: str) -> Callable[[int], Task]:
    return lambda batch: _image(getattr(ensure_torchvision().models, name)(), batch)


def vit_base(batch: int) -> Task:
    ensure_torchvision()
    import timm

    return _image(timm.create_model("vit_base_patch16_224"), batch)


def bert_base(batch: int) -> Task:
    """A classifier of sentences of 128 tokens; the input is their embeddings."""
    ensure_torchvision()
    import transformers

    model = transformers.BertForSequenceClassification(transformers.BertConfig()).eval().requires_grad_(False)
    return Task(model, torch.randn(batch, 128, 768), lambda x: model(inputs_embeds=x).logits)


NETWORKS: dict[str, Callable[[int], Task]] = {
    "VGG16": _torchvision("vgg16"),
    "ResNet50": _torchvision("resnet50"),
    "ViT-Base/16": vit_base,
    "BERT-base": bert_base,
}
