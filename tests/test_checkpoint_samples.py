"""What a resumed run knows its samples by: changed ones are refused, other roundings are not."""

from dataclasses import replace

import pytest
import torch

from kinfed.checkpoint import is_alike, project, take_fingerprint
from kinfed.data import Role
from kinfed.data.population import Change
from kinfed.engines import Vectorised
from kinfed.errors import CheckpointError
from kinfed.experiment import Experiment
from tests.methods.registry import make, population

WHOLE = population()
FLOATS = replace(WHOLE, x=WHOLE.x.float() / 255)


def turn_one(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([255 - x[:1], x[1:]])


CHANGED = {
    "all images": replace(WHOLE, x=255 - WHOLE.x),
    "one image": replace(WHOLE, x=turn_one(WHOLE.x)),
    "their order": replace(WHOLE, x=WHOLE.x.roll(1, 0)),
    "columns": replace(WHOLE, x=WHOLE.x.flip(-1)),
    "a label": replace(WHOLE, y=WHOLE.y.index_put((torch.tensor([0]),), 1 - WHOLE.y[:1].clamp(max=1))),
    "whose a sample is": replace(WHOLE, train=(WHOLE.train[0][1:], *WHOLE.train[1:])),
    "their kind": FLOATS,
    "when they change": replace(WHOLE, changes=(Change(1, torch.tensor([0]), WHOLE.train[1:2], WHOLE.test[1:2]),)),
    "roles": replace(WHOLE, roles=tuple(Role(leaves=9 - 8 * (i == 0)) for i in range(WHOLE.clients))),
    "names of classes": replace(WHOLE, class_names=tuple("abcdefghij"[: WHOLE.classes])),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_run_is_not_resumed_on_other_samples(what, tmp_path):
    def run(people, rounds):
        fed = Vectorised(make("fedavg"), people)
        Experiment.over(fed, rounds=rounds, checkpoint=tmp_path / "saved").run(resume=rounds > 1)

    run(WHOLE, 1)
    with pytest.raises(CheckpointError, match="was trained on other samples: the data, or whose they are, have chan"):
        run(CHANGED[what], 2)
    run(WHOLE, 2)


def test_one_changed_image_of_many_is_noticed():
    images = torch.randint(0, 256, (20_000, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before, others = project(images), torch.arange(0, 20_000, 2_000)
    for one in others:
        changed = images.index_put((one,), 255 - images[one])
        assert not is_alike({"digest": "", "x": before}, {"digest": "", "x": project(changed)})


def test_samples_that_another_machine_rounds_otherwise_are_the_same():
    before = take_fingerprint(FLOATS)
    assert is_alike(before, take_fingerprint(replace(FLOATS, x=FLOATS.x * (1 + 1e-6))))
    assert not is_alike(before, take_fingerprint(replace(FLOATS, x=FLOATS.x * 1.1)))


def test_a_projection_of_numbers_without_a_pattern_is_about_as_large_as_they_are():
    draw = torch.Generator().manual_seed(0)
    found = torch.tensor([project(torch.randn(4000, 8, generator=draw)) for _ in range(50)])
    assert found[:, 0].tolist() == pytest.approx([1.0] * 50, rel=0.02)
    assert float(found[:, 1].std()) == pytest.approx(1.0, abs=0.3)


def test_checkpoints_from_before_plans_were_compared_are_still_read():
    before, now = take_fingerprint(WHOLE), take_fingerprint(CHANGED["when they change"])
    assert not is_alike(before, now)
    assert is_alike({name: value for name, value in before.items() if name != "plan"}, now)
