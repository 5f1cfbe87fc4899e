"""The files of figures: their names, and which of them a page shows."""

from dataclasses import replace

import pytest

from kinfed.recipes import Outcome, Wanted, cells_of, load_recipe
from kinfed.recipes.figures import MARGIN, Panel, draw_panels, embed_figures, list_files
from kinfed.recipes.measures import MEASURES
from kinfed.recipes.outcome import judge_numbers
from kinfed.recipes.outcome_tables import line_tables


def test_a_file_is_named_by_the_column_row_and_protocol_of_its_run():
    assert [ending for ending, _ in list_files(load_recipe("flt-figure-k"))] == [".svg"]
    endings = [ending for ending, _ in list_files(load_recipe("flt-figure-2"))]
    assert endings[:2] == ["-one-flt-paper.png", "-one-flt-fair.png"] and len(endings) == 4 * 2
    assert [ending for ending, _ in list_files(load_recipe("flt-figure-clients"))] == [
        "-one-fair.svg", "-two-fair.svg", "-four-fair.svg",
    ]  # fmt: skip


def test_a_page_shows_the_files_of_its_own_figure_with_what_they_are_of(tmp_path):
    for name in (
        "flt-figure-encoder.svg",
        "flt-figure-encoder-cifar10-two-enc1-paper.png",
        "flt-figure-encoder-old.svg",
    ):
        (tmp_path / name).touch()
    lines = embed_figures(load_recipe("flt-figure-encoder"), tmp_path)
    assert lines.count("![") == 1 and "](flt-figure-encoder.svg)" in lines
    single = embed_figures(load_recipe("flt-figure-encoder-cifar10"), tmp_path)
    assert "\nscenario 2, Enc1, paper:\n" in single and "](flt-figure-encoder-cifar10-two-enc1-paper.png)" in single


def test_rows_differ_in_colour_protocols_in_dashes_and_few_numbers_have_points():
    def draw(name, rounds):
        recipe = load_recipe(name)
        numbers = {f"{recipe.main}@{at}": 50.0 for at in range(1, rounds + 1)}
        cells = [replace(cell, missing=()) for cell in cells_of(recipe, Wanted())]
        chart = draw_panels(Outcome(recipe, tuple(judge_numbers(recipe, cell, {0: numbers}) for cell in cells)))
        return chart.panels[-1]["layer"]

    few, many = draw("flis-figure-4", 5), draw("repa-figure-3", 30)
    colour = few[1]["encoding"]["color"]["scale"]["domain"]
    assert colour[:2] == ["FedAvg", "LG"] and "strokeDash" not in few[1]["encoding"]
    assert many[1]["encoding"]["strokeDash"]["scale"]["domain"] == ["plain", "prox"]
    assert [layer["mark"]["type"] for layer in few] == ["area", "line", "point"] and len(many) == 2
    thirteen = draw("flt-figure-4", 5)[1]["encoding"]["color"]["scale"]
    assert len(thirteen["domain"]) == len(set(thirteen["range"])) == 13 and "range" not in few[1]["encoding"]["color"]


def test_a_table_of_lines_says_over_how_many_seeds_they_are_means_where_it_is_more_than_one():
    recipe = load_recipe("flt-figure-u")
    cells = [replace(cell, missing=()) for cell in cells_of(recipe, Wanted())]

    def first_table(seeds_of):
        numbers = [{seed: {"ari": seed / 2, "clusters": 5} for seed in range(seeds_of(cell))} for cell in cells]
        return next(
            rows
            for _, rows in line_tables(
                Outcome(recipe, tuple(map(judge_numbers, [recipe] * len(cells), cells, numbers)))
            )
        )

    assert first_table(lambda cell: 1)[0] == ["u", "protocol", "2", "3", "5", "10"]
    two = first_table(lambda cell: 2 if cell.protocols == ("scenario-1",) and cell.column.name == "5" else 1)
    title = "matching (FLT's code)"
    assert two == [
        ["u", "protocol", "2", "3", "5", "10", "seeds"],
        [title, "scenario-1", "0.00", "0.00", "0.25", "0.00", "1 to 2"],
        [title, "scenario-2", "0.00", "0.00", "0.00", "0.00", "1"],
    ]


