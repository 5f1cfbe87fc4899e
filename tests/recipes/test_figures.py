"""The files of figures: their names, and which of them a page shows."""

from dataclasses import replace

from kinfed.recipes import Outcome, Wanted, cells_of, load_recipe
from kinfed.recipes.figures import draw_panels, embed_figures, list_files
from kinfed.recipes.outcome import judge_numbers


def test_a_file_is_named_by_the_column_row_and_protocol_of_its_run():
    assert [ending for ending, _ in list_files(load_recipe("flt-figure-k"))] == [""]
    endings = [ending for ending, _ in list_files(load_recipe("flt-figure-2"))]
    assert endings[:2] == ["-one-flt-paper", "-one-flt-fair"] and len(endings) == 4 * 2
    assert [ending for ending, _ in list_files(load_recipe("flt-figure-clients"))] == [
        "-one-fair", "-two-fair", "-four-fair",
    ]  # fmt: skip


def test_a_page_shows_the_files_of_its_own_figure_with_what_they_are_of(tmp_path):
    for name in ("flt-figure-encoder", "flt-figure-encoder-cifar10-two-enc1-paper", "flt-figure-encoder-old"):
        (tmp_path / f"{name}.svg").touch()
    lines = embed_figures(load_recipe("flt-figure-encoder"), tmp_path)
    assert lines.count("![") == 1 and "](flt-figure-encoder.svg)" in lines
    single = embed_figures(load_recipe("flt-figure-encoder-cifar10"), tmp_path)
    assert "\nscenario 2, Enc1, paper:\n" in single and "](flt-figure-encoder-cifar10-two-enc1-paper.svg)" in single


def test_a_line_names_its_protocol_where_there_are_several_and_has_points_where_they_are_few():
    def draw(name, rounds):
        recipe = load_recipe(name)
        cell = next(iter(cells_of(recipe, Wanted())))
        numbers = {f"{recipe.main}@{at}": 50.0 for at in range(1, rounds + 1)}
        return draw_panels(Outcome(recipe, (judge_numbers(recipe, replace(cell, missing=()), {0: numbers}),)))

    few, many = draw("flis-figure-4", 5), draw("repa-figure-3", 30)
    assert {row["line"] for row in few.tables["points0"]} == {"FedAvg"}
    assert {row["line"] for row in many.tables["points0"]} == {"FedAvg, plain"}
    assert [chart.panels[0]["layer"][1]["mark"]["point"] for chart in (few, many)] == [True, False]
