"""The collectives: torch's names and argument order, on CPU tensors of any dtype and layout.

Every rank of the group makes the same calls in the same order. A call returns when this rank's tensors are ready; with
`async_op=True` it returns a `Work` at once. If ranks make different calls, all raise MismatchError. If a peer is dead,
a call raises PeerGone; if a peer is late, WaitTimeout after `timeout_s` seconds (default: the group's, 300). Wrong
arguments raise ArgumentError or DTypeError on the rank that passes them, before anything moves, and MismatchError on
the others.

Sizes: in all_gather, gather, scatter, reduce_scatter and all_to_all the ranks' blocks may differ in size. If ranks do
not know the sizes, `all_gather(None, tensor)` exchanges them first, and returns new tensors.

op: a name of `ReduceOp` such as "sum", torch.distributed.ReduceOp, `premul_sum(factor)`, or an op made by `make_op`.
float16, bfloat16 and float8 are accumulated in float32. The average of integers is their exact sum, divided and
truncated towards zero. Values are combined in rank order, so results are bit-identical on all ranks, and do not depend
on the length of the tensor.

algorithm: a name (`unisono explain` lists them), a file, or a function of your own; None: `choose` decides.
"""
