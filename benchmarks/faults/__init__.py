"""The same faults over our backend and Gloo; and over Gloo and NCCL, watched and not."""
