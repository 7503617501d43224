"""Encode Python objects as bytes and decode them. Safe by default: bytes from a peer never run code here.

`encode` lowers an object to a tree of what msgpack knows: atoms, lists, and extension types for the rest. `decode`
lifts the tree back. The bytes of tensors and arrays follow the tree, in the order in which the walk meets them, and so
are copied once on each side.

    kind, 1 byte | length of the tree, 8 bytes | tree | bytes of the 1st tensor | bytes of the 2nd tensor | ...
"""

from .frame import Buffer, decode, encode, to_tensor

__all__ = ["Buffer", "decode", "encode", "to_tensor"]
