"""Layer types, from modules and from names alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dynaquant_core.quantize.layers import LAYER_TYPES, layer_type, layer_types


class Conv1D(nn.Module):
    """Shaped as Hugging Face's: a linear layer with its weight transposed."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf, self.weight, self.bias = nf, nn.Parameter(torch.zeros(nx, nf)), nn.Parameter(torch.zeros(nf))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.ModuleDict({"c_attn": Conv1D(12, 4), "c_proj": Conv1D(4, 4)})
        self.cross = nn.MultiheadAttention(4, 2)
        self.mlp = Conv1D(16, 4)
        self.norm = nn.LayerNorm(4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.stem, self.block = nn.Embedding(9, 4), nn.Conv2d(3, 4, 3), Block()
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.wte.weight
        self.classifier = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.zeros(2, 3))


def test_modules_decide():
    types = layer_types(Net())
    expected = {
        "wte.weight": "embedding",
        "head.weight": "embedding",  # tied
        "stem.weight": "convolution",
        "stem.bias": "other",
        "block.attn.c_attn.weight": "attention",
        "block.attn.c_proj.weight": "attention",
        "block.cross.in_proj_weight": "attention",
        "block.cross.out_proj.weight": "attention",
        "block.mlp.weight": "linear",
        "block.norm.weight": "other",
        "classifier.weight": "linear",
        "scale": "embedding",  # of a module nobody knows, and not called a weight
    }
    assert {name: types[name] for name in expected} == expected
    assert set(types) == {name for name, _ in Net().named_parameters(remove_duplicate=False)}
    assert set(types.values()) <= set(LAYER_TYPES)


def test_several_models_are_prefixed():
    types = layer_types({"student": nn.Linear(2, 2), "teacher": nn.Conv1d(2, 2, 1)})
    assert types == {
        "student.weight": "linear",
        "student.bias": "other",
        "teacher.weight": "convolution",
        "teacher.bias": "other",
    }


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("transformer.wte.weight", (50257, 768), "embedding"),
        ("transformer.wpe.weight", (1024, 768), "embedding"),
        ("bert.embeddings.word_embeddings.weight", (30522, 768), "embedding"),
        ("model.embed_tokens.weight", (32000, 4096), "embedding"),
        ("pos_embed", (1, 197, 768), "embedding"),
        ("patch_embed.proj.weight", (768, 3, 16, 16), "convolution"),
        ("h.0.attn.c_attn.weight", (768, 2304), "attention"),
        ("model.layers.0.self_attn.q_proj.weight", (64, 64), "attention"),
        ("encoder.layer.3.attention.self.query.weight", (768, 768), "attention"),
        ("layers.0.query_key_value.weight", (96, 32), "attention"),
        ("h.0.mlp.c_fc.weight", (768, 3072), "linear"),
        ("lm_head.weight", (50257, 768), "linear"),
        ("layer1.0.conv1.weight", (64, 64, 3, 3), "convolution"),
        ("tcn.weight", (8, 8, 3), "convolution"),
        ("norm.weight", (768,), "other"),
        ("step", (), "other"),
        ("member.weight", (8, 8), "linear"),
        ("mlp.experts.gate_up_proj", (8, 256, 512), "linear"),
    ],
)
def test_names_and_ranks_decide_without_a_model(name, shape, expected):
    assert layer_type(name, shape) == expected
