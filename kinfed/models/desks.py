"""Where the stages of a network work on a GPU, and one step of all lanes there, in kernels of our own."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfed.models.stages import Fitted, Framed, Moving


@dataclass(frozen=True)
class Desk:
    """Where a stage works: what it sees, what it makes, and the slopes of both."""

    fit: Fitted
    x: Framed  # what it sees; that of the first stage is only a picture of its shape
    made: Framed  # by its layer; the next one's x, unless a pooling comes between
    y: Framed  # after the pooling, the next one's x
    where: Tensor  # what a pooling took
    slope: Framed  # of `made`
    slope_after: Framed  # of `y`; the same, unless a pooling or a flattening comes between
    masks: bool  # whether what it sees came out of a ReLU

    @property
    def sees(self) -> Framed:
        """What it sees, as its layer takes it."""
        return self.x.flat() if self.fit.stage.is_linear else self.x


def desks_of(fits: list[Fitted], like: Tensor) -> list[Desk]:
    """A desk for each stage of a network, for lanes and rows as in `like`."""
    desks: list[Desk] = []
    seen = [Framed.of(like, fit.sees, fit.stage.pad) for fit in fits]
    ends = Framed.of(like, fits[-1].leaves)
    for i, (fit, y) in enumerate(zip(fits, [*seen[1:], ends], strict=True)):
        made = Framed.of(like, fit.makes) if fit.stage.pool > 1 else y
        where = like.new_empty(*like.shape, *fit.leaves, dtype=torch.uint8) if fit.stage.pool > 1 else like
        slope = Framed.of(like, fit.makes, fit.reach if i else 0) if fit is not fits[-1] else made
        is_same = fit.stage.pool == 1 and (slope.frame == 0 or not fits[i + 1].stage.is_linear)
        after = slope if is_same else Framed.of(like, fit.leaves)
        desks.append(Desk(fit, seen[i], made, y, where, slope, after, i > 0 and fits[i - 1].stage.relu))
    return desks


def step_from(
    at: list[Moving], weights: list[Moving], desks: list[Desk], images: Tensor, y: Tensor, share: Tensor, stride: Tensor
) -> None:
    """Moves the weights of every lane down the slope that its batch has at `at`, mostly the weights themselves.

    The images are [lanes, b, height, width, channels], framed.
    """
    from kinfed.models import kernels  # Triton's own import is heavy, and needs a GPU

    desks = [replace(desks[0], x=Framed(images, desks[0].x.frame)), *desks[1:]]
    for desk, here in zip(desks, at, strict=True):
        kernels.convolve(desk.fit.stage, desk.sees, here.now, desk.made, stride)
        if desk.fit.stage.pool > 1:
            kernels.pool(desk.fit.stage, desk.made, desk.y, desk.where)
    kernels.surprise(desks[-1].y.images, y, share)
    for i, desk in reversed(list(enumerate(desks))):
        stage, before = desk.fit.stage, desks[i - 1] if i else None
        if stage.pool > 1:
            kernels.unpool(stage, desk.slope_after, desk.where, desk.slope)
        elif desk.slope_after is not desk.slope:
            desk.slope.fill(desk.slope_after)
        if before:
            onto = before.slope_after.flat() if stage.is_linear else before.slope_after
            kernels.convolve_back(stage, desk.slope, at[i].now, onto, desk.sees if desk.masks else None, stride)
        kernels.learn(stage, desk.sees, desk.slope, weights[i], stride)
