"""fedjax: federated_averaging on its default backend, one compiled step at a time."""

import os
from collections.abc import Callable

from kinfed.bench.drivers import Job, drive


def start(job: Job) -> Callable[[int], object]:
    """A round of its FedAvg."""
    if job.threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax

    for name in ("tree_map", "tree_leaves"):  # newer versions of jax have moved them, fedjax has not
        setattr(jax, name, getattr(jax.tree_util, name))
    import fedjax
    import haiku
    import jax.numpy as jnp
    import numpy as np

    images, labels = job.floats(), job.labels()

    def forward(batch: dict[str, object]) -> object:
        x = batch["x"]
        if job.network == "mlp":
            return haiku.Linear(job.classes)(jax.nn.relu(haiku.Linear(200)(x)))
        x = jnp.reshape(x, (-1, 28, 28, 1))
        for channels in (32, 64):
            x = haiku.MaxPool(2, 2, "VALID")(jax.nn.relu(haiku.Conv2D(channels, 5, padding="SAME")(x)))
        return haiku.Linear(job.classes)(jax.nn.relu(haiku.Linear(512)(haiku.Flatten()(x))))

    def loss(batch: dict[str, object], scores: object) -> object:
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), batch["y"][:, None], 1)[:, 0]

    net = haiku.transform(lambda batch, is_train=False: forward(batch))
    sample = {"x": np.zeros((1, 784), np.float32), "y": np.zeros((1,), np.int64)}
    model = fedjax.create_model_from_haiku(net, sample, loss, {})
    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=job.batch, num_epochs=1)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model), fedjax.optimizers.sgd(job.lr), fedjax.optimizers.sgd(1.0), batches
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))

    def run(round: int) -> None:
        nonlocal state
        cohort = [
            (
                str(c).encode(),
                fedjax.ClientDataset({"x": images[c], "y": labels[c]}),
                jax.random.PRNGKey(round * job.clients + c),
            )
            for c in job.sample_cohort(round)
        ]
        state, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(state.params)

    return run


if __name__ == "__main__":
    drive(start)
