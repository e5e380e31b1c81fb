"""What the memory saved is worth on many devices: fewer pipeline stages, smaller all-reduces.

The paper's analysis (arXiv 2302.05045, sec. 4): take the smallest number of stages whose share of the state
fits a device; fewer stages mean a shorter bubble and fewer messages, and compressed gradients a smaller
all-reduce.  Activations are not part of it: give the memory that is left for the state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dynaquant_core.config import require, require_number
from dynaquant_core.errors import ConfigError
from dynaquant_core.memory.samo.formula import dense_bytes, samo_bytes

__all__ = ["Layout", "Plan", "plan"]


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to spread a training over devices.

    Args:
        state_bytes: of the whole training state, once.
        stages: G_inter, devices that share one copy of the model.
        replicas: G_data = devices / stages.
        bubble: seconds a batch in which a device waits for the pipeline: (t_f + t_b)(1 - 1 / stages).
        messages: that a device sends or receives a batch: 4 * batch / (microbatch * replicas); 0 for one
            stage.
        reduced_bytes: of half-precision gradients that a device hands in to the all-reduce of a batch; 0 for
            one replica.
    """

    state_bytes: int
    stages: int
    replicas: int
    bubble: float
    messages: float
    reduced_bytes: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Dense training beside SAMO on the same devices.

    Args:
        dense: its layout; None: the dense state does not fit, whatever the number of stages.
        samo: its layout.
    """

    dense: Layout | None
    samo: Layout


def plan(
    parameters: int,
    *,
    devices: int,
    memory: float,
    batch: int,
    sparsity: float = 0.9,
    microbatch: int = 1,
    forward: float = 1.0,
    backward: float = 2.0,
    moments: int = 2,
) -> Plan:
    """The smallest pipeline that fits, and what it costs.

    Args:
        parameters: of the model.
        devices: how many there are (G); stages divide them.
        memory: bytes a device has for the training state.
        batch: sequences a step, over all devices.
        sparsity: share pruned, in [0, 1).
        microbatch: sequences that travel through the pipeline together.
        forward: seconds of one microbatch through the whole model (t_f).
        backward: the same of the way back (t_b).
        moments: values that the optimizer keeps a weight.

    Raises:
        ConfigError: a value is out of range, or not even the compressed state fits on all devices together.

    Example:
        >>> found = plan(2_700_000_000, devices=64, memory=16e9, batch=512)
        >>> found.dense.stages, found.samo.stages
        (4, 1)
    """
    whole = {"parameters": parameters, "devices": devices, "batch": batch, "microbatch": microbatch}
    for name, value in {**whole, "moments": moments}.items():
        least = 0 if name == "moments" else 1
        good = isinstance(value, int) and not isinstance(value, bool) and value >= least
        require(good, f"samo.plan: {name} must be a whole number from {least}, got {value!r}.")
    require_number("samo.plan", "sparsity", sparsity, 0.0, 1.0, open_high=True)
    for name, seconds in {"memory": memory, "forward": forward, "backward": backward}.items():
        require_number("samo.plan", name, seconds, 0.0, math.inf, open_high=True)
    kept = parameters - round(sparsity * parameters)
    wanted = {
        "dense": (sum(dense_bytes(parameters, moments=moments).values()), parameters),
        "samo": (sum(samo_bytes(parameters, kept, moments=moments).values()), kept),
    }
    found: dict[str, Layout | None] = {}
    for name, (state, gradients) in wanted.items():
        stages = _smallest(state, devices, memory)
        bubble = 0.0 if stages is None else (forward + backward) * (1 - 1 / stages)
        load = batch / microbatch
        found[name] = None if stages is None else _layout(state, gradients, stages, devices, bubble, load)
    if found["samo"] is None:
        raise ConfigError(
            f"samo.plan: {wanted['samo'][0]:,} bytes of state do not fit {devices} devices of {memory:,.0f} "
            "bytes; take more devices or prune more."
        )
    return Plan(found["dense"], found["samo"])


def _layout(
    state: int, gradients: int, stages: int, devices: int, bubble: float, microbatches: float
) -> Layout:
    replicas = devices // stages
    return Layout(
        state_bytes=state,
        stages=stages,
        replicas=replicas,
        bubble=bubble,
        messages=4 * microbatches / replicas if stages > 1 else 0.0,
        reduced_bytes=2 * gradients / stages if replicas > 1 else 0.0,
    )


def _smallest(state: int, devices: int, memory: float) -> int | None:
    """The least divisor of the number of devices by which the state fits."""
    fits = (stages for stages in range(1, devices + 1) if devices % stages == 0 and state / stages <= memory)
    return next(fits, None)
