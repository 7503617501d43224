"""Measurements of unisono beside other libraries. They are no part of the installed package.

python -m benchmarks.collectives      speed of collectives, beside Gloo, Open MPI, MPICH and memcpy (`make bench`)
python -m benchmarks.torch_backend    torch.distributed on our backend and on Gloo (`make bench-torch`)
python -m benchmarks.supported_calls  what each library does with every call, dtype and op (`make calls`)
python -m benchmarks.small_calls      what small calls cost, alone and coalesced

names, machine, mpi and rendezvous serve several of them.
"""

__all__: list[str] = []
