"""torchmetrics over ranks that have seen different numbers of examples: torchrun metrics.py BACKEND DIRECTORY."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import distributed
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassConfusionMatrix

CLASSES = 3


def metrics(**options: bool) -> MetricCollection:
    """Counts are added over the ranks; the scores of MulticlassAUROC are brought together, however many there are."""
    kinds = [MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassAUROC]
    return MetricCollection({kind.__name__: kind(CLASSES, **options) for kind in kinds})


def main(backend: str, directory: str) -> None:
    distributed.init_process_group(backend)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    generator = torch.Generator().manual_seed(0)
    batches = []
    for count in (7, 20, 3, 11, 1):
        scores = torch.rand(count, CLASSES, generator=generator).softmax(1)
        batches.append((scores, torch.randint(CLASSES, (count,), generator=generator)))
    mine, whole = metrics(), metrics(sync_on_compute=False)
    for scores, classes in batches[rank::size]:
        mine.update(scores, classes)
    for scores, classes in batches:
        whole.update(scores, classes)
    mean = MeanMetric()
    mean.update(torch.full((rank + 1,), float(rank)))  # rank r has r + 1 times r
    result = {
        "group": type(distributed.group.WORLD).__name__,
        "mine": {name: value.tolist() for name, value in mine.compute().items()},
        "whole": {name: value.tolist() for name, value in whole.compute().items()},
        "mean": mean.compute().item(),
    }
    Path(directory, f"{os.environ['RANK']}.json").write_text(json.dumps(result))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
