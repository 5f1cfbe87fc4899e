"""Files of recipes: a paper's table as a base config, rows and columns as overrides, and the numbers printed.

A recipe is a TOML file:

    title, paper, measures, notes   what the table is, and which numbers a cell has, in order
    main                            the measure that claims speak of and sweeps choose by; default: the first
    target                          a row: what each run costs until it has the main number published for that row
    extends                         another recipe, which this one is laid over; claims add up
    [config]                        what all cells have in common: a config as `kinfed run` takes it
    [quick]                         what `--quick` lays over every cell
    [columns.NAME]                  title, config; quick: what `--quick` lays over that, too;
                                    each: configs laid over it, of which a cell runs all and has the mean;
                                    incomparable: why its numbers cannot be compared;
                                    PROTOCOL.config: what is laid over it under that protocol
    [datasets.NAME]                 config, quick, PROTOCOL.config: what columns of this dataset are laid over;
                                    PROTOCOL may be patterns, as in "fair|paper*", later ones over earlier ones; those
                                    that fit none of the recipe's protocols are left out
    [protocols.NAME]                says, config; sweep: a key and values, of which the best is reported;
                                    judged = false: not how the published numbers were made
    [rows.NAME]                     title, config; at.COLUMN: config in that column; published.COLUMN: the numbers;
                                    PROTOCOL: config and incomparable under it; protocols: those it runs under;
                                    columns: those it stands in, if not in all;
                                    round: its numbers are those after that round, so shorter rows share longer runs
    [stand_ins.DATASET]             name of the dataset that takes its place where it is not here, and what that means
    [[claims]]                      says, rule, better (a row), than (a row; none: zero), by, columns, protocols: Claim
    [figure]                        the recipe is a figure: shows, kind, x, and values of a key, a column each: Figure

A row's `incomparable` is a text, or one for each of some columns: { "fmnist-*|svhn-*" = "why" }.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatch
from pathlib import Path
from typing import cast

from kinfed.config import Table, build, merge_tables, read_toml, set_value
from kinfed.data import DATASETS
from kinfed.errors import ConfigError
from kinfed.recipes.cells import data_of
from kinfed.recipes.measures import MEASURES, Printed
from kinfed.recipes.recipe import Claim, Column, Figure, Protocol, Recipe, Row, StandIn, Sweep, Under
from kinfed.recipes.rules import PLACES, RULES
from kinfed.registry import explain_unknown, look_up

FOLDER = Path(__file__).parent
NUMBER = re.compile(r"(-?[\d.]+)(?:\s*±\s*([\d.]+))?")
BLANK = "–"


def list_recipes() -> list[str]:
    """All recipes there are; files that begin with an underscore hold what some of them have in common."""
    return sorted(path.stem for path in FOLDER.glob("*.toml") if not path.stem.startswith("_"))


def tables_of(paper: str) -> tuple[str, ...]:
    """All tables and figures of a paper, which is the first word of their names."""
    return tuple(name for name in list_recipes() if name.split("-")[0] == paper)


def load_recipe(name: str) -> Recipe:
    """The recipe of this name, or the one in this file."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if path.parent == FOLDER:
        if len(tables := tables_of(name)) > 1:
            raise ConfigError(f"'{name}' is a paper: --paper {name} runs all of {', '.join(tables)}; or name some")
        look_up(name, dict.fromkeys(list_recipes()), "table")
    return read_recipe(path.stem, extend(read_toml(path)))


def extend(table: Table, seen: tuple[str, ...] = ()) -> Table:
    """The table laid over the one of the recipe that it `extends`, if it does; none may extend itself."""
    if "extends" not in table:
        return table
    name = read_text(table, "extends", "recipe")
    if name in seen:
        raise ConfigError(f"extends: '{name}' extends itself, by way of {', '.join(seen)}; leave one of these out")
    under = extend(read_toml(FOLDER / f"{name}.toml"), (*seen, name))
    both = merge_tables(under, {key: value for key, value in table.items() if key != "extends"})
    own, rows = inner_table(table, "rows", ""), inner_table(both, "rows", "")
    rows = {name: rows[name] for name in dict.fromkeys((*own, *rows))}  # in the upper one's order
    return both | {"rows": rows, "claims": join_claims(under, table)}


