"""The kernels are compiled once per installation: commands do so before they start ranks, which would be silent."""

from __future__ import annotations

from .progress_bar import progress


def compile_first() -> None:
    """Compile the kernels if they are not on disk and can be kept there: it takes ten seconds and more."""
    from ....engine.kernels import unit
    from ....engine.machine_code import writable_folder

    if unit("interpret.run").on_disk or writable_folder() is None:
        return
    with progress("compiling, once per installation"):
        from ....engine.host import warm_up  # torch and numba

        warm_up()
