"""What is saved comes back: chains, partial loads, infos."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.store import CheckpointStore
from tests.store.kit import checkpoint_files, exact_store, filled, is_same, small_state


def test_every_step_of_a_chain_comes_back_bit_for_bit(tmp_path: Path) -> None:
    store = exact_store(tmp_path, max_chain=3)
    kinds = [store.save(step, small_state(step)).kind for step in range(1, 10)]
    assert kinds == ["key", *["delta"] * 5, "key", "delta", "delta"]
    fresh = CheckpointStore(tmp_path)
    assert fresh.steps() == list(range(1, 10))
    assert all(is_same(fresh.load(step), small_state(step)) for step in fresh.steps())


def test_dynaquant_reads_what_it_promised(tmp_path: Path) -> None:
    """What a draft shows is what any later process decodes, through a chain of deltas."""
    store = CheckpointStore(tmp_path, method="dynaquant")
    shown = {}
    for step in range(1, 6):
        saving = store.begin(step, small_state(step))
        draft = saving.draft(dq.Config(bins=8, prune=0.1, protect=0.005))
        shown[step] = {name: tensor.clone() for name, tensor in draft.decoded}
        saving.seal(draft).write()
    for step, weights in shown.items():
        state = CheckpointStore(tmp_path).load(step)
        loaded = {f"model.{name}": tensor for name, tensor in state["model"].items()} | {
            "frozen": state["frozen"]
        }
        assert weights
        assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
        for name in ("layer0.bias", "count"):
            assert torch.equal(state["model"][name], small_state(step)["model"][name])


def test_sealed_state_may_change_before_it_is_written(tmp_path: Path) -> None:
    for method in ("exact", "dynaquant"):
        store = CheckpointStore(tmp_path / method, method=method)
        for step in (1, 2):
            state, twin = small_state(step), small_state(step)
            saving = store.begin(step, state)
            sealed = saving.seal(saving.draft())
            for tensor in [*state["model"].values(), state["frozen"]]:
                tensor.zero_()
            worker = threading.Thread(target=sealed.write)
            worker.start()
            worker.join()
            loaded = CheckpointStore(tmp_path / method).load(step)
            assert torch.equal(loaded["model"]["layer1.bias"], twin["model"]["layer1.bias"])
            assert torch.allclose(loaded["frozen"], twin["frozen"], atol=25)
            assert loaded["frozen"].any()


def test_training_in_loaded_tensors_does_not_damage_the_base(tmp_path: Path) -> None:
    filled(tmp_path, (1, 2))
    store = exact_store(tmp_path)
    state = store.load()
    for tensor in state["model"].values():
        tensor.fill_(7)
    state["rng"] += 1
    assert store.save(3, state).kind == "delta"
    assert is_same(CheckpointStore(tmp_path).load(), state)
    assert is_same(CheckpointStore(tmp_path).load(2), small_state(2))


@pytest.mark.parametrize("change", ["shape", "dtype", "name", "order", "new"])
def test_a_changed_model_is_a_new_key(tmp_path: Path, change: str) -> None:
    store = exact_store(tmp_path)
    store.save(1, small_state(1))
    state = small_state(2)
    weight = state["model"].pop("layer0.weight")
    changed = {
        "shape": {"layer0.weight": weight[:12]},
        "dtype": {"layer0.weight": weight.half()},
        "name": {"layer9.weight": weight},
        "order": {"layer0.weight": weight},
        "new": {"layer0.weight": weight, "more": weight},
    }[change]
    state["model"] |= changed
    assert store.save(2, state).kind == "key"
    assert is_same(CheckpointStore(tmp_path).load(2), state)


def test_a_part_that_comes_or_goes_is_a_new_key(tmp_path: Path) -> None:
    store = exact_store(tmp_path)
    model = {"model": small_state(1)["model"]}
    whole = {**model, "optimizer": small_state(1)["optimizer"]}
    assert [store.save(step, state).kind for step, state in enumerate((model, whole, whole, model))] == [
        "key", "key", "delta", "key",
    ]  # fmt: skip
    assert is_same(CheckpointStore(tmp_path).load(2), whole)


def test_another_method_or_option_is_a_new_key(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.save(1, small_state(1)).kind == "key"
    assert store.save(2, small_state(2)).kind == "delta"
    store.close()
    other = CheckpointStore(tmp_path, method={"name": "dynaquant", "sigma": 0.2})
    other.load()
    assert other.save(3, small_state(3)).kind == "key"
    exact = exact_store(tmp_path)
    other.close()
    exact.load()
    info = exact.save(4, small_state(4), config=dq.Config(bins=4))
    assert (info.kind, info.method, info.config.bins) == ("key", "dynaquant", 4)


def test_an_unchanged_state_costs_next_to_nothing(tmp_path: Path) -> None:
    store = exact_store(tmp_path)
    key = store.save(1, small_state(1))
    delta = store.save(2, small_state(1))
    assert delta.stored_bytes < key.stored_bytes / 10


def test_stored_bytes_are_those_of_the_file_and_parts_sum_to_them(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, exact=("layer0",))
    for step in (1, 2):
        info = store.save(step, small_state(step))
        file = checkpoint_files(tmp_path)[-1]
        assert info.stored_bytes == file.stat().st_size
        assert info.stored_bytes == sum(part["stored_bytes"] for part in info.parts.values())
        assert info.raw_bytes == sum(part["raw_bytes"] for part in info.parts.values())
        assert all(part["stored_bytes"] >= 0 for part in info.parts.values())
        assert "model.layer0.weight" in info.exact
        assert "model.layer1.weight" not in info.exact
        assert info.as_dict()["ratio"] == info.ratio
        again = CheckpointStore(tmp_path).info(step)
        assert (again.parts, again.config, again.kind) == (info.parts, info.config, info.kind)
        assert {"draft", "encode", "commit", "held"} <= set(info.seconds)


def test_exact_patterns_and_non_finite_tensors_keep_their_bits(tmp_path: Path) -> None:
    state = small_state(1)
    state["model"]["layer2.weight"][0, 0] = float("nan")
    store = CheckpointStore(tmp_path, exact=("model.layer3", "*.layer4.*"))
    info = store.save(1, state)
    loaded = store.load()
    for name in ("layer2.weight", "layer3.weight", "layer4.weight", "layer5.bias"):
        assert is_same(loaded["model"][name], state["model"][name])
    assert not torch.equal(loaded["model"]["layer5.weight"], state["model"]["layer5.weight"])
    assert "model.layer2.weight" in info.exact


def test_second_moments_stay_positive(tmp_path: Path) -> None:
    state = small_state(1)
    CheckpointStore(tmp_path).save(1, state)
    loaded = CheckpointStore(tmp_path).load()
    for i, moments in state["optimizer"]["state"].items():
        assert (loaded["optimizer"]["state"][i]["exp_avg_sq"] > 0).equal(moments["exp_avg_sq"] > 0)


def test_tied_tensors_come_back_tied(tmp_path: Path) -> None:
    weight = torch.randn(32, 32)
    CheckpointStore(tmp_path).save(1, {"embedding": weight, "head": weight})
    loaded = CheckpointStore(tmp_path).load()
    assert loaded["embedding"] is loaded["head"]


# -- a part of a state ---------------------------------------------------------------------------


@pytest.mark.parametrize("step", [10, 30])
def test_names_load_a_branch_and_nothing_else(tmp_path: Path, step: int) -> None:
    filled(tmp_path)
    whole = small_state(step)
    store = exact_store(tmp_path)
    assert is_same(store.load(step, names="model"), {"model": whole["model"]})
    some = store.load(step, names=["model.layer1.*", "rng", "step"])
    weights = {name: whole["model"][name] for name in ("layer1.weight", "layer1.bias")}
    assert is_same(some, {"model": weights, "rng": whole["rng"], "step": step})
    groups = store.load(step, names=["optimizer.param_groups", "frozen"])
    assert is_same(groups["optimizer"], {"param_groups": whole["optimizer"]["param_groups"]})
    with pytest.raises(dq.StateMismatchError, match="from the root"):
        store.load(step, names=["layer1.weight"])


def test_names_keep_ties_and_int_keys(tmp_path: Path) -> None:
    tied = torch.randn(4, 4)
    state = {"a": {"w": tied}, "b": [tied, torch.zeros(2), {3: torch.ones(2), 5: None}], "a.w": torch.ones(3)}
    CheckpointStore(tmp_path).save(1, state)
    store = CheckpointStore(tmp_path)
    assert is_same(store.load(names="b"), {"b": state["b"]})
    assert is_same(store.load(names="b.2.3"), {"b": [None, None, {3: torch.ones(2)}]})
    assert is_same(store.load(names="a.w"), {"a": {"w": tied}, "a.w": torch.ones(3)})


def test_a_partial_load_is_followed_by_a_key(tmp_path: Path) -> None:
    filled(tmp_path)
    store = exact_store(tmp_path)
    store.load(names="model")
    assert store.save(40, small_state(40)).kind == "key"


def test_after_resume_a_load_only_looks(tmp_path: Path) -> None:
    filled(tmp_path)
    store = exact_store(tmp_path)
    assert is_same(store.resume(20), small_state(20))
    assert is_same(store.load(10), small_state(10))
    store.load(names="model")
    assert store.loaded is not None
    assert store.loaded.step == 20
    info = store.save(40, small_state(40))
    assert (info.kind, info.base_step) == ("delta", 20)
    store.close()
    store.load(10)  # nobody holds the run any more: this may be another one that begins
    assert store.save(50, small_state(50)).base_step == 10


def test_looking_does_not_give_the_right_to_write(tmp_path: Path) -> None:
    store = exact_store(tmp_path)
    with pytest.raises(dq.EmptyStoreError):
        store.resume()
    filled(tmp_path)
    store.load()
    with pytest.raises(dq.StoreNotEmptyError):
        store.save(40, small_state(40))


def test_load_into_is_a_restore_whoever_resumed_before(tmp_path: Path) -> None:
    filled(tmp_path)
    store = exact_store(tmp_path)
    store.resume()
    store.load_into(small_state(10), 10)
    assert store.save(40, small_state(40)).base_step == 10


def test_a_device_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    filled(tmp_path, (1,))
    for device in ("nowhere", "cuda:63", "meta"):
        with pytest.raises(dq.ConfigError, match="device"):
            CheckpointStore(tmp_path).load(device=device)


# -- going back ----------------------------------------------------------------------------------


def test_going_back_and_on_supersedes(tmp_path: Path) -> None:
    filled(tmp_path)
    store = exact_store(tmp_path)
    store.load(10)
    assert store.save(20, small_state(20, seed=9)).base_step == 10
    assert store.steps() == [10, 20, 30]
    fresh = exact_store(tmp_path)
    assert fresh.newest().step == 20
    assert is_same(fresh.load(), small_state(20, seed=9))
    assert is_same(fresh.load(20), small_state(20, seed=9))
    assert is_same(fresh.load(30), small_state(30))  # built on the superseded file, which therefore stays


def test_a_step_saved_twice_is_the_second(tmp_path: Path) -> None:
    store = exact_store(tmp_path)
    for seed in (0, 1, 2):
        store.save(7, small_state(7, seed=seed))
    assert store.steps() == [7]
    assert is_same(exact_store(tmp_path).load(7), small_state(7, seed=2))


def test_newest_goes_by_the_index_and_not_by_the_file_name(tmp_path: Path) -> None:
    filled(tmp_path)
    first, _, last = checkpoint_files(tmp_path)
    last.rename(tmp_path / "step-000000001-seq-000001.dq")
    first.rename(tmp_path / "step-000000099-seq-000099.dq")
    store = exact_store(tmp_path)
    assert store.steps() == [10, 20, 30]
    assert store.newest().step == 30
    assert is_same(store.load(), small_state(30))


def test_nothing_is_random_for_the_caller(tmp_path: Path) -> None:
    streams = torch.get_rng_state(), random.getstate()
    CheckpointStore(tmp_path).save(1, small_state(1))
    CheckpointStore(tmp_path).load()
    assert torch.equal(streams[0], torch.get_rng_state())
    assert random.getstate() == streams[1]


def test_long_texts_do_not_hinder_partial_loads(tmp_path: Path) -> None:
    state = {"note": "x" * 100_000, "w": torch.randn(4, 4)}
    store = exact_store(tmp_path)
    store.save(1, state)
    assert is_same(store.load(names="w"), {"w": state["w"]})
    other = {"note": "", "w": torch.zeros(4, 4)}
    store.load_into(other)
    assert is_same(other, state)