def join_claims(under: Table, over: Table) -> list[object]:
    """The claims of both tables; a figure that is laid over a table has its own alone."""
    inherited = [] if "figure" in over and "figure" not in under else read_list(under, "claims", "recipe")
    return [*inherited, *read_list(over, "claims", "recipe")]


def read_recipe(name: str, table: Table) -> Recipe:
    """The recipe of a TOML file's table."""
    check_keys(table, ["datasets", *(f.name for f in fields(Recipe) if f.name != "name")], name)
    figure = build(Figure, table["figure"], f"{name}: figure") if "figure" in table else None
    protocols = {
        key: read_protocol(key, inner, f"{name}: protocols.{key}") for key, inner in sections(table, "protocols", name)
    }
    columns = read_columns(table, tuple(protocols), name) | (make_axis(figure) if figure else {})
    measures = read_texts(table, "measures", name)
    if not measures:
        raise ConfigError(f"{name}.measures: wanted at least one of {', '.join(MEASURES)}, got none")
    for measure in measures:
        look_up(measure, MEASURES, "measure")
    shape = TableShape(tuple(columns), tuple(protocols), len(measures))
    recipe = Recipe(
        name, read_text(table, "title", name), read_text(table, "paper", name), measures,
        look_up(read_text(table, "main", name, measures[0]), {m: m for m in measures}, "main measure"),
        read_text(table, "target", name, ""),
        read_texts(table, "notes", name),
        inner_table(table, "config", name), inner_table(table, "quick", name), columns, protocols,
        {key: read_row(key, inner, shape, f"{name}: rows.{key}") for key, inner in sections(table, "rows", name)},
        {key: build(StandIn, inner, f"{name}: stand_ins.{key}") for key, inner in sections(table, "stand_ins", name)},
        tuple(build(Claim, inner, f"{name}: claims") for inner in read_list(table, "claims", name)), figure,
    )  # fmt: skip
    check_claims(recipe)
    check_rounds(recipe)
    check_target(recipe)
    return recipe


@dataclass(frozen=True)
class TableShape:
    """What a row may speak of."""

    columns: tuple[str, ...]
    protocols: tuple[str, ...]
    measures: int


def read_columns(table: Table, protocols: Sequence[str], at: str) -> dict[str, Column]:
    """The columns by name, each over what the recipe says of its dataset."""
    columns, datasets = sections(table, "columns", at), dict(sections(table, "datasets", at))
    config = inner_table(table, "config", at)
    data = {
        key: data_of(merge_tables(config, inner_table(inner, "config", f"{at}: columns.{key}")))
        for key, inner in columns
    }
    for name in datasets.keys() - data.values():  # a recipe that this one extends may have more columns
        look_up(name, DATASETS, f"{at}: dataset")
    shared = {name: expand_protocols(inner, protocols, f"{at}: datasets.{name}") for name, inner in datasets.items()}
    return {
        key: read_column(key, merge_tables(shared.get(data[key], {}), inner), protocols, f"{at}: columns.{key}")
        for key, inner in columns
    }


def expand_protocols(table: Table, protocols: Sequence[str], at: str) -> Table:
    """What is said of a dataset, with the name of each protocol in the place of patterns."""
    plain = ("config", "quick")
    found: Table = {key: table[key] for key in plain if key in table}
    for patterns in (key for key in table if key not in plain):
        under: Table = {"config": read_under(table[patterns], f"{at}.{patterns}").config}
        fit = [name for name in protocols if any(fnmatch(name, pattern) for pattern in patterns.split("|"))]
        found = merge_tables(found, dict.fromkeys(fit, under))
    return found


