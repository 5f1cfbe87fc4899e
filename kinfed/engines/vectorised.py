"""The embedded default: clients train in blocks, each block in one `vmap`.

Data stay on the device as bytes; a block holds sample numbers only. Blocks are cut from clients of similar length and
bounded memory. On a CPU several workers may take blocks at once. On a GPU a block whose shape comes again becomes a
CUDA graph; clients of uneven size that train by the fast path share one block, and a few of its steps become a graph.
Nothing a client computes depends on its block: see `Samples` for how padding is kept out, and `run_at_once` for the
cores. A task that reads test samples alone runs once for clients with the same test samples; on a CPU those that
several clients have are evaluated once for each model (`shared_outputs`).
"""

import gc
import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Literal, cast, get_args

import torch
from torch import Tensor
from torch.func import vmap

from kinfed.capabilities import SelectsModel
from kinfed.client import ASKS_GPU, AUTOGRAD, FAST_PATH, Client, Execution, KnownOutputs, Samples, call_task, mark_of
from kinfed.client_tasks import find_task, is_sequential
from kinfed.cuda_graphs import CudaGraphs, finish_before_exit, reserve_for_captures
from kinfed.data.population import Change, Population
from kinfed.engines.blocks import (
    Block,
    BlockSizes,
    Bounds,
    Cut,
    SampleTable,
    bytes_of_activations,
    bytes_of_weights,
    is_not_vectorised,
    is_too_large,
)
from kinfed.engines.resident import Resident
from kinfed.engines.sequential import loop
from kinfed.engines.shared_outputs import TestSamples, may_share, share_outputs
from kinfed.engines.workers import (
    SAMPLES,
    SLOW,
    ExecutionPlan,
    ProgressLog,
    candidate_plans,
    cores,
    run_at_once,
    subset,
    time_plans,
)
from kinfed.errors import ConfigError, SequentialOnly, shorten_refusal
from kinfed.fastpath import LEAST, JointTraining, StepGraphs, TrainingGraphs, find_step_graphs, supports
from kinfed.federation import Offer
from kinfed.gpu_memory import give_back, keep_to_limit
from kinfed.method import Method
from kinfed.models import Network
from kinfed.models.network import BFLOAT16
from kinfed.params import Params, Payload, Stack, from_flat, join_in_order, select, to_flat

LOG = logging.getLogger("kinfed.engines")
Precision = Literal["float32", "tf32", "bf16"]  # of the products that clients compute on a GPU
MOST_GRAPHS = 48  # of blocks; each holds the memory of its inputs and outputs
WARNS = "_set_vmap_fallback_warning_enabled"  # of operations that loop over clients; it asks users for bug reports
EVERYTHING = frozenset({"train", "test", "key", "round", "since", "memory"})  # what a task may read


@contextmanager
def multiply_in(precision: Precision) -> Iterator[None]:
    """Inside it products on a GPU have this precision: TF32 has 10 bits instead of 23, bfloat16 has 7."""
    matrices, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before, token = (matrices.allow_tf32, convolutions.allow_tf32), BFLOAT16.set(precision == "bf16")
    matrices.allow_tf32 = convolutions.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        BFLOAT16.reset(token)
        matrices.allow_tf32, convolutions.allow_tf32 = before


