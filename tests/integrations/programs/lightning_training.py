"""PyTorch Lightning: DDP training on this host. lightning_training.py BACKEND DIRECTORY; Lightning starts the ranks."""

import json
import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    """Which half of the plane is a point in?"""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        self.losses: list[float] = []
        self.validated: list[float] = []

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        points, halves = batch
        loss = nn.functional.cross_entropy(self.layers(points), halves)
        self.log("train_loss", loss, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        points, halves = batch
        self.log("accuracy", (self.layers(points).argmax(1) == halves).float().mean(), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            rank = torch.tensor([[float(self.global_rank)]], requires_grad=True)
            assert self.all_gather(rank).flatten().tolist() == list(range(self.trainer.world_size))

    def on_train_epoch_end(self) -> None:
        self.validated.append(self.trainer.callback_metrics["accuracy"].item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.02)


def main(backend: str, directory: str) -> None:
    lightning.seed_everything(0, verbose=False)
    points = torch.randn(301, 2)  # a number that does not go into the batches of the ranks
    data = TensorDataset(points, (points @ torch.tensor([1.0, -2.0]) > 0).long())
    model = Classifier()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=backend),
        max_epochs=3,
        default_root_dir=directory,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, 16, shuffle=True), DataLoader(data, 32))
    result = {
        "group": type(distributed.group.WORLD).__name__,
        "losses": model.losses,
        "accuracies": model.validated,
        "weights": [value for parameter in model.parameters() for value in parameter.flatten().tolist()],
    }
    Path(directory, f"{trainer.global_rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
