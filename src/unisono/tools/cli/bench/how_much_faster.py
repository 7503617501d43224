"""How much faster, in words."""

from __future__ import annotations


def verdict(ours_s: float, gloo_s: float) -> str:
    """`17x faster than Gloo`, `1.5x slower than Gloo`, or, within 10 %, `about as fast as Gloo`."""
    ratio = max(ours_s, gloo_s) / min(ours_s, gloo_s)
    if ratio < 1.1:
        return "about as fast as Gloo"
    return f"{ratio:.{0 if ratio >= 9.95 else 1}f}x {'faster' if ours_s < gloo_s else 'slower'} than Gloo"