def test_a_table_of_lines_shows_where_each_line_ends_also_between_its_steps():
    recipe = load_recipe("flis-figure-4")
    cells = [cell for cell in cells_of(recipe, Wanted(columns=("fmnist",))) if cell.row.name in ("fedavg", "lg")]
    ends = {"fedavg": 100, "lg": 150}
    numbers = [{0: {f"{recipe.main}@{at}": at for at in range(10, ends[cell.row.name] + 1, 10)}} for cell in cells]
    cells = [replace(cell, missing=()) for cell in cells]
    found = Outcome(recipe, tuple(map(judge_numbers, [recipe] * len(cells), cells, numbers)))
    (header, *rows), *_ = (rows for _, rows in line_tables(found))
    assert header == ["round", "protocol", "10", "30", "50", "70", "90", "100", "110", "130", "150"]
    assert {row[0]: row[-4:] for row in rows} == {
        "FedAvg": ["100.00", "–", "–", "–"],
        "LG": ["100.00", "110.00", "130.00", "150.00"],
    }


def test_one_long_line_leaves_the_rounds_of_the_others_in_a_table():
    recipe = load_recipe("flis-figure-4")
    rows = ("fedavg", "lg", "ifca")
    cells = [replace(c, missing=()) for c in cells_of(recipe, Wanted(columns=("fmnist",))) if c.row.name in rows]
    ends = {"fedavg": 60, "lg": 60, "ifca": 900}
    numbers = [{0: {f"{recipe.main}@{at}": at for at in range(10, ends[cell.row.name] + 1, 10)}} for cell in cells]
    found = Outcome(recipe, tuple(map(judge_numbers, [recipe] * len(cells), cells, numbers)))
    (header, *_), *_ = (rows for _, rows in line_tables(found))
    assert header == ["round", "protocol", "10", "20", "30", "40", "50", "60", "900"]


def panel_of(places, values, measure="ari"):
    rows = [{"line": "FLT", "x": x, "y": y, "low": y, "high": y} for x, y in zip(places, values, strict=True)]
    return Panel(MEASURES[measure], "", rows)


def test_numbers_that_hardly_differ_do_not_fill_a_panel():
    assert panel_of([1, 2], [0.4, 0.9]).heights == {"zero": False, "padding": MARGIN}
    assert panel_of([1, 2], [0.90, 0.92]).heights["domain"] == [0.85, 0.97]


def test_an_axis_of_shares_does_not_begin_below_zero():
    assert panel_of([1, 2], [0.0, 0.9]).heights == {"zero": True}


def test_an_axis_is_logarithmic_where_each_place_is_the_same_multiple_of_the_one_before():
    values = [1.0] * 5
    assert panel_of([0.25, 0.5, 1, 2, 4], values).widths["type"] == "log"
    assert all("type" not in panel_of(places, values).widths for places in ([0, 0.5, 1, 2, 4], [1, 5, 10, 20, 30]))


def test_an_axis_is_logarithmic_where_one_line_is_far_longer_than_most():
    """IFCA's 1500 rounds beside a hundred of all others would leave these a fifteenth of the panel."""
    others = [{"line": name, "x": x, "y": 1.0, "low": 1.0, "high": 1.0} for name in "abc" for x in range(10, 101, 10)]
    long = [{"line": "d", "x": x, "y": 1.0, "low": 1.0, "high": 1.0} for x in range(10, 1501, 10)]
    assert Panel(MEASURES["accuracy"], "", others + long).widths["type"] == "log"
    assert "type" not in Panel(MEASURES["accuracy"], "", others + long[:40]).widths


def test_no_point_lies_on_the_end_of_an_axis():
    for places in ([10, 30], [0.25, 0.5, 1, 2, 4]):
        assert panel_of(places, [1.0] * len(places)).widths["padding"] == MARGIN


def test_the_band_of_a_line_does_not_go_below_zero_where_no_number_does():
    recipe = load_recipe("flt-figure-k")
    cells = [replace(cell, missing=()) for cell in cells_of(recipe, Wanted())]
    seeds = {0: {"ari": -0.5, "clusters": 1}, 1: {"ari": 0.5, "clusters": 17}}
    chart = draw_panels(Outcome(recipe, tuple(judge_numbers(recipe, cell, seeds) for cell in cells)))
    lows = [min(row["low"] for row in rows) for rows in chart.tables.values()]
    assert lows == [pytest.approx(-0.7071, abs=1e-3), 0.0]


def test_one_panel_has_the_legend_of_all():
    recipe = load_recipe("flt-figure-k")
    cells = [replace(cell, missing=()) for cell in cells_of(recipe, Wanted())]
    chart = draw_panels(Outcome(recipe, tuple(judge_numbers(recipe, c, {0: {"ari": 1, "clusters": 5}}) for c in cells)))
    legends = [panel["layer"][1]["encoding"]["color"]["legend"] for panel in chart.panels]
    assert [legend is None for legend in legends] == [True, False]
