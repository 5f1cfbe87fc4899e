"""A federation in the middle of a run as one file: safetensors for tensors, JSON for the rest, no pickle.

The file is written beside its place and moved there in one step, so a killed process leaves the old one or the new.
It has a digest of all that is in it.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from math import sqrt
from pathlib import Path
from types import UnionType
from typing import TypeVar, Union, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from kinfed.data.population import Population
from kinfed.errors import CheckpointError, ConfigError, FileError, RoleError
from kinfed.federation import Federation, Rejected
from kinfed.files import check_finite, digest_content, load_tensors, read_metadata, save_tensors
from kinfed.ledger import Ledger
from kinfed.method import Method

State = TypeVar("State")
T = TypeVar("T")
Tree = dict[str, "Tree"] | list["Tree"] | str | int | float | bool | None
Parts = dict[str, dict[str, "Tree"]]  # of a checkpoint
TENSOR = "$tensor"
MALFORMED = (  # of trees
    KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, RecursionError, OverflowError,
)  # fmt: skip
AT_ONCE = 1024  # samples that have one number in a fingerprint
APART = 0.002  # of the size of numbers; another machine rounds scaled columns and turned images a little otherwise
Fingerprint = dict[str, object]
FORMAT = 2  # of checkpoints and run folders; 1 was that of kinfed before 0.2


@dataclass(frozen=True)
class Books:
    """What a federation has counted."""

    ledger: Ledger
    calls: dict[str, int]
    rejected: list[Rejected]

    @classmethod
    def of(cls, fed: Federation) -> "Books":
        """A copy of what it has counted so far."""
        return cls(deepcopy(fed.ledger), dict(fed.calls), list(fed.rejected))

    def with_later(self, later: "Books", tasks: Collection[str]) -> "Books":
        """The same, and of what was counted later these tasks."""
        rounds = [row for row in later.ledger.rounds[len(self.ledger.rounds) :] if row[1] in tasks]
        both = ((self.ledger.down, later.ledger.down), (self.ledger.up, later.ledger.up))
        down, up = (before | {task: t for task, t in after.items() if task in tasks} for before, after in both)
        calls = self.calls | {task: number for task, number in later.calls.items() if task in tasks}
        rejected = [reply for reply in later.rejected[len(self.rejected) :] if reply.task in tasks]
        ledger = Ledger(self.ledger.clients, down, up, self.ledger.rounds + rounds)
        return Books(ledger, calls, self.rejected + rejected)


def save(
    path: Path, state: object, fed: Federation, about: Mapping[str, object], if_longer: Books | None = None
) -> None:
    """Writes the state, client memories, ledger and random counters; `about` can be read back by itself.

    `if_longer` is what shall have been counted where the run goes on for more rounds, if that is something else.
    """
    tensors: dict[str, Tensor] = {}
    whole = {"state": state, "memory": fed.memory, "ledger": fed.ledger, "calls": fed.calls, "rejected": fed.rejected}
    whole |= {"if_longer": if_longer} if if_longer else {}
    whole |= {"engine": fed.state_dict(), "clients": {"sizes": fed.sizes, "training": fed.clients}}
    tree = {name: take_apart(part, name, tensors) for name, part in whole.items()}
    metadata = {"format": str(FORMAT), "about": json.dumps(about), "tree": json.dumps(tree)}
    save_tensors(path, tensors, metadata)
    fed.note_checkpoint()


def load(path: Path, method: Method[State], fed: Federation, longer: bool = False) -> State:
    """The state as saved; memories, ledger and counters go back into the federation, for a `longer` run or this one."""
    with explain_damage(path):
        tree, tensors = _read(path)
        _restore_books((tree.get("if_longer") if longer else None) or tree, tensors, fed)
        tensors = {name: t.to(fed.device) for name, t in tensors.items()}
        fed.memory = put_together(dict[str, Tensor], tree["memory"], tensors)
        fed.load_state_dict(dict(tree.get("engine", {})))
        fed.note_checkpoint()
        return state_of(method, tree["state"], tensors)


def check(path: Path) -> None:
    """Raise CheckpointError where a checkpoint is damaged."""
    with explain_damage(path):
        _read(path)


def refuse_other_state(path: Path, method: Method[State]) -> None:
    """Raise CheckpointError where the state that was saved has other fields than the method's has now."""
    with explain_damage(path):
        tree = json.loads(_check_metadata(path, read_metadata(path))["tree"])
        _refuse_other_fields(find_state_type(method), tree["state"])


