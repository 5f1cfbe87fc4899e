"""The papers' tables as recipes: what to run for each cell, and the numbers that were published."""

from kinfed.recipes.cells import Cell, Wanted, cells_of, digest, refuse_unknown
from kinfed.recipes.measures import MEASURES, Measure
from kinfed.recipes.outcome import Outcome, Result, references, result_of
from kinfed.recipes.recipe import Recipe
from kinfed.recipes.recipe_files import list_recipes, load_recipe

__all__ = [
    "MEASURES",
    "Cell",
    "Measure",
    "Outcome",
    "Recipe",
    "Result",
    "Wanted",
    "cells_of",
    "digest",
    "list_recipes",
    "load_recipe",
    "references",
    "refuse_unknown",
    "result_of",
]
