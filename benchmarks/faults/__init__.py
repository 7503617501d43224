"""Faults in groups of Gloo and NCCL, watched and not."""
