"""`compress_hook`: gradients of DistributedDataParallel by `Compression`. Annotations are objects, as torch wants."""

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not in torch's __all__
from torch.futures import Future

from .compressed import Compression


def compress_hook(state: Compression, bucket: GradBucket) -> Future[torch.Tensor]:
    """A hook for `register_comm_hook` that averages gradients with rounded values between hosts.

    state: a `Compression` of the model's process group, for this model alone.
    """
    gradients = bucket.buffer()
    layout = tuple(map(id, bucket.parameters()))  # after its first step, the model fills its buckets in another way
    if state.layouts.get(bucket.index()) != layout:
        state.forget(bucket.index())
        state.layouts[bucket.index()] = layout
    work = state.all_reduce(gradients, "avg", name=bucket.index(), async_op=True)

    def value(_: Future[torch.Tensor]) -> torch.Tensor:
        work.wait()  # raises the call's error: torch takes a future's error for a value
        return gradients

    future: Future[torch.Tensor] = work.get_future().then(value)
    return future
