"""torch.distributed on our backend and on Gloo, in the same two ranks.

groups   the process groups        calls    single calls
report   the results as Markdown   steps    training steps
"""

__all__: list[str] = []
