"""Models that a process holds a share of only: their checkpoints would hold that share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from torch import nn

from dynaquant_core.errors import ConfigError
from dynaquant_core.state.leaves import SHARDED

__all__ = ["require_whole"]

#: Classes by name, since importing theirs takes a second: FSDP's modules, and parameters of one rank's share.
SHARDING: Final = SHARDED | {"FullyShardedDataParallel", "FSDPModule"}

#: How plain parameters are marked that hold a share only: those inside of FSDP, under any name, and the empty
#: ones that DeepSpeed leaves.
MARKS: Final = {"_fsdp_flattened": "a parameter of FSDP", "ds_id": "a parameter of ZeRO-3"}


def require_whole(models: Iterable[nn.Module]) -> None:
    """Refuses models that this process holds a share of only; nothing is asked of other ranks.

    Raises:
        ConfigError: a module is FSDP's, or a parameter is a shard; names it.

    Example:
        >>> require_whole([nn.Linear(2, 2)])
    """
    for model in models:
        for name, item in (*model.named_modules(), *model.named_parameters()):
            kinds = {kind.__name__ for kind in type(item).__mro__} & SHARDING
            kinds |= {kind for mark, kind in MARKS.items() if hasattr(item, mark)}
            if kinds:
                which, kind = name or "the whole of it", min(kinds)
                raise ConfigError(
                    f"the model is sharded ({which} is {kind}): DynaQuant saves what its process holds "
                    "whole, alone or under DDP; save this one with torch.distributed.checkpoint."
                )
