"""Checks of settings, made where they enter."""

from kinfed.errors import ConfigError


def at_least(minimum: float, /, **settings: float) -> None:
    """Raise ConfigError for the first of these settings that is below the minimum."""
    for name, value in settings.items():
        if value < minimum:
            raise ConfigError(f"{name} must be at least {minimum}, got {value}")


def fraction(**settings: float) -> None:
    """Raise ConfigError for the first of these settings that is not within 0..1."""
    for name, value in settings.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name} must be a fraction 0..1, got {value}")


def one_of(choices: tuple[str, ...], /, **settings: str) -> None:
    """Raise ConfigError for the first of these settings that is not one of the choices."""
    for name, value in settings.items():
        if value not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(choices)}, got '{value}'")