def read_column(name: str, table: Table, protocols: Sequence[str], at: str) -> Column:
    check_keys(table, ("title", "config", "quick", "incomparable", "x", "each", *protocols), at)
    config, quick = (inner_table(table, key, at) for key in ("config", "quick"))
    x = read_number(table["x"], at) if "x" in table else None
    reason = read_text(table, "incomparable", at, "")
    each = tuple(as_table(part, f"{at}.each") for part in read_list(table, "each", at))
    under = {key: read_under(table[key], f"{at}.{key}").config for key in protocols if key in table}
    return Column(name, read_text(table, "title", at), config, quick, reason, under, x.value if x else None, each)


def make_axis(figure: Figure) -> dict[str, Column]:
    """A column for each value of the figure's key."""
    return {
        f"{value:g}": Column(
            f"{value:g}", f"{figure.x} = {value:g}", set_value({}, figure.key.split("."), value), x=value
        )
        for value in figure.values
    }


def read_protocol(name: str, table: Table, at: str) -> Protocol:
    check_keys(table, ("says", "config", "sweep", "judged"), at)
    sweep = build(Sweep, table["sweep"], f"{at}.sweep") if "sweep" in table else None
    judged = table.get("judged", True)
    if not isinstance(judged, bool):
        raise ConfigError(f"{at}.judged: wanted true or false, got {judged!r}")
    return Protocol(name, read_text(table, "says", at), inner_table(table, "config", at), sweep, judged)


def read_row(name: str, table: Table, shape: TableShape, at: str) -> Row:
    known = ("title", "config", "at", "published", "protocols", "columns", "incomparable", "round")
    check_keys(table, (*known, *shape.protocols), at)
    runs_under = read_texts(table, "protocols", at) or shape.protocols
    for protocol in runs_under:
        look_up(protocol, dict.fromkeys(shape.protocols), f"{at}: protocol")
    columns = read_texts(table, "columns", at) or shape.columns
    for column in columns:
        look_up(column, dict.fromkeys(shape.columns), f"{at}: column")
    inner = {key: inner_table(table, key, at) for key in ("at", "published")}
    for key, found in inner.items():
        check_keys(found, shape.columns, f"{at}.{key}")
    return Row(
        name, read_text(table, "title", at), inner_table(table, "config", at), cast("dict[str, Table]", inner["at"]),
        {protocol: read_under(table.get(protocol, {}), f"{at}.{protocol}") for protocol in runs_under},
        {column: read_published(cell, shape.measures, f"{at}.{column}") for column, cell in inner["published"].items()},
        read_reasons(table, at), read_round(table, at), columns,
    )  # fmt: skip


def read_round(table: Table, at: str) -> int:
    """The round after which a row's numbers are taken; 0: at the end."""
    value = table.get("round", 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"{at}.round: wanted the number of a round, got {value!r}")
    return value


def read_under(table: object, at: str) -> Under:
    found = as_table(table, at)
    check_keys(found, ("config", "incomparable"), at)
    return Under(inner_table(found, "config", at), read_reasons(found, at))


def read_reasons(table: Table, at: str) -> dict[str, str]:
    """Why numbers cannot be compared, by patterns of columns."""
    value = table.get("incomparable", {})
    found: Table = {"*": value} if isinstance(value, str) else as_table(value, f"{at}.incomparable")
    return {patterns: read_text(found, patterns, f"{at}.incomparable") for patterns in found}


def read_published(cell: object, measures: int, at: str) -> tuple[Printed | None, ...]:
    """The numbers of a cell: one for each measure, "–" where the paper has none; a single one is of the first."""
    found = cell if isinstance(cell, list) else [cell, *[BLANK] * (measures - 1)]
    if len(found) != measures:
        raise ConfigError(f"{at}: wanted {measures} numbers, one for each measure, got {found}")
    return tuple(read_number(value, at) for value in found)


