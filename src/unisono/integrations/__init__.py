"""Where other libraries plug in: torch.distributed."""
