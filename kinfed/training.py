"""Local training: mini-batch SGD or Adam on a client, and rules that change its gradient."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from kinfed.checks import at_least
from kinfed.client import AUTOGRAD, FAST_PATH, Batch, Client
from kinfed.errors import ConfigError
from kinfed.fastpath import (
    SGD,
    AutogradPlan,
    FastPlan,
    GradientRule,
    Lane,
    NotSupported,
    Optimiser,
    OptimiserName,
    Schedule,
    StepGraphs,
    TrainingGraphs,
    plan_autograd,
    plan_training,
    train,
    train_by_autograd,
    train_module,
)
from kinfed.models import FixedGradient, Gradient, GradientFn, Network, NetworkGradient
from kinfed.params import NOTHING, Params, each_leaf
from kinfed.targets import fill_unknown, is_known

SMALLEST = 1e-30  # learning rate that is divided by
SAME_RATE = torch.zeros(0)  # in place of learning rates of single epochs: all have that of the round


@dataclass(frozen=True)
class LocalTraining:
    """E epochs of mini-batch SGD or Adam; the optimiser starts anew each time."""

    epochs: int = 1  # E, passes over its samples that a client makes in a round
    batch_size: int = 10  # samples of a step
    lr: float = 0.01  # learning rate
    momentum: float = 0.5  # of SGD; 0: none
    decay: float = 1.0  # the learning rate is multiplied by this after every round
    mu: float = 0.0  # μ, FedProx: proximal term, gradient μ (w - w_received)
    optimiser: OptimiserName = "sgd"  # sgd, adam or adamw; it starts anew every round
    weight_decay: float = 0.0  # added to the gradient, weight_decay · w; adamw: apart from it
    clip_norm: float = 0.0  # the largest norm of a gradient, a longer one is scaled down; 0: any
    adapt_epochs: int = 0  # when a client tunes the model it is served; 0: as `epochs`
    adapt_lr: float = 0.0  # learning rate then, in any round; 0: as `lr`
    steps: int = 0  # optimiser steps in a round, in place of `epochs`; 0: epochs
    drop_last: bool = False  # leave out an epoch's last, incomplete mini-batch
    schedule: Literal["exponential", "step", "cosine"] = "exponential"  # of the learning rate over rounds
    schedule_rounds: int = 0  # rounds from one step to the next, or of a cosine's way to 0
    warm_up: int = 0  # rounds in which the learning rate rises to `lr`, in equal steps

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ConfigError(f"epochs and batch_size must be at least 1, got {self.epochs} and {self.batch_size}")
        is_finite = all(map(math.isfinite, (self.lr, self.decay, self.mu)))
        if not is_finite or self.lr <= 0 or self.decay <= 0 or self.mu < 0 or not 0 <= self.momentum < 1:
            raise ConfigError(
                "wanted lr > 0, decay > 0, mu >= 0 and 0 <= momentum < 1, all finite, got "
                f"lr={self.lr}, decay={self.decay}, mu={self.mu}, momentum={self.momentum}"
            )
        at_least(0, adapt_epochs=self.adapt_epochs, adapt_lr=self.adapt_lr, steps=self.steps, warm_up=self.warm_up)
        at_least(0 if self.schedule == "exponential" else 1, schedule_rounds=self.schedule_rounds)
        at_least(0, weight_decay=self.weight_decay, clip_norm=self.clip_norm)
        if self.optimiser not in get_args(OptimiserName):
            raise ConfigError(f"optimiser must be one of {', '.join(get_args(OptimiserName))}, got '{self.optimiser}'")

    def __call__(
        self, client: Client, start: Params, gradient: GradientFn, rates: Tensor = SAME_RATE
    ) -> tuple[Params, Tensor]:
        """The weights after training from `start`, perhaps at a rate for each epoch, and the number of steps taken."""
        if (rule := _parse_rule(gradient)) is not None:
            rule.network.check_weights({**_find_fixed(gradient), **start}, rule.network.template)
        end = self._train_by_plan(client, start, gradient, rates)
        if isinstance(gradient, LabelledGradient):  # weight decay and batch statistics need no label
            has_label = client.train.has_label()
            end = {name: torch.where(has_label, w, start[name]) for name, w in end.items()}
        return end, client.steps(*self.passes)

    def _train_by_plan(self, client: Client, start: Params, gradient: GradientFn, rates: Tensor) -> Params:
        shift, plan = getattr(gradient, "shift", {}), self.plan(client, start, gradient)
        if isinstance(plan, FastPlan) and not len(rates):
            return self._train_fast(plan, client, start, shift)
        by_autograd = self.plan_autograd(client, start, gradient)
        if by_autograd:
            return self.train_by_autograd(by_autograd, client, start, shift, _find_fixed(gradient), rates)
        return self._train(client, start, gradient, rates)

    def plan(self, client: Client, start: Params, gradient: GradientFn) -> FastPlan | NotSupported:
        """How the fast path trains these weights, or why it does not."""
        rule = _parse_rule(gradient)
        if rule is None or set(start) != set(rule.network.weights):
            return NotSupported("the gradient is not that of a whole network's loss")
        if client.train.exact or self.optimiser != "sgd" or self.clip_norm:
            return NotSupported("the fast path is for SGD without clipping on padded samples")
        if client.train.weights is not None:
            return NotSupported("the fast path is for samples that count the same")
        if rule.inner_lr and self.batch_size != 2 * rule.inner_size:
            return NotSupported("look-ahead steps take pairs of equal mini-batches")
        graphs, sgd = client.execution.graphs, SGD(self.momentum, self.mu, rule.inner_lr, self.weight_decay)
        kept = graphs if isinstance(graphs, StepGraphs) else None
        return plan_training(rule.network, client.key.device, sgd, kept, client.train.x.dim() - 1)

    def plan_autograd(self, client: Client, start: Params, gradient: GradientFn) -> AutogradPlan | None:
        """How autograd trains these weights, of a block of clients at once; None where the rule is not known."""
        rule = _parse_rule(gradient)
        if rule is None or not _is_usual(rule, client.train.exact):
            return None
        held = {*start, *_find_fixed(gradient)}
        if held != {*rule.network.weights, *rule.network.buffers} or len({w.dtype for w in start.values()}) > 1:
            return None
        graphs = client.execution.autograd_graphs
        kept = graphs if isinstance(graphs, TrainingGraphs) else None
        optimiser = Optimiser(self.optimiser, self.momentum, self.mu, self.weight_decay, self.clip_norm)
        each = rule.network.probe(rule.network.template, client.train.x).activations
        return plan_autograd(rule, client.key.device, optimiser, kept, each * client.train.clip(self.batch_size))

    def train_by_autograd(
        self, plan: AutogradPlan, client: Client, start: Params, shift: Mapping[str, Tensor] = NOTHING,
        fixed: Mapping[str, Tensor] = NOTHING, rates: Tensor = SAME_RATE,
    ) -> Params:  # fmt: skip
        """The weights after training by this plan."""
        client.execution.reads.add(AUTOGRAD)
        rate_at = self._rate_by_step(client, rates)
        if client.train.exact:
            network = plan.rule.network
            draws = bool(network.probe(network.template, client.train.x).draws)
            batches = ((b, rate_at(step)) for step, b in enumerate(client.batches(*self.passes, draws=draws)))
            return train_module(plan, batches, start, shift, fixed)
        at, mask = client.schedule(self.epochs, self.batch_size, plan.batches_a_step, self.steps, self.drop_last)
        steps, own = torch.arange(len(at), device=at.device), client.train
        keys, lr = client.step_key(steps), rate_at(steps) * mask[:, plan.rule.inner_size :].any(1)
        lane = Lane(own.index[at], mask, keys, lr, start, shift, fixed, own.weights_at(at))
        return train_by_autograd(plan, own.x, own.y, lane)

    def _train_fast(self, plan: FastPlan, client: Client, start: Params, shift: Params) -> Params:
        client.execution.reads.add(FAST_PATH)
        pick, mask = client.pool_schedule(self.epochs, self.batch_size, plan.batches_a_step, self.steps, self.drop_last)
        keys = client.step_key(torch.arange(len(pick), device=pick.device))
        schedule = Schedule(client.train.x, client.train.y, pick, mask, keys)
        return train(plan, schedule, self.rate(client), start, {name: shift[name] for name in start if shift})

    def _train(self, client: Client, start: Params, gradient: GradientFn, rates: Tensor = SAME_RATE) -> Params:
        rate_at = self._rate_by_step(client, rates)
        params, moments = start, self._zero_moments(start)
        for step, batch in enumerate(client.batches(*self.passes), 1):
            weights, buffers = gradient(params, batch)
            if self.mu:
                weights = each_leaf(lambda g, w, w0: g + self.mu * (w - w0), weights, params, start)
            live = gradient.part(batch)[1].live if isinstance(gradient, MetaGradient) else batch.live
            lr = rate_at(step - 1) * live  # an empty batch moves nothing
            weights = self._regularise(params, weights)
            if self.optimiser == "adamw":
                params = params | {name: params[name] * (1 - lr * self.weight_decay) for name in weights}
            moments = self._update_moments(moments, weights)
            params = params | _step(params, lr, self._direction(moments, step)) | dict(buffers)
        return {name: params[name] for name in start}

    def rate(self, client: Client) -> Tensor:
        """The learning rate of the round the client is in."""
        t = client.round
        rise = ((t + 1) / self.warm_up).clamp(max=1.0) if self.warm_up else 1.0
        match self.schedule:
            case "step":
                return rise * self.lr * self.decay ** (t // self.schedule_rounds)
            case "cosine":
                done = (t / self.schedule_rounds).clamp(max=1.0)
                return rise * self.lr * 0.5 * (1 + torch.cos(torch.pi * done))
        return self.lr * self.decay**t * rise

    def _rate_by_step(self, client: Client, rates: Tensor) -> Callable[[int | Tensor], Tensor]:
        """The learning rate at each step: that of the round, or that of its epoch where `rates` has one for each."""
        if not len(rates):
            rate = self.rate(client)
            return lambda step: rate
        each = client.steps(1, self.batch_size, drop_last=self.drop_last).clamp(min=1)
        return lambda step: rates[(step // each).clamp(max=len(rates) - 1)]

    def most_steps(self, samples: Tensor) -> Tensor:
        """The steps, at most, of clients with so many samples: [clients]."""
        each = self.epochs * (samples / self.batch_size).ceil()
        return torch.full_like(each, self.steps) if self.steps else each

    @property
    def passes(self) -> tuple[int, int, int, bool]:
        """Which mini-batches a round has: what `Client.batches` takes."""
        return self.epochs, self.batch_size, self.steps, self.drop_last

    def effective_steps(self, client: Client) -> Tensor:
        """FedNova's ‖a‖₁: how far a weight whose gradient is always one would get, in learning rates.

        That is the number of steps for plain SGD; momentum makes it larger, and the proximal term smaller.
        """
        if self.optimiser == "sgd" and not self.clip_norm:
            pull = self.rate(client) * (self.mu + self.weight_decay)
            most = (self.steps or self.epochs * max(1, len(client.train))).bit_length()
            return weigh_steps(client.steps(*self.passes), self.momentum, pull, most)
        start = torch.zeros((), device=client.key.device)
        end, _ = self(client, {"w": start}, lambda params, batch: Gradient({"w": torch.ones_like(start)}))
        rate = self.rate(client)  # 0 at the end of a cosine, where nothing moves
        return torch.where(rate > 0, -end["w"] / rate.clamp(min=SMALLEST), client.steps(*self.passes))

    @property
    def outside_rounds(self) -> "LocalTraining":
        """The same training at the learning rate `lr`: what clients train outside of rounds follows no schedule."""
        return replace(self, decay=1.0, schedule="exponential", schedule_rounds=0, warm_up=0)

    def for_adaptation(self) -> "LocalTraining":
        """The training by which a client tunes the model it is served."""
        local = replace(self.outside_rounds, lr=self.adapt_lr or self.lr)
        return local.for_epochs(self.adapt_epochs) if self.adapt_epochs else local

    def for_epochs(self, epochs: int) -> "LocalTraining":
        """The same training with so many epochs."""
        return replace(self, epochs=epochs, steps=0)

    def _regularise(self, params: Params, gradient: Params) -> Params:
        """The gradient, clipped and with weight decay."""
        if self.clip_norm:
            norm = torch.stack([g.norm() for g in gradient.values()]).norm()
            scale = (self.clip_norm / (norm + 1e-6)).clamp(max=1)
            gradient = each_leaf(lambda g: g * scale, gradient)
        if self.weight_decay and self.optimiser != "adamw":
            gradient = each_leaf(lambda g, w: g + self.weight_decay * w, gradient, params)
        return gradient

    def _zero_moments(self, start: Params) -> list[Params]:
        return [each_leaf(torch.zeros_like, start) for _ in range(1 if self.optimiser == "sgd" else 2)]

    def _update_moments(self, moments: list[Params], gradient: Params) -> list[Params]:
        if self.optimiser == "sgd":
            return [each_leaf(lambda g, v: self.momentum * v + g, gradient, moments[0])]
        return [
            each_leaf(lambda g, m: 0.9 * m + 0.1 * g, gradient, moments[0]),
            each_leaf(lambda g, v: 0.999 * v + 0.001 * g * g, gradient, moments[1]),
        ]

    def _direction(self, moments: list[Params], step: int) -> Params:
        if self.optimiser == "sgd":
            return moments[0]
        first, second = 1 - 0.9**step, 1 - 0.999**step
        return each_leaf(lambda m, v: (m / first) / ((v / second).sqrt() + 1e-8), *moments)


def weigh_steps(steps: Tensor, momentum: float, pull: Tensor, bits: int) -> Tensor:
    """The way a after so many SGD steps (of at most so many bits): v ← momentum · v + 1 - pull · a, a ← a + v.

    A step is one product with a matrix, so all of them are its power, by squaring.
    """
    pull = pull.double()
    one, zero = torch.ones_like(pull), torch.zeros_like(pull)
    of_v, of_a, of_one = (momentum * one, -pull, one), (momentum * one, 1 - pull, one), (zero, zero, one)
    step = torch.stack([torch.stack(part) for part in (of_v, of_a, of_one)])
    state = torch.stack([zero, zero, one]).expand(*steps.shape, 3)
    for bit in range(bits):
        is_set = ((steps >> bit) & 1).bool()[..., None]
        state = torch.where(is_set, (step * state[..., None, :]).sum(-1), state)
        step = (step[:, :, None] * step).sum(1)
    return state[..., 1].float()


def _step(params: Params, lr: Tensor, direction: Params) -> Params:
    return {name: params[name] - lr * d for name, d in direction.items()}


@dataclass(frozen=True)
class ShiftedGradient:
    """A gradient plus a constant (SCAFFOLD's c - cᵢ)."""

    gradient: GradientFn
    shift: Params

    def __call__(self, params: Params, batch: Batch) -> Gradient:
        weights, buffers = self.gradient(params, batch)
        return Gradient(each_leaf(torch.add, weights, self.shift), buffers)


@dataclass(frozen=True)
class MetaGradient:
    """The first-order meta gradient of a pair of mini-batches, `size` samples and the rest: ∇f(w - α∇f(w; B); B').

    A pair without a second mini-batch has no gradient.
    """

    gradient: GradientFn
    alpha: float
    size: int

    def __call__(self, params: Params, pair: Batch) -> Gradient:
        first, second = self.part(pair)
        inner = self.gradient(params, first).weights
        if not len(second.x):
            return Gradient(each_leaf(torch.zeros_like, inner))
        return self.gradient(params | {name: params[name] - self.alpha * g for name, g in inner.items()}, second)

    def part(self, pair: Batch) -> tuple[Batch, Batch]:
        """The two mini-batches of a pair."""
        return pair.part(slice(self.size)), pair.part(slice(self.size, None))


def train_pairs(local: LocalTraining, client: Client, start: Params, meta: MetaGradient) -> Params:
    """The weights after Per-FedAvg's steps by one SGD: its momentum goes on from the inner step to the outer one."""
    plan = local.plan_autograd(client, start, meta)
    if plan:
        return local.train_by_autograd(plan, client, start)
    params, moment = start, each_leaf(torch.zeros_like, start)
    for pair in client.batches(*local.passes):
        first, second = meta.part(pair)
        if not len(second.x):
            continue
        inner = each_leaf(lambda g, v: local.momentum * v + g, meta.gradient(params, first).weights, moment)
        ahead = params | {name: params[name] - meta.alpha * v for name, v in inner.items()}
        weights, buffers = meta.gradient(ahead, second)
        weights = each_leaf(lambda g, w, w0: g + local.mu * (w - w0), weights, params, start)
        weights = local._regularise(params, weights)
        outer = each_leaf(lambda g, v: local.momentum * v + g, weights, inner)
        moment = each_leaf(lambda new, old, live=second.live: torch.where(live, new, old), outer, moment)
        params = params | _step(params, local.rate(client) * second.live, outer) | dict(buffers)
    return {name: params[name] for name in start}


@dataclass(frozen=True)
class LabelledGradient:
    """The gradient over the samples that have a label; by it a client that has none keeps its weights."""

    gradient: GradientFn

    def __call__(self, params: Params, batch: Batch) -> Gradient:
        known = batch.mask & is_known(batch.y)
        weights, buffers = self.gradient(params, batch._replace(y=fill_unknown(batch.y), mask=known))
        return Gradient(weights, {name: torch.where(known.any(), b, params[name]) for name, b in buffers.items()})


def _parse_rule(gradient: GradientFn) -> GradientRule | None:
    """The rule of a gradient, where whole blocks can train by it; the fast path leaves samples without a label out."""
    match gradient:
        case NetworkGradient(network) | ShiftedGradient(NetworkGradient(network), _):
            return GradientRule(network)
        case FixedGradient(NetworkGradient(network), _):
            return GradientRule(network)
        case LabelledGradient(NetworkGradient(network)) | LabelledGradient(FixedGradient(NetworkGradient(network), _)):
            return GradientRule(network, labelled=True)
        case MetaGradient(NetworkGradient(network), alpha, size):
            return GradientRule(network, inner_lr=alpha, inner_size=size)
    return None


def _find_fixed(gradient: GradientFn) -> Mapping[str, Tensor]:
    """The weights that a rule keeps fixed."""
    inner = gradient.gradient if isinstance(gradient, LabelledGradient) else gradient
    return inner.fixed if isinstance(inner, FixedGradient) else NOTHING


def _is_usual(rule: GradientRule, exact: bool) -> bool:
    """Whether a network computes its gradient, and without padding its output, as all do."""
    own = type(rule.network)
    takes_modules = own.forward is Network.forward and not rule.inner_lr
    return own.compute_gradient is Network.compute_gradient and (takes_modules or not exact)
