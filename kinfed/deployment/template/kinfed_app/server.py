"""The app that Flower's server runs. Started again with the same `out`, it goes on from its checkpoint."""

from pathlib import Path

from kinfed.config import load_config
from kinfed.deployment import read_plan
from kinfed.deployment.server import app_for

HERE = Path(__file__).parent

app = app_for(load_config(HERE / "config.toml"), Path("runs/first"), read_plan(HERE / "plan.toml"))
