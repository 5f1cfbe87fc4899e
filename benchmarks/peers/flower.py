"""Flower: its simulation on Ray, one actor for each thread, driven by its own FedAvg strategy."""

import os
import tempfile

from kinfed.bench.drivers import exit_without, read_job

FOREVER = 10**6  # rounds; the process is ended from outside


def main() -> None:
    """Rounds until the race is over."""
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")
    os.environ.setdefault("FLWR_HOME", os.path.join(tempfile.gettempdir(), "kinfed-bench-flower"))
    job = read_job()
    try:
        from flwr.simulation import run_simulation
        from peers import flower_apps  # actors must be able to import them by name
    except ImportError as error:
        exit_without(error)
    flower_apps.begin()
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(
        flower_apps.server,
        flower_apps.client,
        num_supernodes=job.clients,
        backend_config={"client_resources": resources, "init_args": {"num_cpus": job.threads}},
    )


if __name__ == "__main__":
    main()
