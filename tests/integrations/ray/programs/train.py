"""A model that Ray Train trains on two workers; prints, as JSON, what each worker has and what weights are right.

Ray Train starts seven processes for it, which import torch and more: on a busy machine that is most of the time.

python train.py DIRECTORY [BACKEND]   without one: the backend that Ray Train chooses
"""

import json
import sys
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from torch import distributed, nn

WORKERS, STEPS = 2, 5


def parts(rank: int) -> tuple[nn.Module, torch.optim.Optimizer, list[torch.Tensor]]:
    """A worker's model, the same for all, its optimizer, and its own data."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    generator = torch.Generator().manual_seed(rank)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), [
        torch.randn(8, 4, generator=generator) for _ in range(STEPS)
    ]  # fmt: skip


def flat(model: nn.Module) -> list[float]:
    """All weights."""
    return list(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist())


def train(config: dict[str, Any]) -> None:
    """What a worker does."""
    rank = distributed.get_rank()
    model, optimizer, data = parts(rank)
    model = ray.train.torch.prepare_model(model)
    for batch in data:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    found = [distributed.get_backend(), type(distributed.group.WORLD).__name__, flat(model)]
    Path(config["directory"], f"{rank}.json").write_text(json.dumps(found))


def expected() -> list[float]:
    """The weights after the same steps in one process, with the mean of the workers' gradients."""
    workers = [parts(rank) for rank in range(WORKERS)]
    for step in range(STEPS):
        for model, optimizer, data in workers:
            optimizer.zero_grad()
            model(data[step]).square().mean().backward()
        for same in zip(*(model.parameters() for model, _, _ in workers), strict=True):
            mean = torch.stack([parameter.grad for parameter in same]).mean(0)
            for parameter in same:
                parameter.grad = mean.clone()
        for _, optimizer, _ in workers:
            optimizer.step()
    return flat(workers[0][0])


def main(directory: str, backend: str | None = None) -> None:
    """Train, and print what the workers have written."""
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"directory": directory},
        torch_config=ray.train.torch.TorchConfig(backend=backend),
        scaling_config=ray.train.ScalingConfig(num_workers=WORKERS, use_gpu=False, resources_per_worker={"CPU": 1}),
        run_config=ray.train.RunConfig(storage_path=directory),
    )
    trainer.fit()
    found = [json.loads(Path(directory, f"{rank}.json").read_text()) for rank in range(WORKERS)]
    sys.stdout.write("\n" + json.dumps({"workers": found, "expected": expected()}) + "\n")
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
