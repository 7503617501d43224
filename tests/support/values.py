"""Values that ranks pass: others for each seed and at each index."""

import torch


def values(count: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Whole numbers below 251, of which each is another one for 251 elements, and for 251 seeds."""
    period = (torch.arange(251) * 7 + seed * 131) % 251
    return period.to(dtype).repeat(-(-count // 251))[:count]
