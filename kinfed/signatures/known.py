"""What the server knows of the clients: one signature each."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfed.federation import Replies
from kinfed.per_client import Each


@dataclass(frozen=True)
class Signatures:
    centroids: Each  # [clients, k, e]
    shares: Each  # [clients, k] of the client's rows; all 0 for a client that is not described

    def __len__(self) -> int:
        return len(self.shares)

    @staticmethod
    def none(clients: int, k: int, width: int, device: torch.device) -> "Signatures":
        """Nobody is described yet."""
        return Signatures(torch.zeros(clients, k, width, device=device), torch.zeros(clients, k, device=device))

    def of(self, clients: Tensor) -> "Signatures":
        """The signatures of these clients."""
        return Signatures(self.centroids[clients], self.shares[clients])

    def parts(self, size: int) -> list["Signatures"]:
        """These signatures cut into parts of so many clients."""
        both = zip(self.centroids.split(size), self.shares.split(size), strict=True)
        return [Signatures(points, shares) for points, shares in both]

    def learnt(self, replies: Replies) -> "Signatures":
        """With the signatures that these clients sent; without shares, all centroids weigh the same."""
        points = replies["centroids"]
        shares = replies["shares"] if "shares" in replies.send else torch.full_like(points[..., 0], 1 / points.shape[1])
        who = replies.cohort
        return Signatures(self.centroids.index_copy(0, who, points), self.shares.index_copy(0, who, shares))

    def are_described(self) -> Tensor:
        """Who is described: bool [clients]."""
        return self.shares.sum(1) > 0

    def means(self) -> Tensor:
        """The mean of each client's rows in latent space: [clients, e]."""
        return (self.centroids * self.shares[..., None]).sum(1)
