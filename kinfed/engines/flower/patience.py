"""How long a server waits for clients of a network, and how soon it asks silent ones again."""

from dataclasses import dataclass
from math import ceil

from kinfed.checks import above_zero, at_least, fraction


@dataclass(frozen=True)
class Patience:
    """How long the server waits for replies, and how soon it asks a silent client again."""

    timeout: float = 600.0  # seconds that clients have for a task
    attempts: int = 2  # how often a silent client is asked, before the first round
    quorum: float = 1.0  # share of the asked clients; when it has replied, the deadline of the others is set
    grace: float = 0.0  # seconds from then on to the deadline; as long again as the quorum took, if that is more
    max_rest: int = 0  # tasks that a silent client is left out of at most: 1, 3, 7, … as it stays silent

    def __post_init__(self) -> None:
        above_zero(timeout=self.timeout)
        at_least(1, attempts=self.attempts)
        fraction(quorum=self.quorum)
        at_least(0, grace=self.grace, max_rest=self.max_rest)

    def deadline(self, began: float, now: float, asked: int, replied: int) -> float:
        """When a task ends that began then, where so many of the asked clients have replied by now."""
        if replied < ceil(self.quorum * asked):
            return began + self.timeout
        return min(began + self.timeout, now + max(self.grace, now - began))

    def rest(self, misses: int) -> int:
        """Tasks that a client is left out of after so many in a row without a reply."""
        return min((1 << min(misses, 30)) - 1, self.max_rest)
