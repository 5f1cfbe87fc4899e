"""The reference of all settings, from the dataclasses that hold them."""

from collections.abc import Mapping

from kinfed.aggregation import AGGREGATIONS
from kinfed.config import Config, DataSettings, EngineSettings
from kinfed.data import DRIFTS, PARTITIONS, SHIFTS, ChangeSettings, RoleSettings
from kinfed.experiment import Evaluation
from kinfed.learning_tasks import TASKS
from kinfed.methods import METHODS
from kinfed.models.inputs import Inputs
from kinfed.registry import first_lines
from kinfed.training import LocalTraining
from website.method_pages import facts
from website.settings import settings_of, table

BY_NAME = ("task", "partition", "shift", "drift", "aggregation", "methods")  # sections whose keys depend on a name
SECTIONS: dict[str, type] = {
    "data": DataSettings,
    "inputs": Inputs,
    "training": LocalTraining,
    "evaluation": Evaluation,
    "engine": EngineSettings,
    "roles": RoleSettings,
    "change": ChangeSettings,
}
INTRODUCTION = """# Settings

One TOML file holds an experiment; every key has a default. On the command line the same keys are dotted and go over
the file: `kinfed run experiment.toml rounds=50 training.lr=0.1`. A misspelt key is an error that names the nearest one.
`kinfed.config.json_schema()` is the JSON schema of such a file, for editors and other programs.
The `config.toml` of a run folder has every key with its value: copy it, change it, run it. Without a file `kinfed run`
and `kinfed compare` start from the demo's:

```toml
{demo}
```

This page is made from the dataclasses when the site is built."""


def config_page(demo: str) -> str:
    """The page."""
    parts = [INTRODUCTION.format(demo=demo.strip()), "## The experiment", "Keys outside of any section."]
    parts += [table(settings_of(Config, (*BY_NAME, *SECTIONS)))]
    for name, kind in SECTIONS.items():
        parts += [f"## `[{name}]`", (kind.__doc__ or "").split("\n")[0], table(settings_of(kind))]
    parts += chosen(
        "task",
        TASKS,
        "What is learnt: loss, predictions and metrics ([tasks](../tasks.md)). `name` is one of these, or your own "
        "`module:Class`.",
    )
    parts += chosen(
        "partition",
        PARTITIONS,
        "How clients get a dataset's samples. `name` is one of these, or [your own](../own-data.md) `module:Class`.",
    )
    parts += chosen(
        "shift",
        SHIFTS,
        "What is done to clients' samples after that; without a `name` nothing. Your own is `module:Class`.",
    )
    parts += chosen(
        "drift",
        DRIFTS,
        "How clients' samples change at known rounds ([drift](../drift.md)); without a `name` they do not. Your own is "
        "`module:Class`.",
    )
    parts += chosen(
        "aggregation",
        AGGREGATIONS,
        "How the server makes one model of those that clients trained, in every method and within clusters. Without a "
        "`name`: `mean` in simulation, `norm_clipping` in a [deployment](../deployment.md). A rule of your own is "
        "`module:Class`. What each defends: [security](../security.md#robust-aggregation).",
    )
    parts += ["## `[methods.NAME]`", "Settings of the methods are on their pages:"]
    parts += [
        "\n".join(f"- [{facts()[name].title}](methods/{name}.md#settings): `[methods.{name}]`" for name in METHODS)
    ]
    return "\n\n".join(parts) + "\n"


def chosen(section: str, registry: Mapping[str, type], text: str) -> list[str]:
    """A section whose keys hang on a name in it."""
    parts = [f"## `[{section}]`", text]
    for name, line in first_lines(registry).items():
        parts += [f'({section}-{name})=\n### `name = "{name}"`', line, table(settings_of(registry[name]))]
    return parts