def load_books(path: Path, fed: Federation) -> None:
    """Puts back what the federation had counted when the checkpoint was saved."""
    with explain_damage(path):
        _restore_books(*_read(path), fed)


def _restore_books(books: Mapping[str, Tree], tensors: Mapping[str, Tensor], fed: Federation) -> None:
    fed.ledger = put_together(Ledger, books["ledger"], tensors)
    fed.calls = put_together(dict[str, int], books["calls"], tensors)
    fed.rejected = [Rejected(*entry) for entry in put_together(list[tuple[int, str, int, str]], books["rejected"], {})]


def load_served(path: Path, method: Method[State]) -> tuple[State, dict[str, Tensor]]:
    """The state as saved, and of its clients how many samples each has (`sizes`) and which trained (`training`).

    Its numbers are finite: others will use them.
    """
    with explain_damage(path):
        tree, tensors = _read(path)
        check_finite({name: t for name, t in tensors.items() if name.partition(".")[0] == "state"})
        clients = put_together(dict[str, Tensor], tree["clients"], tensors)
        return state_of(method, tree["state"], tensors), clients


def state_of(method: Method[State], tree: Tree, tensors: Mapping[str, Tensor]) -> State:
    """The state of this method that `take_apart` took apart."""
    kind = find_state_type(method)
    _refuse_other_fields(kind, tree)
    return put_together(kind, tree, tensors)


def find_state_type(method: Method[State]) -> type[State]:
    """The type of the method's state, which is what its `init` is annotated to return."""
    try:
        return cast("type[State]", get_type_hints(type(method).init)["return"])
    except (KeyError, NameError):
        raise ConfigError(
            f"{type(method).__name__}.init: annotate what it returns by the class of the state, as in "
            "`def init(self, fed: Federation) -> MyState:`; checkpoints are read back by it"
        ) from None


def check_state(method: Method[State], state: State, given_by: str) -> State:
    """The state that a rule of the method gave; ConfigError where it is none of the method's."""
    kind = find_state_type(method)
    if not is_dataclass(kind) or isinstance(state, kind):
        return state
    absorbs = given_by == "round" and hasattr(method, "absorb")
    raise ConfigError(
        f"{type(method).__name__}.{given_by}{', which returns what absorb does,' if absorbs else ''} gave "
        f"{'None' if state is None else f'a {type(state).__name__}'}, wanted the new state, a {kind.__name__}: return "
        "it, as in `return replace(state, …)`"
    )


def _refuse_other_fields(kind: type, tree: Tree) -> None:
    """Raises CheckpointError where a state was saved with other fields than its class has now."""
    if is_dataclass(kind) and isinstance(tree, dict):
        known = [f.name for f in fields(kind)]
        needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
        if not needed <= tree.keys() <= {*known}:
            raise CheckpointError(
                f"a state with {', '.join(tree)} was saved, and {kind.__name__} has {', '.join(known)}: the method's "
                "code has changed since; use the code of that run, or start it again"
            )


def read_about(path: Path) -> dict[str, object]:
    """The `about` that the checkpoint was saved with."""
    with explain_damage(path):
        return cast("dict[str, object]", json.loads(_check_metadata(path, read_metadata(path))["about"]))


