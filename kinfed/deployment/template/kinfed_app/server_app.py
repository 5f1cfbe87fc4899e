"""The app that Flower's server runs. Started again with the same `out`, it resumes from its checkpoint."""

from pathlib import Path

from kinfed.config import load_config
from kinfed.deployment import make_server_app, read_plan

HERE = Path(__file__).parent

app = make_server_app(load_config(HERE / "config.toml"), Path("runs/first"), read_plan(HERE / "plan.toml"))
