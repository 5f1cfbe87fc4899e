"""Joint training: several runs of one process train their clients on a GPU in the same kernels.

A step of a small network is a row of short kernels, which ten clients do not fill. Runs in processes of their own share
the GPU's time; here they share its kernels.

Each run has a thread, and one of them goes on at a time: it hands the turn on where its clients train, until all runs
have come that far (but for those that train in other ways, which hand it on once a round). Then those that train alike,
with the same layers, batch size and momentum, become lanes of one training. Learning rates, samples, lengths and terms
beside the gradient (of FedProx, SCAFFOLD) may differ. Lanes do not know of each other, so a run has the numbers that
it has alone.
"""

import logging
import sys
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import accumulate
from threading import Condition, Lock, get_ident
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from kinfed.fastpath.gpu_training import StepBatches, StepGraphs, Training
from kinfed.threads import FairLock

LOG = logging.getLogger("kinfed.fastpath")
LANES = 16  # of which a joint training has a multiple, so that its graphs serve other cohorts
CURRENT: ContextVar["JointTraining | None"] = ContextVar("joint training", default=None)


@dataclass
class Asked:
    """A training that a run waits for."""

    training: Training
    tf32: bool  # the precision of its products
    ends: list[Tensor] | None = None
    is_done: bool = False  # without an end: it has to train by itself


@dataclass
class Part:
    """A run that takes part."""

    asked: Asked | None = None  # the training that it waits for
    trained: bool = True  # with the others, in this round
    is_apart: bool = False  # it trained alone in the round before: the others do not wait for it

    @property
    def is_waiting(self) -> bool:
        """Whether it goes on only when its clients have trained."""
        return self.asked is not None and not self.asked.is_done


