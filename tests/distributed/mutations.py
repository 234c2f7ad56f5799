"""Faults of the kind that trainers have had, one at a time. The parity suite must notice each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.distributed.fsdp import FSDPModule

from llmtrain.data import loader
from llmtrain.parallel import gradients
from llmtrain.training import loop, loss, metrics, optimizer, schedule, state, train

Patches = list[Any]
MUTATIONS: dict[str, Callable[[], Patches]] = {}


def mutation(make: Callable[[], Patches]) -> Callable[[], Patches]:
    MUTATIONS[make.__name__] = make
    return make


@mutation
def count_local_tokens_only() -> Patches:
    """Each rank normalises by its own tokens: a mean of means."""
    return [mock.patch.object(loop, "sum_over_ranks", lambda world, values: values)]


@mutation
def drop_the_loss_scale() -> Patches:
    """Gradients are of the sum, not of the mean."""
    original = loop._count

    def unscaled(*args):
        counts, stop = original(*args)
        return metrics.Counts(1, counts.tokens, counts.squared_lengths), stop

    return [mock.patch.object(loop, "_count", unscaled)]


@mutation
def divide_gradients_twice() -> Patches:
    original = loop.gradient_norm

    def halve(parameters, device):
        for p in parameters:
            p.grad.mul_(0.5)
        return original(parameters, device)

    return [mock.patch.object(loop, "gradient_norm", halve)]


@mutation
def average_gradients_over_ranks() -> Patches:
    """FSDP's own default."""
    return [
        mock.patch.object(FSDPModule, "set_gradient_divide_factor", lambda self, factor: None),
        mock.patch.object(FSDPModule, "set_force_sum_reduction_for_comms", lambda self, enable: None),
    ]


@mutation
def norm_of_the_local_shard() -> Patches:
    return [mock.patch.object(gradients.dist, "all_reduce", lambda *args, **kwargs: None)]


@mutation
def log_the_local_loss() -> Patches:
    def read(self):
        loss = self._loss.item() / max(1, self.counts.supervised)
        return metrics.Reading(loss, self._norm.item(), 0, 0)

    return [mock.patch.object(metrics.IntervalMeter, "read", read)]


@mutation
def never_clip() -> Patches:
    return [mock.patch.object(loop, "clip_gradients", lambda *args: None)]


@mutation
def shift_targets_once_more() -> Patches:
    original = loss.summed_loss
    return [mock.patch.object(loss, "summed_loss", lambda logits, targets: original(logits, targets.roll(-1, dims=1)))]


@mutation
def keep_only_the_last_micro_batch() -> Patches:
    original = loop.set_gradient_sync

    def forget(model, enabled):
        for p in model.parameters():
            p.grad = None
        original(model, enabled)

    return [mock.patch.object(loop, "set_gradient_sync", forget)]


@mutation
def same_data_on_every_rank() -> Patches:
    original = loader.Loader._deal

    def deal(self, samples):
        rank, self._rank = self._rank, 0
        try:
            return original(self, samples)
        finally:
            self._rank = rank

    return [mock.patch.object(loader.Loader, "_deal", deal)]


@mutation
def lose_a_buffer() -> Patches:
    original = train.build_skeleton

    def build(*args, **kwargs):
        model = original(*args, **kwargs)
        for buffer in model.buffers():
            buffer.zero_()
        return model

    return [mock.patch.object(train, "build_skeleton", build)]


@mutation
def decay_norms_too() -> Patches:
    original = optimizer._groups

    def groups(named, weight_decay):
        return [{**group, "weight_decay": weight_decay} for group in original(named, weight_decay)]

    return [mock.patch.object(optimizer, "_groups", groups)]


@mutation
def rate_of_the_step_before() -> Patches:
    original = schedule.Schedule.at
    return [mock.patch.object(schedule.Schedule, "at", lambda self, update: original(self, max(1, update - 1)))]


@mutation
def count_a_step_that_never_was() -> Patches:
    """State made ready by a step with zero gradients."""
    original = train.build_optimizers

    def build(*args):
        made = original(*args)
        for parameter in made.names:
            parameter.grad = torch.zeros_like(parameter)
        made.step(0.0, torch.tensor(True))
        made.zero_grad()
        return made

    return [mock.patch.object(train, "build_optimizers", build)]


@mutation
def resume_without_optimizer_state() -> Patches:
    return [mock.patch.object(optimizer.Optimizers, "set_state", lambda self, values: None)]


@mutation
def resume_from_the_first_sample() -> Patches:
    original = state.Progress.from_dict.__func__

    def rewind(cls, values):
        progress = original(cls, values)
        progress.position = loader.Position(0, 0)
        return progress

    return [mock.patch.object(state.Progress, "from_dict", classmethod(rewind))]


@mutation
def resume_with_weights_of_another_step() -> Patches:
    original = state.CheckpointStore.load

    def load(self, folder, tensors):
        original(self, folder, tensors)
        tensors["model/model.layers.0.mlp.up_proj.weight"].mul_(0.99)

    return [mock.patch.object(state.CheckpointStore, "load", load)]
