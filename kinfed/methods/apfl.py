"""APFL: Adaptive Personalized Federated Learning (Deng et al., 2020, arXiv 2003.13461, Algorithm 1).

A client uses αv + (1 - α)w: its own model v mixed with the common one. A step moves w along ∇f(w), and v along
α∇f(αv + (1 - α)w), on the same mini-batch. α follows its gradient ⟨v - w, ∇f(αv + (1 - α)w)⟩ by one step a round, on
the first mini-batch, as in the authors' code (paper: each step). Deviations: parameters are mixed, as in the paper
(authors' code: outputs); α is clipped to [0, 1] and has no decay (authors' code: 0.02α); means are weighted by samples;
v starts from the model that a client receives when it first trains.
`variant="pfllib"` is what PFLlib's code does, and its published numbers with it: v moves along ∇f(v), α follows
⟨v - w, α∇f(v) + (1 - α)∇f(w)⟩ + 0.02α at every step, and at the end of a round v becomes the mixture, which is used.
It has no momentum there: set `training.momentum` to 0.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Literal, cast

import torch
from torch import Tensor

from kinfed.checks import fraction, one_of
from kinfed.client import Batch, Client, Reply, client_task
from kinfed.methods.one_model import AggregateOver, KeepsModel
from kinfed.methods.server_optimiser import ServerOptimiser
from kinfed.models import Gradient, Model
from kinfed.params import Params, Payload, Value, from_flat, interpolate, model_in, to_flat
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class APFL(KeepsModel):
    """Each client mixes the common model with one of its own, and learns how much of either it needs."""

    model: Model
    local: LocalTraining = LocalTraining()
    alpha: float = 0.5  # α, the share of the own model; at first if it is adaptive
    adaptive: bool = True  # each client learns its α
    variant: Literal["paper", "pfllib"] = "paper"  # pfllib: the own model trains by itself, then becomes the mixture
    aggregate_over: AggregateOver = "participants"  # all_clients: those who were not asked count with the old model
    server: ServerOptimiser = ServerOptimiser()

    def __post_init__(self) -> None:
        fraction(alpha=self.alpha)
        one_of(("paper", "pfllib"), variant=self.variant)

    def initial_memory(self) -> dict[str, Value]:
        return super().initial_memory() | {"alpha": torch.tensor(self.alpha)}

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        """Client task: w and v side by side, as one training of both."""
        own = self.recall_own(client, params)
        if self.variant == "pfllib":
            return self.train_apart(client, params, own)
        alpha = self.adapt(client, own, params)

        def gradient(both: Params, batch: Batch) -> Gradient:
            w, v = (model_in(from_flat(both), name) for name in ("common", "own"))
            common, mixed = self.model.gradient(w, batch), self.model.gradient(interpolate(w, v, alpha), batch)
            moved = {name: alpha * g for name, g in mixed.weights.items()}
            buffers = to_flat({"common": common.buffers, "own": mixed.buffers})
            return Gradient(to_flat({"common": common.weights, "own": moved}), buffers)

        both = from_flat(self.local(client, to_flat({"common": params, "own": own}), gradient)[0])
        keep = self.keep_own(client, model_in(both, "own")) | {"alpha": alpha}
        return Reply({"params": model_in(both, "common")}, keep=keep)

    def adapt(self, client: Client, own: Params, params: Params) -> Tensor:
        """Client: α after its step of this round."""
        alpha = client.recall("alpha")
        for batch in islice(client.batches(1, self.local.batch_size), 1 if self.adaptive else 0):
            mixed = self.model.gradient(interpolate(params, own, alpha), batch).weights
            gradient = torch.stack([((own[name] - params[name]) * g).sum() for name, g in mixed.items()]).sum()
            alpha = (alpha - self.local.rate(client) * batch.live * gradient).clamp(0, 1)
        return alpha

    def train_apart(self, client: Client, params: Params, own: Params) -> Reply:
        """Client: PFLlib's training, w, v and α as one."""
        rate = self.local.rate(client).clamp(min=1e-12)

        def gradient(three: Params, batch: Batch) -> Gradient:
            payload, alpha = from_flat(three), three["alpha"]
            w, v = (model_in(payload, name) for name in ("common", "own"))
            common, alone = self.model.gradient(w, batch), self.model.gradient(v, batch)
            pairs = [(v[name] - w[name], alone.weights[name], common.weights[name]) for name in common.weights]
            products = [((gap - rate * (a - c)) * (alpha * a + (1 - alpha) * c)).sum() for gap, a, c in pairs]
            of_alpha = self.adaptive * (torch.stack(products).sum() + 0.02 * alpha)  # once w and v have moved
            step = (alpha - (alpha - rate * of_alpha).clamp(0, 1)) / rate
            buffers = to_flat({"common": common.buffers, "own": alone.buffers})
            return Gradient(to_flat({"common": common.weights, "own": alone.weights, "alpha": step}), buffers)

        start = to_flat({"common": params, "own": own, "alpha": client.recall("alpha")})
        ends = from_flat(self.local(client, start, gradient)[0])
        w, alpha = model_in(ends, "common"), cast("Tensor", ends["alpha"]).clamp(0, 1)  # momentum may leave them
        mixed = interpolate(w, model_in(ends, "own"), alpha)
        return Reply({"params": w}, keep=self.keep_own(client, mixed) | {"alpha": alpha})

    def personalise(self, client: Client, offer: Payload) -> Params:
        params = model_in(offer, "params")
        if self.variant == "pfllib":
            return self.recall_own(client, params)
        return interpolate(params, self.recall_own(client, params), client.recall("alpha"))
