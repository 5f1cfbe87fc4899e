"""Secure aggregation: the server learns sums over clients, and no client's model (SecAgg+, Bell et al., CCS 2020).

A client's vector is n · v and n, in fixed point modulo 2⁶⁴, where v is what its task replies and n its samples.

    the task     it trains, keeps the vector, and sends two public keys, made for this one sum
    share_keys   it splits its seed and its mask key by Shamir's scheme, with an encrypted share for every neighbour
    mask         it sends the vector plus a mask of its seed, and for each neighbour one that cancels against its own
    unmask       of each neighbour it opens one share: of the seed if its vector came, of the mask key if it did not

X25519, HKDF and AES are of `cryptography`, Shamir's scheme is Flower's. Flower's own workflow is not used: it needs
the legacy strategies, and draws masks from 32 bits. Sums are safe from a server that follows the protocol, also if
fewer than half of a client's neighbours help it; one that invents clients is not covered.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from os import urandom
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from torch import Tensor

from kinfed.capabilities import summed_tasks_of
from kinfed.engines.flower.messages import DTYPES, Refusal, RefusedRequest, TensorSpecs
from kinfed.federation import OUT_OF_RANGE, Offer, Rejected, Replies
from kinfed.params import Params, from_flat

if TYPE_CHECKING:
    from kinfed.engines.flower.network_federation import NetworkFederation

Vector = npt.NDArray[np.uint64]
SHARE_KEYS, MASK, UNMASK = "share_keys", "mask", "unmask"
STAGES = (SHARE_KEYS, MASK, UNMASK)
SCALE = 2.0**24  # steps in 1: a client rounds by 3e-8 at most
BOUND = 2.0**29  # of n · v: sums of a thousand clients fit into 64 bits
NEIGHBOURS = 32  # of a client at most
KEY, SHARE = 32, 52  # bytes of a key, and of a share: its number and three blocks of 16
SEALED = 12 + 16 + 2 * SHARE + 16  # nonce, sender and receiver, two shares, tag
PUBLIC_KEYS = "public_keys"
LOG = logging.getLogger("kinfed.engines")
TOO_FEW = "too few to sum"


def to_tensor(data: bytes) -> Tensor:
    """Bytes as a tensor."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def read_bytes(tensor: Tensor) -> bytes:
    """The bytes in a tensor."""
    return tensor.cpu().contiguous().numpy().tobytes()