def read_engine_state(path: Path) -> dict[str, object]:
    """The state of the engine: a server needs to know its clients before they come back."""
    with explain_damage(path):
        tree = json.loads(_check_metadata(path, read_metadata(path))["tree"])
        return cast("dict[str, object]", tree.get("engine", {}))


def explain_format(path: Path, found: str) -> str:
    """The message for a file of another format."""
    age = "an older" if found.isdigit() and int(found) < FORMAT else "a newer"
    return f"{path} was written by {age} kinfed (format {found}, wanted {FORMAT}): run it again, or use that version"


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Inside it a checkpoint that is missing, damaged or forged is an error in one line."""
    try:
        yield
    except RoleError:
        raise
    except FileNotFoundError:
        raise CheckpointError(
            f"no checkpoint at {path}: the run was stopped before its first one, or it was removed; start it again"
        ) from None
    except (FileError, *MALFORMED) as error:
        what = error if isinstance(error, FileError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(
            f"the checkpoint {path} cannot be read ({what}): it is damaged or not a checkpoint; start the run again"
        ) from error


def _read(path: Path) -> tuple[Parts, dict[str, Tensor]]:
    """The tree of a checkpoint and the tensors of its leaves; those of a client that diverged are not finite."""
    tensors, metadata = load_tensors(path)
    return cast(Parts, json.loads(_check_metadata(path, metadata)["tree"])), tensors


def _check_metadata(path: Path, metadata: dict[str, str]) -> dict[str, str]:
    """The same; raises unless it is that of a checkpoint of this format."""
    if not {"about", "tree"} <= metadata.keys():
        raise CheckpointError(f"{path} is not a checkpoint of kinfed's: start the run again")
    if metadata.get("format") != str(FORMAT):
        raise CheckpointError(explain_format(path, metadata.get("format", "1")))
    return metadata


def take_apart(value: object, path: str, tensors: dict[str, Tensor]) -> Tree:
    """The value as JSON, its tensors by name in `tensors`."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().contiguous()
        return {TENSOR: path}
    if is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        if odd := [key for key in value if type(key) not in (str, int)]:
            raise TypeError(f"{path}: a dict of a state may have text or whole numbers as keys, got {odd[0]!r}")
        return {str(name): take_apart(part, f"{path}.{name}", tensors) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [take_apart(part, f"{path}.{i}", tensors) for i, part in enumerate(value)]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{path}: a state may hold tensors, numbers, text, dicts, lists and dataclasses, got {type(value)}")


def put_together(kind: type[T], tree: Tree, tensors: Mapping[str, Tensor]) -> T:
    """The value of this type that `take_apart` took apart."""
    return cast(T, _restore(kind, tree, tensors))


def _restore(kind: object, tree: Tree, tensors: Mapping[str, Tensor]) -> object:
    kind = _select(kind, tree)
    if isinstance(tree, dict) and TENSOR in tree:
        return tensors[str(tree[TENSOR])]
    if isinstance(tree, dict) and is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return kind(**{name: _restore(hints[name], part, tensors) for name, part in tree.items()})
    inner = get_args(kind) or (object,)
    if isinstance(tree, dict):
        key = int if inner[0] is int else str
        return {key(name): _restore(inner[-1], part, tensors) for name, part in tree.items()}
    if isinstance(tree, list):
        is_pair = len(inner) == len(tree) and Ellipsis not in inner  # tuple[int, str], and not tuple[int, ...]
        kinds = inner if is_pair else inner[:1] * len(tree)
        parts = [_restore(own, part, tensors) for own, part in zip(kinds, tree, strict=True)]
        return tuple(parts) if tuple in (kind, get_origin(kind)) else parts
    return tree


def _select(kind: object, tree: Tree) -> object:
    """Of the kinds of a union the one that a dict or a list was taken apart from; any other kind as it is."""
    if get_origin(kind) not in (Union, UnionType) or not isinstance(tree, dict | list):
        return kind
    options = [(option, get_origin(option) or option) for option in get_args(kind)]
    fitting = (option for option, whole in options if isinstance(whole, type) and _fits(whole, tree))
    return next(fitting, next((option for option in get_args(kind) if is_dataclass(option)), object))


def _fits(kind: type, tree: dict[str, Tree] | list[Tree]) -> bool:
    """Whether a dict or a list can come from a value of this kind."""
    if isinstance(tree, list):
        return issubclass(kind, Sequence) and kind is not str
    return issubclass(kind, Mapping) or (is_dataclass(kind) and tree.keys() <= {f.name for f in fields(kind)})


def take_fingerprint(population: Population) -> Fingerprint:
    """By which a resumed run knows its samples again: those of another file, or dealt otherwise, differ.

    Of whose each sample is, when that changes, and of labels a digest, of other numbers their size and a projection; as
    JSON.
    """
    whole = {"train": torch.cat(population.train), "test": torch.cat(population.test)}
    numbers = {"x": population.x, "y": population.y}
    labels = {name: t for name, t in numbers.items() if not t.is_floating_point() and t.dtype != torch.uint8}
    sizes = str([len(part) for part in (*population.train, *population.test)])
    names = str((population.class_names, population.feature_names, population.client_names))
    exact = {name: t.cpu() for name, t in (whole | labels).items()}
    digest = digest_content(exact, {"sizes": sizes, "names": names})
    return {"digest": digest, "plan": digest_plan(population)} | {
        name: project(t) for name, t in numbers.items() if name not in labels
    }


def digest_plan(population: Population) -> str:
    """A digest of what clients do, and of which have other samples from when on."""
    changes = {
        f"{i} {name} {j}": t.cpu()
        for i, change in enumerate(population.changes)
        for name, part in (("clients", (change.clients,)), ("train", change.train), ("test", change.test))
        for j, t in enumerate(part)
    }
    rounds = str([change.round for change in population.changes])
    return digest_content(changes, {"rounds": rounds, "roles": str(population.roles)})


def refuse_others(before: Mapping[str, object], now: Mapping[str, object], path: Path) -> None:
    """Raise CheckpointError where the checkpoint at this path was trained on other samples than there are now."""
    if not is_alike(before, now):
        raise CheckpointError(
            f"{path} was trained on other samples: the data, or whose they are, have changed since; put back what they "
            "were, or start a new run"
        )


def is_alike(before: Mapping[str, object], now: Mapping[str, object]) -> bool:
    """Whether two fingerprints are of the same samples, but for how numbers are rounded."""
    now = {name: value for name, value in now.items() if name != "plan" or name in before}  # earlier ones had none
    digests = "digest", "plan"
    if before.keys() != now.keys() or any(before.get(name) != now.get(name) for name in digests):
        return False
    pairs = [(cast("list[float]", before[name]), cast("list[float]", now[name])) for name in now if name not in digests]
    return all(
        len(was) == len(got) and all(abs(a - b) <= APART * max(was[0], got[0]) for a, b in zip(was, got, strict=True))
        for was, got in pairs
    )


def project(x: Tensor) -> list[float]:
    """The root mean square of numbers, and a sum with fixed weights of each thousand samples, about as large."""
    along, weights = weigh(x[:1].numel(), x.device), weigh(len(x), x.device).sign()
    square, sums = 0.0, []
    for part, weight in zip(x.split(AT_ONCE), weights.split(AT_ONCE), strict=True):
        flat = part.reshape(len(part), -1).double().nan_to_num()  # unknown targets are 0
        square += float(flat.square().sum())
        sums.append(float(weight @ flat @ along) / sqrt(max(1, flat.numel())))
    return [sqrt(square / max(1, x.numel())), *sums]


def weigh(number: int, device: torch.device) -> Tensor:
    """So many weights of mean 0 and deviation 1, the same each time; double."""
    return 2**0.5 * torch.arange(1, number + 1, dtype=torch.double, device=device).square().cos()