class Vectorised(Resident):
    """Cohorts cut into blocks, each block one vmap; a task that vmap refuses runs sequentially, with a warning."""

    def __init__(
        self,
        method: object,
        population: Population,
        *,
        fraction: float = 1.0,
        seed: int = 0,
        device: str = "cpu",
        block: int = 0,
        workers: int = 1,
        sequential: bool = False,
        precision: Precision = "float32",
    ) -> None:
        if block < 0 or workers < 0:
            raise ConfigError(
                "block must be at least 1, or 0 to choose by memory, and workers at least 1, or 0 to autotune, "
                f"got {block} and {workers}"
            )
        if precision not in get_args(Precision):
            raise ConfigError(f"precision must be one of {', '.join(get_args(Precision))}, got '{precision}'")
        super().__init__(method, population, fraction=fraction, seed=seed, device=device)
        getattr(torch._C._functorch, WARNS)(False)
        self.block, self.precision = block, precision
        self.on_gpu = self.device.type == "cuda"
        self.tunes = not workers and not self.on_gpu  # a GPU takes one block after the other
        self.plan = ExecutionPlan(1 if self.on_gpu else workers or cores(), sequential)  # where none was tuned
        self.slow: set[str] = set()  # tasks that take long enough to be tuned
        self.tuned: dict[str, ExecutionPlan] = {}  # task -> the plan that was fastest
        if self.on_gpu:
            gc.collect()  # an engine before this one may have left graphs, and their memory
            finish_before_exit(self.device)
            reserve_for_captures(self.device)
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self.block_sizes = BlockSizes(self.device, block)
        self.graphs, self.step_graphs, self.training_graphs = (
            CudaGraphs(MOST_GRAPHS),
            find_step_graphs(),
            TrainingGraphs(),
        )
        self.tables: dict[str, SampleTable] = {}
        self.arrived: Tensor | None = None
        self.fallbacks: set[str] = set()  # tasks that vmap refuses
        self.reads: dict[tuple[str, ...], set[str]] = {}  # task and what it is offered -> what it reads of a client
        self.tests: TestSamples | None = None
        self.outputs: KnownOutputs | None = None  # of test samples that clients share, while they evaluate
        self.layouts: dict[str, str] = {}  # task -> how its latest cohort was cut, in words

    def _run(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> tuple[Payload, Payload]:
        here = torch.cuda.device(self.device) if self.on_gpu else nullcontext()  # where kernels are launched
        with here, multiply_in(self.precision):  # never for what the server does with the replies
            try:
                answer = self._run_task(name, cohort, keys, offer)
            finally:
                self.outputs = None
            give_back(self.device)
            return answer

    def _run_task(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> tuple[Payload, Payload]:
        task, _ = find_task(self.method, name), self.names  # found before a CUDA graph is captured
        if name in self.fallbacks or is_sequential(task) or not len(cohort):
            return loop(self, name, cohort, keys, offer, serialises=False)
        self.outputs = self._share_outputs(name, cohort, offer)
        if name in self.slow and name not in self.tuned and self.outputs is None:  # what comes once is not tuned
            self.tuned[name] = self._tune(name, cohort, keys, offer)
        plan = self._plan(name)
        if plan.sequential and self.outputs is None:
            return loop(self, name, cohort, keys, offer, plan.workers, serialises=False)
        began = time.process_time()  # others on the machine make no task slow
        try:
            answer = self._run_once_per_test_set(name, cohort, keys, offer)
        except (SequentialOnly, RuntimeError) as error:
            if not _may_run_sequentially(error):
                raise
            refusal = error.with_traceback(None)  # its frames would hold what the block had in memory
        else:
            if self.tunes and time.process_time() - began > SLOW:
                self.slow.add(name)
            return answer
        return self._fall_back(name, cohort, keys, offer, refusal)

    def _share_outputs(self, name: str, cohort: Tensor, offer: Offer) -> KnownOutputs | None:
        """What the models of a cohort make of test samples that it shares; the model of each client is [clients]."""
        mark = mark_of(find_task(self.method, name))
        if mark is None or not mark.takes_outputs:
            return None
        method, workers = cast("Method[object]", self.method), self._plan(name).workers
        self.tests = self.tests or TestSamples(self.test, self.device)
        try:
            known = share_outputs(method, offer, self.x, self.tests, cohort.tolist(), workers)
        except torch.OutOfMemoryError:  # each client evaluates its own, in blocks
            return None
        if known is None or known.model is None:
            return known
        model = torch.zeros(self.count, dtype=torch.long, device=self.device)
        return known._replace(model=model.index_copy(0, cohort, known.model.to(self.device)))

    @property
    def evaluates_once(self) -> bool:
        if self.on_gpu and isinstance(self.method, SelectsModel):
            return False
        return may_share(cast("Method[object]", self.method))

    def _fall_back(
        self, name: str, cohort: Tensor, keys: Tensor, offer: Offer, refusal: Exception
    ) -> tuple[Payload, Payload]:
        if isinstance(refusal, torch.OutOfMemoryError):
            self._drop_graphs()  # they hold memory; and what failed in its first call has not warmed up
        answer = loop(self, name, cohort, keys, offer, serialises=False)
        reason = shorten_refusal(refusal)
        if self.on_gpu and isinstance(refusal, torch.OutOfMemoryError):
            reason = f"GPU memory is full even for blocks of {LEAST} clients"
        warnings.warn(f"{reason}: clients {_verb(name)} sequentially", stacklevel=5)
        if not isinstance(refusal, torch.OutOfMemoryError):  # others may have left room next time
            self.fallbacks.add(name)
        return answer

    def _plan(self, name: str) -> ExecutionPlan:
        return self.tuned.get(name, self.plan)

    def _tune(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> ExecutionPlan:
        """The plan that was fastest for a few clients of this cohort, a few of their samples each."""
        few = torch.arange(0, len(cohort), -(-len(cohort) // (4 * self.plan.workers)))
        clients, memory = subset(self, cohort[few].tolist()), self.memory_of(cohort[few])

        def run(plan: ExecutionPlan) -> object:
            twin = Vectorised(self.method, clients, block=self.block, workers=plan.workers, sequential=plan.sequential)
            twin.memory, twin.round, twin.since = memory, self.round, self.since[cohort[few]]
            return twin._run(name, twin.everyone, keys[few], offer.to(few))

        model = getattr(self.method, "model", None)
        fast = "train" in self._reads(name, offer) and isinstance(model, Network) and supports(model, self.device)
        plan, seconds = time_plans({plan: partial(run, plan) for plan in candidate_plans(self.plan.workers, fast)})
        timings = ", ".join(f"{plan} {1000 * took:.0f} ms" for plan, took in seconds.items())
        LOG.debug("autotuned '%s': %s (%d clients, up to %d samples: %s)", name, plan, len(few), SAMPLES, timings)
        return plan

    def state_dict(self) -> dict[str, object]:
        return {"plans": {name: list(plan) for name, plan in self.tuned.items()}, "slow": sorted(self.slow)}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        plans = cast("dict[str, tuple[int, bool]]", state_dict.get("plans", {}))
        self.tuned = {name: ExecutionPlan(*plan) for name, plan in plans.items()}
        self.slow = set(cast("list[str]", state_dict.get("slow", [])))

    def _run_once_per_test_set(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> tuple[Payload, Payload]:
        """Replies of all; a task that reads test samples alone runs once for clients with the same ones and offer."""
        ids = cohort.tolist()
        if self._reads(name, offer) - {"test", ASKS_GPU} or (offer.each and offer.pick is None):
            return self._run_blocks(name, ids, cohort, keys, offer)
        pick = torch.zeros(len(ids), dtype=torch.long) if offer.pick is None else offer.pick
        alike = [(model, self._table("test").alike[i]) for model, i in zip(pick.tolist(), ids, strict=True)]
        first: dict[tuple[int, int], int] = {}
        for position, pair in enumerate(alike):
            first.setdefault(pair, position)
        number = {pair: n for n, pair in enumerate(first)}
        asked, back = (
            torch.tensor(positions, device=self.device)
            for positions in (list(first.values()), [number[pair] for pair in alike])
        )
        fewer = offer.to(asked)
        send, keep = self._run_blocks(name, [ids[i] for i in first.values()], cohort[asked], keys[asked], fewer)
        return from_flat(select(to_flat(send), back)), from_flat(select(to_flat(keep), back))

    def _run_blocks(
        self, name: str, ids: list[int], cohort: Tensor, keys: Tensor, offer: Offer
    ) -> tuple[Payload, Payload]:
        """Replies of all, in blocks that fit into memory: they are halved until they do."""
        while True:
            lanes = self.block_sizes.choose(name, len(ids), self._plan(name).workers, self._bytes_each(name, offer))
            try:
                answer = self._try_blocks(name, ids, cohort, keys, offer, lanes)
            except RuntimeError as error:
                if lanes <= LEAST or not is_too_large(error):
                    raise
            else:
                self.block_sizes.note_success(name)
                return answer
            self._drop_graphs()  # not before here, where the error's frames hold no memory any more
            self.block_sizes.halve(name, lanes)

    def _try_blocks(
        self, name: str, ids: list[int], cohort: Tensor, keys: Tensor, offer: Offer, lanes: int
    ) -> tuple[Payload, Payload]:
        workers = self._plan(name).workers

        def run(block: Block) -> Stack:
            with keep_to_limit(self.device) if lanes > LEAST else nullcontext():  # answers of all need room anyhow
                return self._run_block(name, cohort, keys, offer, block)

        work = ProgressLog(name, len(ids)).wrap(run, lambda block: len(block.order))
        reads = self._reads(name, offer)
        cut = Cut(self._table("train"), self._table("test"), self.device, self._captures_steps(reads))
        blocks = list(cut.blocks(ids, lanes, by_test="train" not in reads))
        self._log_layout(name, f"{len(blocks)} blocks of up to {lanes} clients, {workers} at once")
        answers = run_at_once(work, blocks, workers) if workers > 1 else map(work, blocks)
        whole = join_in_order([block.order for block in blocks], answers)
        return from_flat(_part("send ", whole)), from_flat(_part("keep ", whole))

    def _drop_graphs(self) -> None:
        """Gives the memory of all CUDA graphs back: they can be captured anew."""
        for kept in (self.step_graphs, self.training_graphs, self.graphs):
            kept.clear()

    def _log_layout(self, name: str, layout: str) -> None:
        if self.layouts.get(name) != layout:
            LOG.debug("'%s' runs in %s", name, layout)
        self.layouts[name] = layout

    def _reads(self, name: str, offer: Offer) -> set[str] | frozenset[str]:
        """What the task reads of a client; everything before it ran."""
        return self.reads.get(_key(name, offer), EVERYTHING)

    def _table(self, part: str) -> SampleTable:
        if part not in self.tables:
            self.tables[part] = SampleTable.of(self.train if part == "train" else self.test, self.device)
        return self.tables[part]

    @property
    def sizes(self) -> Tensor:
        return self._table("train").sizes  # counted once, not in every round

    @property
    def _since_here(self) -> Tensor:
        """The round that each client's samples came in, on the device: taken there once, not for every block."""
        if self.arrived is None:
            self.arrived = self.since.to(self.device)
        return self.arrived

    def _change(self, change: Change) -> None:
        super()._change(change)
        self.tables.clear()
        self.tests = self.arrived = None

    def _captures_steps(self, reads: set[str] | frozenset[str]) -> bool:
        """Whether CUDA graphs are of steps, not of blocks: by autograd, with other runs, or of uneven clients."""
        is_joint = isinstance(self.step_graphs, JointTraining)
        by_kernels = FAST_PATH in reads or (is_joint and reads is EVERYTHING)  # what has not run yet may train, too
        return self.on_gpu and (AUTOGRAD in reads or (by_kernels and (is_joint or not self._table("train").are_even)))

    def _run_block(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer, block: Block) -> Stack:
        """What a block's clients send and what they keep, by names that say which."""
        clients = cohort[block.positions]
        inputs = {"key": keys[block.positions], "since": self._since_here[clients]}
        inputs["round"] = torch.tensor(self.round, device=self.device)
        for part, longest in zip(("train", "test"), block.longest, strict=True):
            inputs[part], inputs[f"{part} size"] = self._table(part).pad(clients, longest)
        inputs |= {f"memory {key}": t for key, t in self.memory_of(clients).items()}
        inputs |= self._offer_inputs(offer, block.positions)
        shared = self.outputs if block.longest[1] else None  # of clients without test samples nothing is known
        if shared is not None and shared.model is not None:
            inputs["model"] = shared.model[clients]
        bounds = self._table("train").bounds, self._table("test").bounds
        program = partial(self._answer, name, bounds, self.step_graphs if block.step_graphs else None, shared)
        known = self.reads.get(_key(name, offer), set())  # by now, perhaps from the block before this one
        is_graph = self.on_gpu and not (block.step_graphs or shared) and not {ASKS_GPU, AUTOGRAD} & known
        outputs = self.graphs.run((name, bounds), program, inputs) if is_graph else program(inputs)
        return {key: t[: len(block.order)] for key, t in outputs.items()}

    def _offer_inputs(self, offer: Offer, positions: Tensor) -> Params:
        """What a block is offered; on a GPU a model that all are served stays one model."""
        shared, each = to_flat(offer.shared), to_flat(offer.each)
        if not self.on_gpu:
            shared = {name: t.expand(len(positions), *t.shape) for name, t in shared.items()}
        pick = as_slice(positions if offer.pick is None else offer.pick[positions])
        kind = "shared" if self.on_gpu else "each"
        return {f"{kind} {name}": t for name, t in shared.items()} | {
            f"each {name}": t for name, t in select(each, pick).items()
        }

    def _answer(
        self, name: str, bounds: tuple[Bounds, Bounds], step_graphs: StepGraphs | None,
        shared: KnownOutputs | None, inputs: Params,
    ) -> Params:  # fmt: skip
        """What a block's clients answer, as a function of nothing but tensors."""
        task = find_task(self.method, name)
        is_eager = self.on_gpu and not torch.cuda.is_current_stream_capturing()
        execution = Execution(step_graphs, self.training_graphs if is_eager else None)

        def lane(own: Params) -> Params:
            train, test = (
                Samples(
                    self.x,
                    self.y,
                    own[part],
                    own[f"{part} size"],
                    width=bound.width,
                    longest=bound.longest,
                    names=self.names,
                )
                for part, bound in zip(("train", "test"), bounds, strict=True)
            )
            test = replace(test, outputs=None if shared is None else shared._replace(model=own.get("model")))
            memory, offered = from_flat(_part("memory ", own)), _part("shared ", own) | _part("each ", own)
            client = Client(train, test, own["key"], own["round"], own["since"], memory, execution)
            reply = call_task(task, client, from_flat(offered))
            return _prefix("send ", reply.send) | _prefix("keep ", reply.keep)

        dims = {key: None if key == "round" or key.startswith("shared ") else 0 for key in inputs}
        outputs: Params = vmap(lane, in_dims=(dims,))(inputs)
        self.reads[(name, *_part("shared ", inputs), *_part("each ", inputs))] = execution.reads
        return outputs

    def _bytes_each(self, name: str, offer: Offer) -> int:
        """Bytes of a client in a block: weights, gradients, momentum, and activations of what it looks at in one go.

        Training takes small batches, or measures its steps; a CPU's blocks are small.
        """
        looks = self.on_gpu and not {FAST_PATH, AUTOGRAD} & self._reads(name, offer)
        width = max(self._table(part).bounds.width for part in ("train", "test")) if looks else 0
        weights = bytes_of_weights(offer, getattr(self.method, "model", None))
        return weights + 2**20 + bytes_of_activations(self.x, width)


def as_slice(pick: Tensor) -> Tensor | slice:
    """The same choice as a slice, which copies nothing, where it is one and no GPU must be asked."""
    if pick.is_cuda or len(pick) < 2:
        return pick
    first = int(pick[0])
    return slice(first, first + len(pick)) if bool((pick.diff() == 1).all()) else pick


def _key(name: str, offer: Offer) -> tuple[str, ...]:
    """A task and the names of what it is offered."""
    return (name, *to_flat(offer.shared), *to_flat(offer.each))


def _prefix(prefix: str, payload: Payload) -> Params:
    return {prefix + name: t for name, t in to_flat(payload).items()}


def _part(prefix: str, flat: Params) -> Params:
    return {name.removeprefix(prefix): t for name, t in flat.items() if name.startswith(prefix)}


def _may_run_sequentially(refusal: Exception) -> bool:
    """Whether it is the block that failed, and not the task itself."""
    if isinstance(refusal, SequentialOnly):
        return True
    return isinstance(refusal, RuntimeError) and (is_too_large(refusal) or is_not_vectorised(refusal))


def _verb(task: str) -> str:
    return task if task == "train" else f"run '{task}'"
