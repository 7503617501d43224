"""What each library does with every call, dtype and op, tried on three ranks.

attempts     what is tried, and the verdict      library      a library on one rank
situations   layouts, sizes, disagreements       torch_like   unisono, and torch.distributed over Gloo
table        the verdicts as Markdown            mpi_job      Open MPI
                                                 mpi_worker   what each MPI rank runs
"""

__all__: list[str] = []
