"""``dynaquant import``: a store that begins with other people's files."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from dynaquant_core.cli.choices import (
    BinsOption,
    ExactOption,
    MethodOption,
    MomentsOption,
    ScaleOption,
    config_of,
    method_of,
)
from dynaquant_core.cli.convert import TrustOption
from dynaquant_core.cli.messages import say
from dynaquant_core.cli.output import Json, emit, size, times, write_line
from dynaquant_core.cli.progress import working
from dynaquant_core.errors import UnsupportedStateError
from dynaquant_core.methods.registry import require_own_config, resolve_method
from dynaquant_core.plugins.rest import split
from dynaquant_core.state.leaves import dotted
from dynaquant_core.store import CheckpointStore
from dynaquant_core.store.described import read_description
from dynaquant_core.store.disk import path_from
from dynaquant_core.store.export import brief
from dynaquant_core.store.exporters import resolve_importer
from dynaquant_core.store.native import read_native, refused_class, step_of

__all__ = ["import_native"]


def import_native(
    native: Annotated[
        Path, typer.Argument(metavar="NATIVE", help="A torch.save or safetensors file, or a framework's own.")
    ],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of the new store.")],
    step: Annotated[
        int | None, typer.Option(help="Step to save it as; default: the file's own, else 0.")
    ] = None,
    trust: TrustOption = False,
    framework: Annotated[
        str | None, typer.Option("--from", help="Whose checkpoint it is: hf, lightning, composer.")
    ] = None,
    bins: BinsOption = None,
    scale: ScaleOption = None,
    method: MethodOption = None,
    moments: MomentsOption = "8bit",
    exact: ExactOption = None,
    as_json: Json = False,
) -> None:
    """Start a store from a native checkpoint."""
    config = config_of(bins=bins, scale=scale)
    named = method_of(method)
    if named is not None:
        require_own_config(config, resolve_method(named))
    path_from("NATIVE", native)
    opened = CheckpointStore(store, method=named, moments=moments, exact=tuple(exact or ()))
    with working(f"importing {native}"):
        own_step, state = read_for(framework, native, trust=trust)
        said = read_description(native) if framework is None else {}
        state, left_out = holdable(state)
        saving = opened.begin(own_step if step is None else step, state, config=config)
        info = saving.seal(saving.draft(config), said).write()
    if as_json:
        emit(
            {
                "store": str(store),
                "step": info.step,
                "raw_bytes": info.raw_bytes,
                "stored_bytes": info.stored_bytes,
                "left_out": left_out,
            }
        )
        return
    if left_out:
        say(f"warning: left out, as no store can hold it: {brief(left_out)}")
    saved = f"{size(info.stored_bytes)} instead of {size(info.raw_bytes)}"
    write_line(f"{store}: step {info.step}, {saved} ({times(info.raw_bytes, info.stored_bytes)})")


def read_for(framework: str | None, native: Path, *, trust: bool) -> tuple[int, Any]:
    """The step and the state of a native checkpoint, by a framework's importer or as a plain file.

    Raises:
        UnsupportedStateError: reading an object in it could run code, and nobody said that this may be.
    """
    try:
        if framework is None:
            state = read_native(native, weights_only=not trust)
            return step_of(state), state
        read = resolve_importer(framework)
        asks = "weights_only" in signature(read).parameters
        return read(native, **({"weights_only": not trust} if asks else {}))
    except UnsupportedStateError as error:
        if refused_class(error.__cause__) is None:
            raise
        raise UnsupportedStateError(f"{error} If you trust where it is from: --trust.") from error


def holdable(state: Any) -> tuple[Any, list[str]]:
    """The state without what no store can hold, and what that is: place and class, of tensors their kind too.

    A model or an optimizer that was pickled whole stands as its own ``state_dict``.  A state that is another
    such object as a whole is given back as it is, for the store to refuse.

    Example:
        >>> holdable({"step": 3, "tags": {"a"}})
        ({'step': 3}, ['tags (builtins.set)'])
    """
    tree, rest = split(state)
    if any(has_state(value) for value in rest.objects.values()):
        tree, rest = split(unfolded(state))
    if () in rest.objects:
        return state, []
    for place in rest.objects:
        holder = tree
        for key in place[:-1]:
            holder = holder[key]
        if isinstance(holder, dict):  # in a list None keeps the others' places
            del holder[place[-1]]
    return tree, [f"{dotted(place)} ({described(value)})" for place, value in rest.objects.items()]


def unfolded(node: Any) -> Any:
    """A tree with the ``state_dict`` in place of each object that has one."""
    if isinstance(node, dict):
        return {key: unfolded(value) for key, value in node.items()}
    if type(node) in (list, tuple):
        return type(node)(unfolded(value) for value in node)
    return unfolded(node.state_dict()) if has_state(node) else node


def has_state(value: Any) -> bool:
    """Whether this is a model, an optimizer or another object with a ``state_dict``."""
    return callable(getattr(value, "state_dict", None)) and not isinstance(value, type)


def described(value: Any) -> str:
    """A class with its module, as errors name it; of a tensor or an array also what it is made of.

    Example:
        >>> import torch
        >>> described({1}), described(torch.eye(2).to_sparse())
        ('builtins.set', 'torch.Tensor of torch.float32, torch.sparse_coo')
    """
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    kinds = [str(getattr(value, kind)) for kind in ("dtype", "layout") if hasattr(value, kind)]
    return f"{name} of {', '.join(kinds)}" if kinds else name