def read_number(value: object, at: str) -> Printed | None:
    """82.73 or "82.73 ± .38"."""
    if value == BLANK:
        return None
    match = NUMBER.fullmatch(str(value).strip())
    if match is None or isinstance(value, bool):
        raise ConfigError(f'{at}: wanted a number as in 82.73, "82.73 ± .38" or "{BLANK}", got {value!r}')
    return Printed(float(match[1]), None if match[2] is None else float(match[2]))


def check_claims(recipe: Recipe) -> None:
    for claim in recipe.claims:
        for row in filter(None, (claim.better, claim.than)):
            look_up(row, recipe.rows, f"{recipe.name}: row of a claim")
        for column in filter(None, (*claim.columns, claim.than_column)):
            look_up(column, recipe.columns, f"{recipe.name}: column of a claim")
        for measure in filter(None, (claim.measure, claim.than_measure)):
            look_up(measure, dict.fromkeys(recipe.measures), f"{recipe.name}: measure of a claim")
        for protocol in filter(None, (*claim.protocols, claim.than_protocol)):
            look_up(protocol, recipe.protocols, f"{recipe.name}: protocol of a claim")
        look_up(claim.rule, dict.fromkeys(RULES), f"{recipe.name}: rule of a claim")
        if (places := PLACES.get(claim.rule, 0)) and len(claim.between) != places:
            raise ConfigError(
                f"{recipe.name}: the claim '{claim.says}' is by '{claim.rule}', which wants {places} in `between`, got "
                f"{list(claim.between)}: say from where on, or from where to where, on the axis"
            )


def check_rounds(recipe: Recipe) -> None:
    """Raises where a row wants numbers after a round that are known at the end alone."""
    early = [row.name for row in recipe.rows.values() if row.round]
    late = [name for name in recipe.measures if not MEASURES[name].column or MEASURES[name].over]
    if early and late:
        raise ConfigError(f"{recipe.name}: rows.{early[0]}.round: {late[0]} is measured at the end of a run alone")


def check_target(recipe: Recipe) -> None:
    """Raises where costs to a target are wanted, and the main number is not one that rises round by round."""
    if not recipe.target:
        return
    look_up(recipe.target, recipe.rows, f"{recipe.name}.target: row")
    measure = MEASURES[recipe.main]
    if not measure.column or measure.lower_is_better or measure.over:
        known = ", ".join(name for name, m in MEASURES.items() if m.column and not m.lower_is_better)
        raise ConfigError(
            f"{recipe.name}.target: costs are counted until the main number is reached, and {recipe.main} is known at "
            f"the end of a run alone, or better where it is lower; set main to one of {known}, or leave out target"
        )


def check_keys(table: Table, keys: Sequence[str], at: str) -> None:
    for key in table:
        if key not in keys:
            raise ConfigError(f"{at}: {explain_unknown(key, keys, 'key')}")


def sections(table: Table, key: str, at: str) -> list[tuple[str, Table]]:
    """The inner tables of a section, by name."""
    return [(name, as_table(inner, f"{at}: {key}.{name}")) for name, inner in inner_table(table, key, at).items()]


def inner_table(table: Table, key: str, at: str) -> Table:
    return as_table(table.get(key, {}), f"{at}.{key}")


def as_table(value: object, at: str) -> Table:
    if not isinstance(value, dict):
        raise ConfigError(f"{at}: wanted a table, got {value!r}")
    return value


def read_text(table: Table, key: str, at: str, default: str | None = None) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise ConfigError(f"{at}.{key}: wanted text, got {value!r}")
    return value


def read_list(table: Table, key: str, at: str) -> list[object]:
    value = table.get(key, [])
    if not isinstance(value, list):
        raise ConfigError(f"{at}.{key}: wanted a list of tables, got {value!r}")
    return value


def read_texts(table: Table, key: str, at: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ConfigError(f"{at}.{key}: wanted a list of texts, got {value!r}")
    return tuple(value)
