"""Measurements of unisono beside other libraries. They are no part of the installed package.

python -m benchmarks.collectives      speed of collectives, beside Gloo, three MPIs, DeepSpeed, memcpy (`make bench`)
python -m benchmarks.torch_backend    torch.distributed on our backend and on Gloo
python -m benchmarks.supported_calls  what each library does with every call, dtype and op
python -m benchmarks.busy             ranks beside processes that compute, late ranks, steps of a server; beside Gloo
python -m benchmarks.first_call       the first call of a fresh process, beside Gloo
python -m benchmarks.chaos            every fault at every row, then faults in live ranks
python -m benchmarks.faults.watched   faults in groups of Gloo, watched and not
python -m benchmarks.kills            a training with random kills, and its replay
python -m benchmarks.hosts            collectives over hosts, beside flat Gloo and Open MPI
python -m benchmarks.host_steps       training steps over hosts, beside Gloo
python -m benchmarks.host_faults      faults of ranks, hosts and links
python -m benchmarks.figures          tables and chart of README and docs, from the runs in benchmarks/results

runs, turns and mpi serve several of them.
"""
