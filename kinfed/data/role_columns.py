"""Roles of all clients as columns: who trains, who is there from when on."""

from typing import NamedTuple

import torch
from torch import Tensor

from kinfed.data.population import Role


class RoleColumns(NamedTuple):
    """What roles say, column by column, for questions that are asked in every round."""

    roles: tuple[Role, ...]
    joins: Tensor  # [clients], the round each enters
    trains: Tensor  # [clients] bool
    labelled: Tensor
    real: Tensor  # not a look-alike

    @classmethod
    def of(cls, roles: tuple[Role, ...]) -> "RoleColumns":
        """The columns of these roles."""
        real = [role.look_alike_of is None for role in roles]
        traits = [role.trains for role in roles], [role.labelled for role in roles], real
        return cls(roles, torch.tensor([role.joins for role in roles]), *(torch.tensor(t) for t in traits))
