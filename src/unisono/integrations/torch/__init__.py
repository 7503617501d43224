"""The torch.distributed backend: `dist.init_process_group("unisono")` on CPU tensors.

No import is needed: once the package is installed, `import torch` calls `register` through an entry point. The other
modules are loaded when the first process group is made.

`create` makes a group, and backends for other devices beside it; `join_group` joins and leaves it. `process_group` has
the classes that torch sees, and `group_methods` their methods. `entry` decorates each method: with the forms of torch's
calls, events for profilers, and torch's classes and phrases of errors (`torch_errors`). `works` are what asynchronous
calls return. `patch` changes torch itself; `shared_buffers` is one reason for it.

`answer_to` changes more: programs that ask for Gloo get our groups (`create_named`, `named_gloo`), also within groups
that they put together. `private_names` lists the names of torch that this library needs; torch may move these names.
"""

from .register import register

# isort: split
import torch  # noqa: F401  it calls `register`, which imports modules of this room, before one of them imports torch

__all__ = ["register"]
