"""UCX, where it is installed."""

from functools import cache

from unisono.hosts.carriers.ucx_library import ucx_library


@cache
def why_no_ucx() -> str:
    """Why UCX cannot be used here; "" if it can."""
    try:
        ucx_library()
    except ImportError as error:
        return f"UCX is not installed: {error}"
    return ""