@dataclass
class JointTraining(StepGraphs):
    """Where runs wait for each other to train together; engines use it as their `StepGraphs`."""

    turn: Condition = field(default_factory=lambda: Condition(cast("Lock", FairLock())))  # who holds it goes on
    runs: dict[int, Part] = field(default_factory=dict)  # by their threads
    pools: "dict[Hashable, SharedPool]" = field(default_factory=dict)  # by the shape of their samples
    most: int = sys.maxsize  # runs for whose training there is room
    is_over: bool = False
    joined: int = 0  # trainings that were lanes of another one

    @contextmanager
    def take_part(self) -> Iterator[None]:
        """Inside it this thread's run trains with the others."""
        self._check()
        thread = get_ident()
        self.runs[thread] = Part()  # from now on the others wait for it
        with self.turn:
            token = CURRENT.set(self)
            try:
                yield
            finally:
                CURRENT.reset(token)
                del self.runs[thread]
                self._train_if_all_wait()
                self.turn.notify_all()

    def begin_round(self) -> None:
        """Begins a round of this thread's run; one that trained alone in the last round lets the others go on."""
        part = self.runs.get(get_ident())
        if part is None:
            return
        part.is_apart, part.trained = not part.trained, False
        if part.is_apart:
            self._check()
            self._train_if_all_wait()
            with keep_precision():
                self.turn.release()  # to whoever has waited longest
                self.turn.acquire()

    def stop(self) -> None:
        """Interrupts every run where it trains next, as Ctrl-C does, and waits for all of them."""
        self.is_over = True
        with self.turn:
            for each in self._find_waiting():
                each.is_done = True
            self.turn.notify_all()
            self.turn.wait_for(lambda: not self.runs)

    def run(self, training: Training) -> list[Tensor]:
        """The weights of all lanes after all steps, trained with those of the other runs."""
        self._check()
        asked = Asked(training, torch.backends.cuda.matmul.allow_tf32)
        part = self.runs[get_ident()]
        part.asked, part.trained = asked, True
        self._train_if_all_wait()
        with keep_precision():
            self.turn.wait_for(lambda: asked.is_done)
        part.asked = None
        self._check()
        return super().run(training) if asked.ends is None else asked.ends

    def clear(self) -> None:
        """Gives all memory back."""
        super().clear()
        self.pools.clear()

    def _check(self) -> None:
        if self.is_over:
            raise KeyboardInterrupt

    def _find_waiting(self) -> list[Asked]:
        return [part.asked for part in list(self.runs.values()) if part.asked and part.is_waiting]

    def _train_if_all_wait(self) -> None:
        if not all(part.is_waiting or part.is_apart for part in list(self.runs.values())):
            return
        waiting = self._find_waiting()
        groups: dict[Hashable, list[Asked]] = {}
        most = self.most
        for each in waiting:
            groups.setdefault((each.training.kind, each.tf32), []).append(each)
        try:
            for group in groups.values():
                for begin in range(0, len(group), most):
                    part = group[begin : begin + most]
                    if len(part) > 1 and not self.is_over:
                        self._train(part)
        finally:
            for each in waiting:
                each.is_done = True
            self.turn.notify_all()

    def _train(self, group: Sequence[Asked]) -> None:
        """Trains a group as one; where that fails, each has to train by itself.

        No error of the group is that of the run whose thread this is. Where memory was short, half as many train
        together from then on.
        """
        trainings = [each.training for each in group]
        x = trainings[0].x
        pool = self.pools.setdefault((x.shape[1:], x.dtype, x.device), SharedPool())
        try:
            with torch.no_grad(), torch.cuda.device_of(x), keep_precision(group[0].tf32):
                ends = super().run(join(trainings, pool))
        except torch.OutOfMemoryError:
            self.most = max(1, len(group) // 2)
            LOG.warning("no room for %d runs that train together; %d at once from now on", len(group), self.most)
            self.clear()
            return
        except Exception as error:  # kernels, compilers and networks of the user's own may raise anything
            LOG.debug("%d runs train one by one: %s", len(group), " ".join(str(error).split()) or type(error).__name__)
            self.clear()
            return
        lanes = [len(each.taken) for each in trainings]
        parts = zip(*(end[: sum(lanes)].split(lanes) for end in ends), strict=True)
        for each, part in zip(group, parts, strict=True):
            each.ends = list(part)
        self.joined += len(group)


@dataclass
class SharedPool:
    """The samples of several runs in one tensor."""

    whole: Tensor | None = None
    begins: dict[int, int] = field(default_factory=dict)  # by the address of a run's own samples
    parts: list[Tensor] = field(default_factory=list)  # these, so that their addresses stay theirs
    asked: set[int] = field(default_factory=set)  # addresses of those that were asked for since it was made

    def take(self, own: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
        """One tensor that has all of these samples, and where each one's begin.

        Where it lacks some it is made anew, with those that others ask for in turn, so that it serves all of them.
        """
        if self.whole is None or any(x.data_ptr() not in self.begins for x in own):
            others = [x for x in self.parts if x.data_ptr() in self.asked]
            self.parts = list({x.data_ptr(): x for x in (*others, *own)}.values())
            begins = accumulate((len(x) for x in self.parts), initial=0)
            self.begins = dict(zip((x.data_ptr() for x in self.parts), begins, strict=False))
            self.whole = self.parts[0] if len(self.parts) == 1 else torch.cat(self.parts)
            self.asked.clear()
        self.asked |= {x.data_ptr() for x in own}
        return self.whole, [self.begins[x.data_ptr()] for x in own]


def join(trainings: Sequence[Training], pool: SharedPool) -> Training:
    """One training of all lanes of these; lanes at its end that take no step make their number round."""
    x, begins = pool.take([each.x for each in trainings])
    steps = max(len(each.batches.lr) for each in trainings)
    spare = -sum(len(each.taken) for each in trainings) % LANES

    def join_lanes(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
        first = parts[0].narrow(dim, 0, 1)
        return torch.cat([*parts, *[first] * spare], dim)

    batches = [
        each.batches._replace(pick=each.batches.pick + begin).pad_to(steps)
        for each, begin in zip(trainings, begins, strict=True)
    ]
    whole = StepBatches(*(join_lanes(parts, 1) for parts in zip(*batches, strict=True)))
    if spare:
        whole = whole._replace(lr=pad(whole.lr[:, :-spare], (0, spare)))
    have_terms = any(each.terms for each in trainings)
    own_terms = [each.terms or [torch.zeros_like(w) for w in each.starts] for each in trainings if have_terms]
    starts, terms = (
        [join_lanes(parts) for parts in zip(*each, strict=True)] for each in ([t.starts for t in trainings], own_terms)
    )
    taken = pad(torch.cat([each.taken for each in trainings]), (0, spare))
    pull = join_lanes([each.pull for each in trainings])
    return replace(trainings[0], x=x, starts=starts, terms=terms, pull=pull, batches=whole, taken=taken)


@contextmanager
def keep_precision(tf32: bool = False) -> Iterator[None]:
    """Inside it products have this precision, on all threads; afterwards the one from before."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def find_step_graphs() -> StepGraphs:
    """Where an engine's trainings run: with those of other runs, if its thread takes part in a joint training."""
    return CURRENT.get() or StepGraphs()


def begin_round() -> None:
    """Begins a round of this thread's run, where it takes part in a joint training."""
    if joint := CURRENT.get():
        joint.begin_round()
