"""pFedMe (T. Dinh et al., NeurIPS 2020, Algorithm 1): a common model w, and personal ones that are each near it.

A client minimises the Moreau envelope of its loss, F(w) = min f(θ) + λ/2 ‖θ - w‖²: on each mini-batch K steps at rate
η_p find θ̃ from w, and w ← w - ηλ(w - θ̃). The server's w ← (1 - β)w + β·mean is `server.lr` = β. Deviations: steps come
in epochs (paper: R drawn mini-batches), only sampled clients train (paper: all do, and the sampled are averaged), and
means are weighted by samples. A client uses θ, found anew from the model it is served by some proximal epochs at rate
η_p (authors' code keeps the last θ̃, but overwrites it by w before it is tested); without labels it uses w.
`begin="last"` is the authors' code, where the search for θ̃ goes on from the last mini-batch's, and begins at w once;
that code's inner steps also have a weight decay of 0.001.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from kinfed.checks import above_zero, at_least, one_of
from kinfed.client import Batch, Client, Reply, client_task
from kinfed.errors import ConfigError
from kinfed.methods.one_model import AggregateOver, Averaged
from kinfed.methods.server_optimiser import ServerOptimiser
from kinfed.models import Gradient, Model
from kinfed.params import NOTHING, Params, Payload, from_flat, model_in, to_flat
from kinfed.training import SMALLEST, LabelledGradient, LocalTraining


@dataclass(frozen=True)
class PFedMe(Averaged):
    """One model for all from which each client's own, held near it, is found by a few steps."""

    model: Model
    local: LocalTraining = LocalTraining()
    pull: float = 15.0  # λ, how strongly θ is held near w
    inner_steps: int = 5  # K, to find θ̃ on a mini-batch
    inner_lr: float = 0.1  # η_p, of these steps
    begin: Literal["w", "last"] = "w"  # where the search for θ̃ begins on a mini-batch: at w, or at the last one's θ̃
    adapt_epochs: int = 1  # of the search for θ before a client uses it; 0: it uses w
    aggregate_over: AggregateOver = "participants"  # all_clients: those who were not asked count with the old model
    server: ServerOptimiser = ServerOptimiser()

    sgd_reason: ClassVar[str] = "pFedMe has plain SGD: training.lr is its rate, and inner_lr that of the inner steps"

    def __post_init__(self) -> None:
        above_zero(pull=self.pull, inner_lr=self.inner_lr)
        at_least(1, inner_steps=self.inner_steps)
        at_least(0, adapt_epochs=self.adapt_epochs)
        one_of(("w", "last"), begin=self.begin)
        if self.begin == "last" and (self.local.mu or self.local.weight_decay or self.local.clip_norm):
            raise ConfigError("begin = 'last' is for plain SGD: set training's mu, weight_decay and clip_norm to 0")

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        """Client task: w after a step for every mini-batch."""
        plain = replace(self.local, momentum=0.0, optimiser="sgd")
        if self.begin == "w":
            return Reply({"params": plain(client, params, self.envelope_gradient)[0]})
        rate = plain.rate(client).clamp(min=SMALLEST)  # 0 at the end of a cosine

        def gradient(both: Params, batch: Batch) -> Gradient:
            w, last = (model_in(from_flat(both), name) for name in ("w", "near"))
            near, statistics = self.find_near(last, w, batch)
            move = {name: (last[name] - weight) / rate for name, weight in near.items()}  # a step of SGD to θ̃
            weights = to_flat({"w": self.pull_back(w, near), "near": move})
            return Gradient(weights, to_flat({"w": statistics, "near": statistics}))

        both, _ = plain(client, to_flat({"w": params, "near": params}), gradient)
        return Reply({"params": model_in(from_flat(both), "w")})

    def envelope_gradient(self, params: Params, batch: Batch) -> Gradient:
        """∇F on a mini-batch: λ(w - θ̃)."""
        near, statistics = self.find_near(params, params, batch)
        return Gradient(self.pull_back(params, near), statistics)

    def find_near(self, start: Params, params: Params, batch: Batch) -> tuple[Params, Mapping[str, Tensor]]:
        """The weights θ̃ after K steps from a start, held near w, and the buffers after them."""
        near, statistics = start, NOTHING
        for _ in range(self.inner_steps):
            weights, statistics = self.model.gradient(near | dict(statistics), batch)
            gradient = {name: g + self.pull * (near[name] - params[name]) for name, g in weights.items()}
            near = near | {name: near[name] - self.inner_lr * g for name, g in gradient.items()}
        return {name: near[name] for name in weights}, statistics

    def pull_back(self, params: Params, near: Params) -> Params:
        """λ(w - θ̃)."""
        return {name: self.pull * (params[name] - weight) for name, weight in near.items()}

    def personalise(self, client: Client, offer: Payload) -> Params:
        params = model_in(offer, "params")
        if not self.adapt_epochs:
            return params
        inner = LocalTraining(self.adapt_epochs, self.local.batch_size, self.inner_lr, momentum=0.0, mu=self.pull)
        return inner(client, params, LabelledGradient(self.model.gradient))[0]
