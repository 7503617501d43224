"""The torch.distributed backend: `dist.init_process_group("unisono")` on CPU tensors.

No import is needed: once the package is installed, `import torch` calls `register` through an entry point. The other
modules are loaded when the first process group is made.
"""

from .register import register

__all__ = ["register"]
