"""The pages of the methods say what the code and the ledger say."""

import pytest
import torch

from kinfed.methods import METHODS
from kinfed.metrics import QUESTIONS
from kinfed.models import encoder_of
from kinfed.params import bytes_of
from kinfed.signatures import PartMeans, Pretraining
from tests.methods.registry import make, population, statistics
from tests.problems import fit, small_net
from website.measured import read_tables
from website.method_pages import SYMBOLS, facts, method_page, overview, symbols

ROUNDS, SHAPE, TRAINING = 3, torch.Size((1, 8, 8)), ("train",)
SETTINGS = {
    "flt": {"signature": PartMeans(latent=8, pretraining=Pretraining("digits", epochs=1, least_steps=1))},
    "cfl": {"after": 99},  # a split asks further clients
    "feddrift": {"first": "one", "delta": 1.0},
    "auto": {"compare": 0.0, "merge": 0.0, "judge": 0.0, "average": 0.0},
    "pca_km_hc": {"components": 16},
    "repa": {"signature": statistics(encoder_rounds=2)},
}


def test_every_registered_method_has_its_facts():
    assert list(facts()) == list(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_the_page_says_what_a_method_is_set_by_sees_serves_and_costs(name):
    page = method_page(name, read_tables())
    assert page.startswith(f"# {facts()[name].title}\n\n{(METHODS[name].__doc__ or '').splitlines()[0]}")
    for title in ("Settings", "Which differences it sees", "Which clients it can serve", "Cost"):
        assert f"\n## {title}\n" in page
    assert f"({name}.md)" in overview()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore:.* looks for clusters after")
def test_the_formulas_are_what_the_ledger_counts(name):
    method = make(name, **SETTINGS.get(name, {}))
    _, fed = fit(method, population=population(), rounds=ROUNDS, fraction=0.5)
    fact, known = facts()[name], {"M": 12, "w": bytes_of(small_net().init()), **values(name, method)}
    assert symbols(fact) <= set(SYMBOLS)
    counted = {
        t: [call for call in fed.ledger.rounds if call[0] == t and call[1] not in QUESTIONS] for t in range(ROUNDS)
    }
    once = sum(down + up for calls in counted.values() for _, task, _, down, up in calls if task not in TRAINING)
    assert once == eval(fact.once, known | {"n": 6})
    for t, calls in counted.items():
        trained = [call for call in calls if call[1] in TRAINING]
        wanted = eval(
            fact.first if fact.first and t == 0 else fact.round, known | {"n": trained[0][2] if trained else 0}
        )
        assert sum(down + up for _, _, _, down, up in trained) == wanted, f"round {t}"


def values(name, method):
    """Bytes of what only some methods send, counted by hand on the tiny network of 64, 8 and 3 units."""
    if name == "flt":
        encoder = bytes_of(encoder_of(method.signature.network(SHAPE).init()))
        return {"encoder": encoder, "signature": 4 * 4 * (8 + 1)}  # four means of eight numbers, and their counts
    if name == "repa":
        whole = method.signature.network(method.model, SHAPE).init()
        return {
            "encoder": bytes_of(encoder_of(whole)),
            "signature": 4 * 4 * 384,
            "autoencoder": bytes_of(whole),
            "R": 2,
        }
    extra = {"pca_km_hc": {"signature": 4 * 3 * 16}, "ifca": {"C": 2}, "wd": {"R": 1}}
    extra |= {"auto": {"encoder": 4, "signature": 4 * 4 * (3 * (1 + 64) + 1)}}  # a seed; four parts of three labels
    extra |= {
        "stocfl": {"M": 11},
        "pacfl": {"signature": 4 * 3 * 64 * 3},
        "flux": {"signature": 4 * (1 + 3) * 2 * 8},
    }  # of twelve, so many were sampled
    extra |= {"lg_fedavg": {"shared": 4 * (8 * 3 + 3)}, "fedper": {"shared": 4 * (64 * 8 + 8)}}
    extra |= {name: {"shared": 4 * (64 * 8 + 8)} for name in ("fedrep", "fedbabu")}
    extra |= {"fedclust": {"shared": 4 * (8 * 3 + 3)}, "clove": {"C": 2, "R": ROUNDS}}
    extra |= {"feddrift": {"C": 1, "R": 2 * ROUNDS}}  # before and after each step of one round
    extra |= {"fedem": {"C": 2}, "fedrc": {"C": 2, "labels": 3}, "flsc": {"C": 3}, "fedsoft": {"C": 2, "R": 2}}
    extra |= {"fedbn": {"shared": 4 * (64 * 8 + 8 + 8 * 3 + 3)}}
    return extra.get(name, {})
