"""`dist.init_process_group("unisono")`: the calls of torch.distributed on CPU tensors, through this library.

Nothing has to be imported: once the package is installed, `import torch` calls `register` through an entry point. All
the rest is loaded when the first process group is made.
"""

from .register import register

__all__ = ["register"]
