"""The reference engine: one client after the other, all payloads through real serialisation. Slow, obviously right."""

from dataclasses import is_dataclass, replace

import torch
from safetensors.torch import load, save
from torch import Tensor

from kinfed.client import Client, Reply, Samples, call_task
from kinfed.client_tasks import find_task
from kinfed.engines.resident import Resident
from kinfed.engines.workers import ProgressLog, run_at_once
from kinfed.federation import Federation, Offer
from kinfed.files import separate
from kinfed.params import Params, Payload, from_flat, select, stack, to_flat


class Sequential(Resident):
    """Clients one by one, each with a fresh copy of the method and bytes instead of objects."""

    def _run(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> tuple[Payload, Payload]:
        return loop(self, name, cohort, keys, offer)


def loop(
    fed: Resident, name: str, cohort: Tensor, keys: Tensor, offer: Offer, workers: int = 1, *, serialises: bool = True
) -> tuple[Payload, Payload]:
    """What every client of the cohort sends and keeps, asked one after the other, or some at once.

    The reference serialises all that crosses the wire; elsewhere that would only take time. Where several are asked at
    once, nobody may draw from torch's global generator; vmap allows nobody to.
    """
    memory, ids, widths = fed.memory_of(cohort), cohort.tolist(), find_widths(fed)

    def one(i: int) -> tuple[Params, Params]:
        method, given = copy_method(fed.method), unpack_offer(fed, offer, i, serialises)
        client = make_client(fed, ids[i], keys[i], select(memory, i), widths)
        reply = call_task(find_task(method, name), client, given) if workers > 1 else ask(method, name, client, given)
        send = to_flat(reply.send)
        return serialise(send, fed.device) if serialises else send, to_flat(reply.keep)

    everyone, log = range(len(ids)), ProgressLog(name, len(ids)).wrap(one, lambda _: 1)
    answers = run_at_once(log, everyone, workers) if workers > 1 else [log(i) for i in everyone]
    return from_flat(stack([send for send, _ in answers])), from_flat(stack([keep for _, keep in answers]))


def unpack_offer(fed: Federation, offer: Offer, i: int, serialises: bool = True) -> Payload:
    """What the i-th client of a cohort is offered, after serialisation."""
    own = select(to_flat(offer.each), i if offer.pick is None else int(offer.pick[i]))
    flat = to_flat(offer.shared) | own
    return from_flat(serialise(flat, fed.device) if serialises else flat)


def find_widths(fed: Federation) -> tuple[int, int]:
    """Training and test samples that tasks look at in one go; all clients are asked how many they have."""
    return fed.width(fed.train), fed.width(fed.test)


def make_client(
    fed: Resident, client_id: int, key: Tensor, memory: Params, widths: tuple[int, int] | None = None
) -> Client:
    """A client with its own samples and nobody else's, without padding."""

    def own(part: list[Tensor], width: int) -> Samples:
        at = part[client_id]
        position, size = torch.arange(len(at), device=fed.device), torch.tensor(len(at), device=fed.device)
        names = None if fed.names is None else fed.names[at]
        return Samples(fed.x[at], fed.y[at], position, size, exact=True, width=width, names=names)

    now, since = (torch.tensor(int(t), device=fed.device) for t in (fed.round, fed.since[client_id]))
    train, test = (own(*part) for part in zip((fed.train, fed.test), widths or find_widths(fed), strict=True))
    return Client(train, test, key, now, since, from_flat(memory))


def ask(method: object, name: str, client: Client, offered: Payload) -> Reply:
    """The client's reply; what draws from torch's global generator (Dropout, say) is seeded by the client's key."""
    devices = [client.key.device] if client.key.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        seed = int(client.key) & 0x7FFFFFFFFFFFFFFF
        torch.default_generator.manual_seed(seed)  # torch.manual_seed notes a stack trace for every kind of device
        if devices:
            torch.cuda.manual_seed(seed)
        return call_task(find_task(method, name), client, offered)


def copy_method(method: object) -> object:
    """A new object of the same settings, as a client on another machine would build it."""
    return replace(method) if is_dataclass(method) and not isinstance(method, type) else method


def serialise(flat: Params, device: torch.device) -> Params:
    """The tensors after serialisation."""
    arrived = load(save(separate({name: t.detach().cpu().contiguous() for name, t in flat.items()})))
    return {name: arrived[name].to(device) for name in flat}
