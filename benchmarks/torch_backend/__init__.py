"""torch.distributed on our backend and on Gloo, in the same two ranks: single calls, and training steps."""
