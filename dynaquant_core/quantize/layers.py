"""Layer types: the groups of tensors that share one pruning threshold (paper sec. 4.2).

Types are "convolution", "attention", "linear", "embedding" and "other".  With the model at hand the modules
decide; without it, the tensor's name and rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from torch import nn

__all__ = ["LAYER_TYPES", "layer_type", "layer_types"]

LAYER_TYPES = ("convolution", "attention", "linear", "embedding", "other")

#: Parts of dotted names (split at dots and underscores) that mark a type.
EMBEDDING = re.compile(r"^(?:embed(?:ding|dings|der|s)?|emb|wte|wpe|tok_?emb|pos_?emb)$")
ATTENTION = re.compile(r"^(?:attn|attention|selfattention|mha|qkv|qkvo?|crossattention)\d*$")
#: Names that custom modules give to the matrices of a layer (the last two parts); any other is a table's.
LAYER = re.compile(
    r"(?:^|\.)(?:\w*(?:weight|kernel|filter|proj|lora|linear|dense|conv|expert)\w*|w[a-z0-9]{0,4}|w_\w+|fc\w*"
    r"|qkv|(?:up|down|gate)(?:_\w+)?|(?:lm_)?head)(?:\.[^.]+)?$"
)
PROJECTION = re.compile(r"(?:^|[._])(?:[qkvo]_proj|in_proj|out_proj|to_[qkv]|query_key_value)(?:[._]|$)")

#: Of convolutions over sequences.
LONGEST_KERNEL = 128

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def layer_type(name: str, shape: tuple[int, ...]) -> str:
    """The type of a tensor known by name and shape only.

    By name first (embed, wte, wpe; attn, attention, q_proj ...), then by rank: 3-D and up convolution, 2-D
    linear.  A 4-D tensor is a convolution whatever its name: patch embeddings are convolutions.  Of three
    dimensions, the last tells a kernel, which is short, from a stack of matrices, such as experts, one each.

    Args:
        name: dotted name of the tensor.
        shape: its shape.

    Returns:
        One of `LAYER_TYPES`.

    Example:
        >>> layer_type("h.0.attn.c_attn.weight", (768, 2304)), layer_type("conv1.weight", (64, 3, 7, 7))
        ('attention', 'convolution')
    """
    if len(shape) < 2:
        return "other"
    if len(shape) > 3:
        return "convolution"
    words = re.split(r"[._]", name.lower())
    if any(EMBEDDING.match(word) for word in words):
        return "embedding"
    if on_attention_path(name):
        return "attention"
    return "convolution" if len(shape) == 3 and shape[-1] <= LONGEST_KERNEL else "linear"


def layer_types(model: nn.Module | Mapping[str, nn.Module]) -> dict[str, str]:
    """The type of every parameter of a model, from its modules.

    A tensor that several modules share (a tied head) is an embedding as soon as one of them is; attention is
    a linear layer on an attention path; Hugging Face's Conv1D is a linear layer.

    Args:
        model: a module, or several by name (names are then prefixed with "NAME.").

    Returns:
        Type by dotted parameter name, every name of a shared parameter included.

    Example:
        >>> model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False))
        >>> model[1].weight = model[0].weight
        >>> layer_types(model)
        {'0.weight': 'embedding', '1.weight': 'embedding'}
    """
    types: dict[str, str] = {}
    embeddings: set[int] = set()
    owners: dict[str, int] = {}
    for name, module, parameter in parameters(model):
        found = parameter_type(name, module, parameter)
        types[name], owners[name] = found, id(parameter)
        if found == "embedding":
            embeddings.add(id(parameter))
    return {name: "embedding" if owners[name] in embeddings else kind for name, kind in types.items()}


def parameters(model: nn.Module | Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    """Yields (dotted name, the module that holds it, parameter), shared ones once per name."""
    if isinstance(model, Mapping):
        for prefix, part in model.items():
            for name, module, parameter in parameters(part):
                yield f"{prefix}.{name}", module, parameter
        return
    for path, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            yield f"{path}.{name}" if path else name, module, parameter


def parameter_type(name: str, module: nn.Module, parameter: nn.Parameter) -> str:
    """The type of one parameter, from the module that holds it; unknown modules go by name.

    A parameter of an unknown module that is not called as weights of a layer are is taken for a table:
    factors, positions, prompts, whose rows may see few gradients.

    Example:
        >>> factors = nn.Parameter(nn.Linear(100, 8).weight)
        >>> [parameter_type(name, nn.Module(), factors) for name in ("users", "mixer.weight", "experts.w1")]
        ['embedding', 'linear', 'linear']
    """
    if parameter.dim() < 2:
        return "other"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding"
    if isinstance(module, CONVOLUTIONS):
        return "convolution"
    if isinstance(module, nn.MultiheadAttention):
        return "attention"
    if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
        return "attention" if on_attention_path(name) else "linear"
    if not (LAYER.search(".".join(name.lower().split(".")[-2:])) or on_attention_path(name)):
        return "embedding"
    return layer_type(name, tuple(parameter.shape))


def on_attention_path(name: str) -> bool:
    """Whether a part of the dotted name speaks of attention."""
    words = re.split(r"[._]", name.lower())
    return any(ATTENTION.match(word) for word in words) or PROJECTION.search(name.lower()) is not None
