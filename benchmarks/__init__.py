"""Measurements of unisono beside other libraries. They are no part of the installed package.

python -m benchmarks.collectives      speed of collectives, beside Gloo, three MPIs and memcpy (`make bench`)
python -m benchmarks.torch_backend    torch.distributed on our backend and on Gloo: calls, training steps
python -m benchmarks.serving          a model that serves, beside Gloo and DeepSpeed
python -m benchmarks.first_call       the first call of a fresh process, beside Gloo
python -m benchmarks.deaths           when survivors know of a killed rank, beside Gloo
python -m benchmarks.recovery         a training in which newcomers take the place of failed ranks, beside Gloo
python -m benchmarks.supported_calls  what each library does with every call, dtype and op
python -m benchmarks.figures          tables and charts of README and docs, from the runs in benchmarks/results

runs, turns, ranks and mpi serve several of them.
"""
