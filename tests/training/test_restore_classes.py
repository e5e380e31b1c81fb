"""Optimizers and schedulers whose states do not tell that they are of another kind; their classes do."""

import copy
import logging

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler

import dynaquant_core as dq
from dynaquant_core.errors import StateMismatchError
from dynaquant_core.training.capture import capture
from dynaquant_core.training.classes import class_of
from dynaquant_core.training.restore import put_back
from dynaquant_core.training.subject import Subject
from tests.training.models import EXACT, Net, bits, net_loss, one_step, stored

pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter in")  # SequentialLR's, torch < 2.9


def run_with(optimizer, scheduler=None, steps=1, part=None):
    """A run, with what is asked about in its own place or in extra."""
    model = Net()
    own = optimizer(model.parameters())
    planned = None if scheduler is None else scheduler(own)
    if part == "extra":
        subject = Subject(model, extra={"beside": planned or own})
    else:
        subject = Subject(model, own, planned)
    for _ in range(steps):
        one_step(model, own, net_loss, planned)
    return subject


def sgd(parameters):
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


def refused(run, tree, words):
    before = bits(capture(run, 0))
    with pytest.raises(StateMismatchError, match=words) as caught:
        put_back(run, copy.deepcopy(tree))
    assert "othing was restored" in str(caught.value)
    assert bits(capture(run, 0)) == before
    return str(caught.value)


OPTIMIZERS = [
    (optim.AdamW, optim.Adam),
    (optim.AdamW, optim.RAdam),
    (optim.Adam, optim.NAdam),
    (optim.RAdam, optim.Adam),
    (sgd, lambda parameters: optim.LBFGS(parameters)),
]


@pytest.mark.parametrize("part", ["optimizer", "extra"])
@pytest.mark.parametrize(("was", "now"), OPTIMIZERS)
def test_another_optimizer_with_the_same_state_is_refused(was, now, part):
    tree = stored(capture(run_with(was, part=part), 1))
    said = refused(run_with(now, steps=0, part=part), tree, "another kind of optimizer")
    way = 'restore(fresh=("extra.beside",))' if part == "extra" else "save into another folder"
    assert way in said


def steps(optimizer):
    return lr_scheduler.StepLR(optimizer, 1000, 0.1)


def decays(optimizer):
    return lr_scheduler.ExponentialLR(optimizer, 0.999)


def in_turn(first):
    return lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.ConstantLR(optimizer), first(optimizer)], [2]
    )


SCHEDULERS = [
    (steps, decays),
    (decays, steps),
    (in_turn(steps), in_turn(decays)),
    (
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda _: 0.99),
    ),
]


@pytest.mark.parametrize("part", ["scheduler", "extra"])
@pytest.mark.parametrize(("was", "now"), SCHEDULERS)
def test_another_scheduler_with_the_same_state_is_refused_or_begins_as_it_is(was, now, part, caplog):
    tree = stored(capture(run_with(sgd, was, part=part), 1))
    run = run_with(sgd, now, steps=0, part=part)
    full = "extra.beside" if part == "extra" else "scheduler"
    said = refused(run, tree, "another kind of scheduler")
    assert f'call restore(fresh=("{full}",))' in said
    scheduler = run.extra["beside"] if part == "extra" else run.scheduler
    before = bits(scheduler.state_dict())
    with caplog.at_level(logging.WARNING):
        put_back(run, tree, [full])
    assert f"of another kind in the checkpoint, and begun as they are: {full}" in caplog.text
    assert bits(scheduler.state_dict()) == before
    assert bits(run.model.state_dict()) == bits(tree["model"])


def test_a_new_scheduler_of_another_kind_is_restored_once_it_was_saved(tmp_path):
    """With ``fresh`` left in the script."""
    held = run_with(sgd, steps)
    with dq.Checkpointer(tmp_path, held.model, held.optimizer, scheduler=held.scheduler, **EXACT) as one:
        one.save()
    for epochs in (0, 1):
        run = run_with(sgd, decays, steps=0)
        with dq.Checkpointer(tmp_path, run.model, run.optimizer, scheduler=run.scheduler, **EXACT) as one:
            one.restore(fresh="scheduler")
            assert run.scheduler.last_epoch == epochs
            one_step(run.model, run.optimizer, net_loss, run.scheduler)
            one.step()
            one.save()


class Renamed(optim.AdamW):
    """Has other defaults, and else nothing of its own."""

    def __init__(self, parameters, lr=3e-4):
        super().__init__(parameters, lr=lr, betas=(0.9, 0.95))


class Rewritten(optim.Adam):
    """Decouples by a step of its own."""

    def step(self, closure=None):
        return super().step(closure)


class Warm(lr_scheduler.ExponentialLR):
    """Rates of its own from the settings of another."""

    def get_lr(self):
        return super().get_lr()


SAME = [
    (optim.AdamW, lambda parameters: optim.AdamW(parameters, foreach=False)),
    (optim.AdamW, lambda parameters: optim.AdamW(parameters, fused=True)),
    (optim.AdamW, lambda parameters: optim.AdamW(parameters, amsgrad=True)),
    (optim.AdamW, Renamed),
    (Renamed, optim.AdamW),
    (optim.AdamW, Rewritten),
    (Rewritten, optim.AdamW),
]


@pytest.mark.parametrize(("was", "now"), SAME)
def test_variants_and_classes_made_from_it_take_an_optimizers_state(was, now):
    tree = stored(capture(run_with(was), 1))
    put_back(run_with(now, steps=0), tree)


@pytest.mark.parametrize(("was", "now"), [(decays, lambda o: Warm(o, 0.9)), (lambda o: Warm(o, 0.9), steps)])
def test_schedulers_that_go_their_own_way_are_told_by_their_states_alone(was, now):
    put_back(run_with(sgd, now, steps=0), stored(capture(run_with(sgd, was), 1)))


def test_a_checkpoint_from_before_classes_were_noted_is_restored_as_it_was():
    tree = stored(capture(run_with(sgd, steps), 1))
    del tree["classes"]
    run = run_with(sgd, decays, steps=0)
    put_back(run, tree)
    assert run.scheduler.last_epoch == 1


def test_adam_with_decoupled_decay_is_adamw():
    weight = torch.zeros(1)
    try:
        decoupled = optim.Adam([weight], decoupled_weight_decay=True)
    except TypeError:
        pytest.skip("this torch has no decoupled_weight_decay")
    assert class_of(decoupled) == class_of(optim.AdamW([weight])) == "AdamW"
    assert class_of(optim.Adam([weight])) == "Adam"


def test_an_optimizer_in_extra_of_other_parameters_is_refused():
    tree = stored(capture(run_with(sgd, part="extra"), 1))
    run = run_with(lambda parameters: sgd(list(parameters)[:-1]), steps=0, part="extra")
    refused(run, tree, r"extra\['beside'\], group 0: parameters .*")


def test_a_function_in_a_schedulers_state_in_extra_stays_its_own():
    def average(optimizer):
        return optim.swa_utils.SWALR(optimizer, swa_lr=0.05)

    run = run_with(sgd, average, steps=0, part="extra")
    put_back(run, stored(capture(run_with(sgd, average, part="extra"), 1)))
    assert run.extra["beside"].last_epoch == 1
