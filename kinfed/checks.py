"""Checks of settings, made where they enter."""

import math
from numbers import Real

from kinfed.errors import ConfigError


def number(**settings: object) -> None:
    """Raise ConfigError for the first of these settings that is no number."""
    for name, value in settings.items():
        if not isinstance(value, Real):
            raise ConfigError(f"{name} must be a number, got {value!r}")


def at_least(minimum: float, /, **settings: float) -> None:
    """Raise ConfigError for the first of these settings that is below the minimum, or not finite."""
    number(**settings)
    for name, value in settings.items():
        if not minimum <= value < math.inf:
            raise ConfigError(f"{name} must be at least {minimum}, got {value}")


def seed_of_numpy(seed: int) -> None:
    """Raise ConfigError unless numpy, scikit-learn and UMAP take it."""
    within(0, 2**32 - 1, seed=seed)


def within(least: int, most: int, /, **settings: int) -> None:
    """Raise ConfigError for the first of these settings that is not one of least..most."""
    number(**settings)
    for name, value in settings.items():
        if not least <= value <= most:
            raise ConfigError(f"{name} must be {least}..{most}, got {value}")


def between(least: float, most: float, /, **settings: float) -> None:
    """Raise ConfigError for the first of these settings that is not a number within least..most."""
    number(**settings)
    for name, value in settings.items():
        if not least <= value <= most:
            raise ConfigError(f"{name} must be within {least:g}..{most:g}, got {value}")


def above_zero(**settings: float) -> None:
    """Raise ConfigError for the first of these settings that is not a finite number above 0."""
    number(**settings)
    for name, value in settings.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} must be a number above 0, got {value}")


def fraction(**settings: float) -> None:
    """Raise ConfigError for the first of these settings that is not within 0..1."""
    number(**settings)
    for name, value in settings.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name} must be a fraction 0..1, got {value}")


def one_of(choices: tuple[str, ...], /, **settings: str) -> None:
    """Raise ConfigError for the first of these settings that is not one of the choices."""
    for name, value in settings.items():
        if value not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(choices)}, got '{value}'")
