"""Two callbacks beside each other, a rolling one and one of milestones: each goes on from what was loaded."""

import pytest
import torch
from composer.models import ComposerClassifier
from composer.utils import reproducibility

from dynaquant_composer.pointer import folder_of
from dynaquant_core.errors import StateMismatchError
from dynaquant_core.plugins import describe
from tests.integrations.composer.kit import EXACT, Net, bits, everything, fit, names, ours, trainer

#: Names of the folders, in the order in which the callbacks are registered.
ORDERS = [("rolling", "milestones"), ("milestones", "rolling")]


def start(folder, life, order, **options):
    """One more start of the same script: (the frozen layer as it was restored, what each saved first)."""
    reproducibility.seed_all(0)
    model = ComposerClassifier(Net(96))
    frozen = model.module.body[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    savers = {
        "rolling": ours(folder / "rolling", "2ba", threshold=0.05, **options),
        "milestones": ours(folder / "milestones", "4ba", weights_only=True, threshold=0.05, **options),
    }
    run = trainer(
        *(savers[name] for name in order),
        model=model,
        optimizers=optimizer,
        duration=f"{4 * (life + 1)}ba",
        load_path=str(folder / "rolling" / "latest-rank0.pt") if life else None,
    )
    restored = bits(frozen.state_dict())
    run.fit()
    run.close()
    at = {"rolling": 4 * life + 2, "milestones": 4 * life + 4}
    first = {name: describe(saved(folder / name, batch)) for name, batch in at.items()}
    return restored, first


def saved(folder, batch):
    return folder_of(next(folder.glob(f"ep*-ba{batch}-rank0.pt")))


def nbytes(folder):
    return sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.parametrize("method", ["dynaquant", "lattice"])
@pytest.mark.parametrize("order", ORDERS, ids=["rolling first", "milestones first"])
def test_both_go_on_from_what_was_loaded(tmp_path, order, method):
    lives = [start(tmp_path, life, order, method=None if life else method) for life in range(4)]
    firsts = [first for _, first in lives]
    assert [first["rolling"].kind for first in firsts] == ["key", "delta", "delta", "delta"]
    assert {info.method for first in firsts for info in first.values()} == {method}
    sizes = [nbytes(saved(tmp_path / "milestones", first["milestones"].step)) for first in firsts]
    assert max(sizes) < 1.2 * sizes[0]  # no optimizer's state lies beside weights that were to be alone
    layers = [restored for restored, _ in lives]
    if method == "lattice":  # the other moves its one codebook with the layers that are trained
        assert layers[1] == layers[2] == layers[3]


@pytest.mark.parametrize("apart", [False, True], ids=["one folder", "two folders"])
@pytest.mark.parametrize("order", ORDERS, ids=["rolling first", "milestones first"])
def test_both_rotate_on_after_every_restart(tmp_path, order, apart):
    folders = {"rolling": tmp_path / "a", "milestones": tmp_path / ("b" if apart else "a")}
    given = {
        "rolling": {"save_interval": "2ba", "filename": "r{batch}.pt", "latest_filename": "r-latest.pt"},
        "milestones": {"save_interval": "6ba", "filename": "m{batch}.pt", "latest_filename": "m-latest.pt"},
    }
    for batch in (6, 12, 18):
        savers = [ours(folders[name], num_checkpoints_to_keep=1, **given[name], **EXACT) for name in order]
        run = fit(*savers, autoresume=batch > 6, duration=f"{batch}ba")
        assert int(run.state.timestamp.batch) == batch
        run.close()
        files = {name for folder in set(folders.values()) for name in names(folder) if name.endswith(".pt")}
        assert files == {f"r{batch}.pt", "r-latest.pt", f"m{batch}.pt", "m-latest.pt"}


@pytest.mark.parametrize("next_is_ours", [True, False])
def test_a_trainer_that_failed_to_load_reads_nothing_for_the_next(tmp_path, next_is_ours):
    fit(ours(tmp_path, **EXACT), duration="3ba")
    stale, fresh = ours(tmp_path / "stale", **EXACT), ours(tmp_path / "fresh", **EXACT)
    latest = str(tmp_path / "latest-rank0.pt")
    with pytest.raises(StateMismatchError):
        trainer(stale, width=40, load_path=latest)
    run = trainer(fresh, load_path=latest)
    read = []
    stale._run.load = lambda folder, **_: read.append(folder)
    again = trainer(*[ours(tmp_path / "again", **EXACT)] * next_is_ours, load_path=latest)
    assert everything(again) == everything(run)
    assert torch.load(latest, weights_only=False)["state"]
    assert not read
