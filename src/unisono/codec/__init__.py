"""Python objects as bytes, and back: safe by default, so that what a peer sends can never run code here.

encode walks an object and *lowers* it to what msgpack knows: atoms, lists, and extension types for the rest. decode
walks the same way back. The bytes of tensors and arrays are not part of that tree: they follow it, as they are, in
the order in which the walk meets them, and so are copied once on each side.

    kind, 1 byte | length of the tree, 8 bytes | tree | bytes of the 1st tensor | bytes of the 2nd tensor | ...
"""

from .frame import Buffer, decode, encode, fill

__all__ = ["Buffer", "decode", "encode", "fill"]
