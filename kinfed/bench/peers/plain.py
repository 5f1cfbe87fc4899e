"""The yardstick: a plain PyTorch loop over the clients, with nothing in it that the work does not need."""

from collections.abc import Callable

from kinfed.bench.peers.protocol import Job, drive


def start(job: Job) -> Callable[[int], object]:
    """A round of FedAvg: every client trains the same module from the global weights, which are then averaged."""
    import torch

    from kinfed.bench.peers.torch_net import network

    torch.set_num_threads(job.threads)
    module = network(job.network, job.classes).to(job.device)
    x, y = (torch.from_numpy(rows).to(job.device) for rows in (job.floats(), job.labels()))
    server = [w.detach().clone() for w in module.parameters()]

    def run(round: int) -> None:
        total = [torch.zeros_like(w) for w in server]
        for client in job.chosen(round):
            with torch.no_grad():
                torch._foreach_copy_(list(module.parameters()), server)
            train(client)
            torch._foreach_add_(total, [w.detach() for w in module.parameters()], alpha=1 / job.cohort)
        server[:] = total
        if job.device != "cpu":
            torch.cuda.synchronize()

    def train(client: int) -> None:
        optimiser = torch.optim.SGD(module.parameters(), lr=job.lr, momentum=job.momentum)
        for _ in range(job.epochs):
            for pick in torch.randperm(job.lengths[client], device=job.device).split(job.batch):
                optimiser.zero_grad(set_to_none=True)
                torch.nn.functional.cross_entropy(module(x[client, pick]), y[client, pick]).backward()
                optimiser.step()

    return run


if __name__ == "__main__":
    drive(start)
