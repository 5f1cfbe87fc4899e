"""The papers' tables as recipes: what to run for each cell, and the numbers that were published."""

from kinfed.recipes.cells import Cell, Wanted, cells_of, digest, refuse_unknown
from kinfed.recipes.measures import MEASURES, Measure, Run
from kinfed.recipes.outcome import Outcome, Result, references, result_of
from kinfed.recipes.reading import load_recipe, names
from kinfed.recipes.recipe import Recipe

__all__ = [
    "MEASURES",
    "Cell",
    "Measure",
    "Outcome",
    "Recipe",
    "Result",
    "Run",
    "Wanted",
    "cells_of",
    "digest",
    "load_recipe",
    "names",
    "references",
    "refuse_unknown",
    "result_of",
]
