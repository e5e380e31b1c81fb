"""Two-bit compression of what a DDP model exchanges."""

# Annotations are no strings here: DDP compares those of a hook with its own classes.

from torch import Tensor, distributed, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.comm.attach import attach, require_free
from dynaquant_core.comm.two_bit.ddp_state import TwoBitState
from dynaquant_core.comm.two_bit.sent import Scaler
from dynaquant_core.comm.two_bit.settings import Reduce, Threshold, TwoBitSettings
from dynaquant_core.config import require

__all__ = ["register", "registered", "two_bit_hook"]


def register(
    ddp_model: DistributedDataParallel,
    threshold: Threshold = 0.5,
    negative_threshold: Threshold | None = None,
    reduce: Reduce = "mean",
    *,
    warmup: int = 0,
    scaler: Scaler | None = None,
) -> TwoBitState:
    """Compresses the gradients that a DDP model exchanges to two bits an element; every rank calls it.

    Args:
        ddp_model: before its first backward pass; none of its parameters changes.
        threshold: t, or name pattern -> t; see `TwoBitSettings`, also for the others, which every rank gives
            alike.
        negative_threshold: size of what is sent below zero; None: ``threshold``.
        reduce: "mean" or "sum".
        warmup: first steps that are reduced densely.
        scaler: the gradient scaler, if one is used, the same for all that it scales.  Thresholds and
            residuals are then in the unit of the true gradients, whatever the scale, and what was sent for
            parameters whose optimizer the scaler makes skip a step returns to the residual.

    Returns:
        The state that holds the residual.  Give it to `Checkpointer(extra={"two_bit": state})`, and call
        `from_first_rank` after the restore: each rank has rounded its own weights.

    Raises:
        ConfigError: a setting is wrong, the scaler is none, the model is no DDP model, or it has a
            communication hook already.
        UnsupportedStateError: a parameter is of a dtype that has no two-bit codes.
        StateMismatchError: on every rank, where ranks have other settings or other parameters.

    Source: MXNet pull request 8662.

    Example:
        >>> import torch
        >>> store = distributed.HashStore()
        >>> distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
        >>> state = register(model, threshold=0.5)
        >>> model(torch.tensor([[0.7, 0.2]])).sum().backward()
        >>> model.module.weight.grad.tolist(), [f"{value:.1f}" for value in state.residual("weight")[0]]
        ([[0.5, 0.0]], ['0.2', '0.2'])
        >>> del model, state  # before the group: torch can hang where DDP is the last that holds it
        >>> distributed.destroy_process_group()
    """
    settings = TwoBitSettings(
        threshold=threshold, negative_threshold=negative_threshold, reduce=reduce, warmup=warmup
    )
    model = require_free(ddp_model)
    require(
        scaler is None or (hasattr(scaler, "get_scale") and hasattr(scaler, "is_enabled")),
        f"two_bit: scaler must be a gradient scaler such as torch.amp.GradScaler, got "
        f"{type(scaler).__name__}.",
    )
    state = TwoBitState(model, settings, scaler)
    attach(model, state, two_bit_hook)
    return state


def registered(ddp_model: nn.Module) -> TwoBitState | None:
    """The state that `register` gave for this model; None where it compresses nothing (yet).

    For loops that wrap a model in DDP themselves, and do so once for several trainings.

    Args:
        ddp_model: any module, compiled or not; a copy of a registered model is not registered.

    Example:
        >>> import torch
        >>> registered(torch.nn.Linear(2, 1)) is None
        True
    """
    model = getattr(ddp_model, "_orig_mod", ddp_model)
    for _, state in getattr(model, "_comm_hooks", []):
        if isinstance(state, TwoBitState) and state.attached:
            return state
    return None


def two_bit_hook(
    state: TwoBitState,
    bucket: distributed.GradBucket,  # type: ignore[name-defined]  # torch sets it at run time
) -> Future[Tensor]:
    """The hook itself, as `DistributedDataParallel.register_comm_hook` takes it."""
    return state.exchange(bucket)