def agree(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """The key that two clients share for a purpose."""
    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # a public key of small order
        raise RefusedRequest(Refusal.MALFORMED, f"an unusable public key: {error}") from None
    return HKDF(hashes.SHA256(), KEY, None, b"kinfed " + purpose).derive(secret)


def public_of(private: bytes) -> bytes:
    """The public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def expand(seed: bytes, numbers: int) -> Vector:
    """So many pseudo-random 64-bit numbers: AES-256 in counter mode."""
    encryptor = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * numbers)), dtype=np.uint64)


def quantise(flat: Params, samples: int) -> Tensor:
    """n · v and n in fixed point: int64 [numbers + 1]; raises RefusedRequest where a number is too large or none."""
    parts = [flat[name].detach().cpu().double().flatten() for name in sorted(flat)]
    weighted = samples * torch.cat([*parts, torch.ones(1, dtype=torch.double)])
    if not bool((weighted.abs() < BOUND).all()):
        raise RefusedRequest(Refusal.NOT_FINITE, f"a model has numbers that are not finite, or above {BOUND:g} / n")
    return (weighted * SCALE).round().long()


def count_needed(shares: int) -> int:
    """Of so many shares those that it takes: more than half."""
    return shares // 2 + 1


@dataclass(frozen=True)
class SumSession:
    """A client's part in one sum; what it holds is kept between messages and never sent."""

    held: Params
    client: int
    min_cluster: int

    @staticmethod
    def begin(flat: Params, samples: int) -> tuple[Params, Tensor]:
        """What a client keeps of its vector and its keys, and its public keys: uint8 [2, 32]."""
        keys = urandom(2 * KEY)
        public = to_tensor(public_of(keys[:KEY]) + public_of(keys[KEY:])).view(2, KEY)
        return {"vector": quantise(flat, samples), "keys": to_tensor(keys), "seed": to_tensor(urandom(KEY))}, public

    def run(self, stage: str, offer: Params) -> tuple[Params, Params]:
        """What it keeps and what it sends at this stage; raises RefusedRequest where the request is out of order."""
        work = {SHARE_KEYS: self.share_keys, MASK: self.mask, UNMASK: self.unmask}[stage]
        try:
            return work(offer)
        except (KeyError, IndexError, RuntimeError) as error:
            raise RefusedRequest(Refusal.MALFORMED, f"'{stage}' is out of order or damaged: {error!r}") from None

    def share_keys(self, offer: Params) -> tuple[Params, Params]:
        """Encrypted shares for all neighbours: uint8 [H, 148]; one more share is its own."""
        peers = offer["peers"].tolist()
        present = [peer for peer in peers if peer >= 0]
        if "peers" in self.held or len({*present, self.client}) != len(present) + 1:
            raise RefusedRequest(Refusal.MALFORMED, f"wanted neighbours for the first time and once each, got {peers}")
        self.require(len(present) + 1, 0)
        number = len(present) + 1
        secrets = read_bytes(self.held["seed"]), read_bytes(self.held["keys"])[KEY:]
        seeds, masks = (create_shares(secret, count_needed(number), number) for secret in secrets)
        sealed = torch.zeros(len(peers), SEALED, dtype=torch.uint8)
        for i, peer in enumerate(present):
            sealed[i] = to_tensor(self.seal(peer, read_bytes(offer["keys"][i, 0]), seeds[i] + masks[i]))
        kept = {"peers": offer["peers"], "peer_keys": offer["keys"], "own": to_tensor(seeds[-1])}
        return self.held | kept, {"sealed": sealed}

    def mask(self, offer: Params) -> tuple[Params, Params]:
        """The vector under all masks: int64 [numbers]; the shares of neighbours are kept, 0 where they are damaged."""
        if "shares" in self.held:
            raise RefusedRequest(Refusal.MALFORMED, "a vector was masked already")
        shared, private = offer["shared"].tolist(), read_bytes(self.held["keys"])[KEY:]
        self.require(sum(shared) + 1, len(self.present) + 1)
        shares = torch.zeros(len(shared), 2 * SHARE, dtype=torch.uint8)
        total = self.held["vector"].numpy().view(np.uint64) + expand(
            read_bytes(self.held["seed"]), len(self.held["vector"])
        )
        for i, peer in enumerate(self.present):
            if shared[i]:
                public = [read_bytes(key) for key in self.held["peer_keys"][i]]
                shares[i] = to_tensor(self.open(peer, public[0], read_bytes(offer["sealed"][i])))
                between = expand(agree(private, public[1], b"mask"), len(total))
                total = total + between if self.client < peer else total - between
        return self.held | {"shares": shares, "shared": offer["shared"]}, {"masked": to_signed(total)}

    def unmask(self, offer: Params) -> tuple[Params, Params]:
        """One share of each neighbour, and one of its own seed: uint8 [H + 1, 52]; afterwards nothing is kept."""
        shared, came = self.held["shared"], offer["came"] & self.held["shared"]
        self.require(int(came.sum()) + 1, len(self.present) + 1)
        seeds, masks = self.held["shares"].split(SHARE, 1)
        opened = torch.where(came[:, None], seeds, masks) * shared[:, None]
        return {}, {"shares": torch.cat([opened, self.held["own"][None]])}

    @property
    def present(self) -> list[int]:
        """Its neighbours."""
        return [peer for peer in self.held["peers"].tolist() if peer >= 0]

    def require(self, clients: int, shares: int) -> None:
        """Raises RefusedRequest where the sum is over too few clients, itself included, or has too few shares left."""
        least = max(count_needed(shares) if shares else 0, min(self.min_cluster, NEIGHBOURS + 1))
        if clients < least:
            raise RefusedRequest(Refusal.MALFORMED, f"a sum over {clients} clients, wanted {least}")

    def seal(self, peer: int, public: bytes, shares: bytes) -> bytes:
        """Shares encrypted for a neighbour."""
        nonce, between = urandom(12), self.client.to_bytes(8, "little") + peer.to_bytes(8, "little")
        key = agree(read_bytes(self.held["keys"])[:KEY], public, b"share")
        return nonce + AESGCM(key).encrypt(nonce, between + shares, None)

    def open(self, peer: int, public: bytes, sealed: bytes) -> bytes:
        """The shares that a neighbour encrypted for this client; zeros where they are damaged, or not between the two.

        To refuse the sum for it would let one client end the sums of all its neighbours, and tell nobody who it is.
        """
        key = agree(read_bytes(self.held["keys"])[:KEY], public, b"share")
        try:
            plain = AESGCM(key).decrypt(sealed[:12], sealed[12:], None)
        except InvalidTag:
            return bytes(2 * SHARE)
        between = peer.to_bytes(8, "little") + self.client.to_bytes(8, "little")
        return plain[16:] if plain[:16] == between else bytes(2 * SHARE)


def try_combine(shares: Sequence[bytes]) -> bytes | None:
    """The secret that was split into these shares; None where they do not fit each other, or it is no key.

    One combination in a hundred of shares that do not fit has a padding by chance, and another length.
    """
    try:
        secret: bytes = combine_shares([*shares])
    except ValueError:
        return None
    return secret if len(secret) == KEY else None


def is_usable(public: Tensor) -> bool:
    """Whether other clients can agree on keys with one of these public keys: [2, 32]."""
    try:
        return all(bool(agree(bytes([1] * KEY), read_bytes(key), b"check")) for key in public)
    except RefusedRequest:
        return False


def leave_out_unusable(fed: "NetworkFederation", task: str, replies: Replies) -> Replies:
    """Replies without those whose public keys would make every neighbour refuse the sum; they count as offences."""
    usable = torch.tensor([is_usable(public) for public in replies[PUBLIC_KEYS].cpu()], dtype=torch.bool)
    for client in replies.cohort[~usable].tolist():
        fed.rejected.append(Rejected(fed.round, task, client, OUT_OF_RANGE))
        LOG.warning("%s sent a public key that nobody can use: it is left out of the sum", fed.name_client(client))
    return replies if bool(usable.all()) else replies.select(usable.nonzero()[:, 0])


def to_signed(vector: Vector) -> Tensor:
    """Numbers modulo 2⁶⁴ as int64."""
    return torch.from_numpy(vector.view(np.int64).copy())


def find_peers(group: Sequence[int]) -> dict[int, list[int]]:
    """The neighbours of each client: the nearest ones in a ring."""
    half, size = NEIGHBOURS // 2, len(group)
    offsets = range(1, size) if size <= NEIGHBOURS + 1 else [o for o in range(-half, half + 1) if o]
    return {client: [group[(i + o) % size] for o in offsets] for i, client in enumerate(group)}


def specify(specs: TensorSpecs) -> TensorSpecs:
    """What a client sends openly in place of this reply: whole numbers, and its public keys."""
    open_parts = {name: spec for name, spec in specs.items() if not DTYPES[spec[0]].is_floating_point}
    return open_parts | {PUBLIC_KEYS: ("uint8", (2, KEY))}


def specify_stage(stage: str, offer: Offer) -> TensorSpecs:
    """What a client sends at a stage."""
    peers = next(value.shape[1] for value in offer.each.values() if isinstance(value, Tensor))
    if stage == MASK:
        numbers = offer.shared["numbers"]
        return {"masked": ("int64", (int(numbers) if isinstance(numbers, Tensor) else 0,))}
    return {"sealed": ("uint8", (peers, SEALED))} if stage == SHARE_KEYS else {"shares": ("uint8", (peers + 1, SHARE))}


@dataclass(frozen=True)
class SecureSum:
    """The server's part in one sum over each group of clients; tables have a row for each client."""

    fed: "NetworkFederation"
    task: str
    session: int  # the number of the call that began it
    numbers: int
    peers: Mapping[int, Sequence[int]]
    public: Mapping[int, Tensor]  # [2, 32]

    def ask(self, stage: str, clients: Sequence[int], **each: Tensor) -> dict[int, Tensor]:
        """What these clients reply at a stage."""
        if not clients:
            return {}
        ids = torch.tensor(clients, dtype=torch.long)
        shared = {"session": torch.tensor(self.session), "numbers": torch.tensor(self.numbers)}
        replies = self.fed.exchange(stage, ids, Offer(shared, each))
        name = next(iter(specify_stage(stage, Offer(shared, each))))
        return dict(zip(replies.cohort.tolist(), replies[name].cpu(), strict=True))

    def collect(self) -> tuple[dict[int, Vector], dict[int, dict[int, bytes]], dict[int, list[int]]]:
        """Masked vectors by client, opened shares by owner and holder, and the neighbours that each masked against."""
        clients = sorted(self.peers)
        width = max(len(peers) for peers in self.peers.values())
        table = torch.full((len(clients), width), -1)
        keys = torch.zeros(len(clients), width, 2, KEY, dtype=torch.uint8)
        for i, client in enumerate(clients):
            table[i, : len(self.peers[client])] = torch.tensor(self.peers[client])
            keys[i, : len(self.peers[client])] = torch.stack([self.public[peer] for peer in self.peers[client]])
        sealed = self.ask(SHARE_KEYS, clients, peers=table, keys=keys)
        masked = self.ask(MASK, [*sealed], sealed=self.deliver(sealed, width), shared=self.mark(sealed, sealed, width))
        shares = self.ask(UNMASK, [*masked], came=self.mark(masked, masked, width))
        opened: dict[int, dict[int, bytes]] = {}
        for holder, row in shares.items():
            for owner, share in zip([*self.peers[holder]], row, strict=False):
                if owner in sealed:
                    opened.setdefault(owner, {})[holder] = read_bytes(share)
            opened.setdefault(holder, {})[holder] = read_bytes(row[-1])
        vectors = {client: vector.numpy().view(np.uint64) for client, vector in masked.items()}
        return vectors, opened, {client: [peer for peer in self.peers[client] if peer in sealed] for client in sealed}

    def deliver(self, sealed: Mapping[int, Tensor], width: int) -> Tensor:
        """The shares that each client was sent by its neighbours, in their order: uint8 [clients, H, 148]."""
        table = torch.zeros(len(sealed), width, SEALED, dtype=torch.uint8)
        for i, client in enumerate(sealed):
            for j, peer in enumerate(self.peers[client]):
                if peer in sealed:
                    table[i, j] = sealed[peer][self.peers[peer].index(client)]
        return table

    def mark(self, clients: Mapping[int, Tensor], there: Mapping[int, Tensor], width: int) -> Tensor:
        """Which neighbours of each client are there: bool [clients, H]."""
        table = torch.zeros(len(clients), width, dtype=torch.bool)
        for i, client in enumerate(clients):
            table[i, : len(self.peers[client])] = torch.tensor([peer in there for peer in self.peers[client]])
        return table

    def sum(self, group: Sequence[int], vectors: Mapping[int, Vector], opened: Mapping[int, Mapping[int, bytes]],
            neighbours: Mapping[int, Sequence[int]]) -> Tensor | None:  # fmt: skip
        """The sum over those of a group whose vectors came, double [numbers]; None where too few shares were opened."""
        came = [client for client in group if client in vectors]
        secrets = self.find_secrets([client for client in group if client in neighbours], opened)
        if secrets is None or len(came) < self.fed.privacy.min_cluster:
            return None
        total = np.zeros(self.numbers, dtype=np.uint64)
        for client in came:
            total = total + vectors[client] - expand(secrets[client], self.numbers)
        for client in secrets.keys() - vectors.keys():  # dropped out: its neighbours' masks against it remain
            for peer in (p for p in neighbours[client] if p in vectors):
                between = expand(agree(secrets[client], read_bytes(self.public[peer][1]), b"mask"), self.numbers)
                total = total - between if peer < client else total + between
        return to_signed(total).double() / SCALE

    def find_secrets(self, owners: Sequence[int], opened: Mapping[int, Mapping[int, bytes]]) -> dict[int, bytes] | None:
        """The secret of each of these clients; None where too few shares were opened, or fit each other.

        Where two shares or more of one client alone are damaged, by two holders, it counts as its offence. Two clients
        that open damaged shares of it alone can make it look so.
        """
        secrets, damaged = dict[int, bytes](), dict[int, int]()
        for owner in owners:
            shares, least = opened.get(owner, {}), count_needed(len(self.peers[owner]) + 1)
            if len(shares) < least:
                return None
            secret, damaged[owner] = self.combine(owner, shares, least)
            secrets |= {} if secret is None else {owner: secret}
        lost = [owner for owner in owners if owner not in secrets]
        if len(lost) == 1 and damaged[lost[0]] > 1:
            self.fed.rejected.append(Rejected(self.fed.round, self.task, lost[0], OUT_OF_RANGE))
        if lost:
            names = ", ".join(map(self.fed.name_client, lost))
            LOG.warning("a secure sum over %d clients failed: shares of %s are damaged", len(owners), names)
        return None if lost else secrets

    def combine(self, owner: int, shares: Mapping[int, bytes], least: int) -> tuple[bytes | None, int]:
        """The secret of a client from at least so many shares, by holder, and how many are damaged at least.

        Padding and length tell whether shares fit each other. One that does not is left out and named: nobody can tell
        who damaged it, the owner or the holder.
        """
        usable = {holder: share for holder, share in shares.items() if any(share)}
        for left_out in (None, *usable):
            rest = [share for holder, share in usable.items() if holder != left_out]
            secret = try_combine(rest) if len(rest) >= least else None
            if secret is not None:
                doubtful = [holder for holder in shares if holder not in usable or holder == left_out]
                for holder in doubtful:
                    names = map(self.fed.name_client, (owner, holder))
                    LOG.warning("a share of %s that %s opened is damaged by one of them: it is left out", *names)
                return secret, len(doubtful)
        return None, len(shares) - len(usable) + (len(usable) >= least) + (len(usable) > least)

    def try_sum(self, group: Sequence[int], vectors: Mapping[int, Vector], opened: Mapping[int, Mapping[int, bytes]],
                neighbours: Mapping[int, Sequence[int]]) -> Tensor | None:  # fmt: skip
        """The same, or None where shares or keys are damaged, or the sum is not over the samples that clients have."""
        try:
            total = self.sum(group, vectors, opened, neighbours)
        except RefusedRequest as error:
            LOG.warning("a secure sum over %d clients failed: %s", len(group), error)
            return None
        samples = int(self.fed.sizes[[client for client in group if client in vectors]].sum())
        if total is None or abs(float(total[-1]) - samples) <= 0.5:
            return total
        LOG.warning("a secure sum over %d clients is not of the samples that they have: one of them lies", len(group))
        return None


def sum_securely(fed: "NetworkFederation", task: str, cohort: Tensor, offer: Offer, replies: Replies) -> Replies:
    """Replies to a task in which every client of a group has the mean of its group, weighted by samples.

    So whatever mean a method takes over whole groups is that of its clients' own replies. A group are the clients that
    were offered the same, and whose open replies are the same where the method sums them apart by one. `replies` are
    what clients openly sent when they had done the task.
    """
    replies, specs = leave_out_unusable(fed, task, replies), fed.predict_reply(task, offer)
    summed = {name: shape for name, (kind, shape) in sorted(specs.items()) if DTYPES[kind].is_floating_point}
    numbers = sum(map(prod, summed.values())) + 1
    session, groups = fed.last_call, form_groups(fed, task, cohort, offer, replies)
    large = {name: group for name, group in groups.items() if len(group) >= fed.privacy.min_cluster}
    peers = {client: near for group in large.values() for client, near in find_peers(group).items()}
    public = dict(zip(replies.cohort.tolist(), replies[PUBLIC_KEYS].cpu(), strict=True))
    sums = dict[int, Tensor]()
    if peers:
        secure = SecureSum(fed, task, session, numbers, peers, public)
        parts = secure.collect()
        for group in large.values():
            total = secure.try_sum(group, *parts)
            sums |= {} if total is None else {client: total[:-1] / total[-1] for client in group if client in parts[0]}
    left = [client for client in replies.cohort.tolist() if client not in sums]
    fed.rejected += [Rejected(fed.round, task, client, TOO_FEW) for client in left]
    fed.note_sums(task, len(sums))
    return spread(replies, sums, summed)


def form_groups(
    fed: "NetworkFederation", task: str, cohort: Tensor, offer: Offer, replies: Replies
) -> dict[tuple[int, int], list[int]]:
    """The clients that are summed together, ascending."""
    field = summed_tasks_of(fed.method)[task]
    offered = dict(
        zip(cohort.tolist(), (torch.zeros_like(cohort) if offer.pick is None else offer.pick).tolist(), strict=True)
    )
    apart = replies[field].tolist() if field else [0] * len(replies.cohort)
    groups = dict[tuple[int, int], list[int]]()
    for client, label in sorted(zip(replies.cohort.tolist(), apart, strict=True)):
        groups.setdefault((offered[client], int(label)), []).append(client)
    return groups


def spread(replies: Replies, sums: Mapping[int, Tensor], summed: Mapping[str, tuple[int, ...]]) -> Replies:
    """The open replies of the clients that were summed, and beside them the mean of each one's group."""
    kept = torch.tensor([client in sums for client in replies.cohort.tolist()], dtype=torch.bool)
    some = kept.nonzero()[:, 0].to(replies.cohort.device)
    ids = replies.cohort[some]
    means = (
        torch.stack([sums[client] for client in ids.tolist()])
        if len(ids)
        else torch.zeros(0, sum(map(prod, summed.values())))
    )
    parts = means.float().to(ids.device).split([prod(shape) for shape in summed.values()], 1)
    flat = {name: part.reshape(len(ids), *shape) for (name, shape), part in zip(summed.items(), parts, strict=True)}
    opened = {
        name: value[some] for name, value in replies.send.items() if name != PUBLIC_KEYS and isinstance(value, Tensor)
    }
    return Replies(ids, from_flat(flat | opened))
