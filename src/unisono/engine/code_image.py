"""A code image: machine code that needs no linker. It is copied to memory, and a table of addresses is filled in.

`image_of` makes one of the object file of a function, once: all distances between the parts of the code are known then.
What is not known before the code runs are addresses of functions outside, such as `memcpy`; the code reads these from
a table, with one word for each. `load` maps memory, copies, fills the table and makes the code executable: some ten
microseconds. No page is ever writable and executable.

    head     magic, where the function begins, sizes of code, data and names, where the table is in the data
    names    of the functions outside, in the order of the table, each with a zero byte behind it
    code     its pages can be executed, and not written to
    data     constants and the table, from the next page on; can only be read
"""

import ctypes
import mmap
import os
import struct
from typing import NamedTuple

_HEAD = struct.Struct("<8s5I")
_MAGIC = b"unisono1"
_PAGE = 4096
"""Bytes of a page, on the processors that this module knows. The distance from code to data depends on it."""

_WORD = 8

# Of the ELF format, and of its supplement for x86-64.
_X86_64 = 62
_PROGBITS, _SYMTAB, _RELA, _UNWIND = 1, 2, 4, 0x70000001
_WRITE, _ALLOC, _EXECUTE = 1, 2, 4
_GOTOFF64, _GOT64, _GOTPC64 = 25, 27, 29
_UNDEFINED, _SPECIAL = 0, 0xFF00
"""The section number of a symbol from outside; from the second number on, a symbol is in no section."""


class _Section(NamedTuple):
    """One section of an object file, with its fields in ELF's order; name: where it is in the table of names."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


class _Symbol(NamedTuple):
    """One symbol of an object file, with its fields in ELF's order. section: the number of its section."""

    name: int
    info: int
    other: int
    section: int
    value: int
    size: int


class _NoImageError(Exception):
    """The object file has something that an image has not."""


def image_of(code: bytes, function: str) -> bytes | None:
    """The image of an object file that defines this function; None if it can have none.

    That is so for other processors than x86-64, and for code with variables or with references of other kinds than
    LLVM makes for its large code model.
    """
    try:
        return _Image(code, function).content()
    except (_NoImageError, struct.error, IndexError):
        return None


class _Image:
    def __init__(self, code: bytes, function: str) -> None:
        if code[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", code, 18)[0] != _X86_64:
            raise _NoImageError("not for this kind of processor")
        (first,), (size, count) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<HH", code, 58)
        self._file = code
        self._sections = [
            _Section._make(struct.unpack_from("<IIQQQQIIQQ", code, first + size * k)) for k in range(count)
        ]
        self._text, self._data = bytearray(), bytearray()
        self._at: dict[int, int] = {}
        """Number of a section -> where it is, counted from the beginning of its part."""
        for number, section in enumerate(self._sections):
            self._place(number, section)
        self._data_at = -(-len(self._text) // _PAGE) * _PAGE
        _pad(self._data, _WORD)
        self._table = len(self._data)
        self._names: list[str] = []
        for section in self._sections:
            if section.type == _RELA and section.info in self._at:
                self._relocate(section)
        self._entry = self._find(function)

    def _place(self, number: int, section: _Section) -> None:
        if not section.flags & _ALLOC or not section.size or section.type == _UNWIND:
            return  # a section of the linker's, or how to unwind the stack: nothing is thrown through this code
        if section.type != _PROGBITS or section.flags & _WRITE:
            raise _NoImageError("it has variables")
        part = self._text if section.flags & _EXECUTE else self._data
        _pad(part, section.align)
        self._at[number] = len(part)
        part += self._file[section.offset : section.offset + section.size]

    def _address(self, number: int, offset: int) -> int:
        """Where a byte of a section is in memory, from the first byte of the code."""
        if number not in self._at:
            raise _NoImageError("a reference to what is not there")
        return self._at[number] + offset + (0 if self._sections[number].flags & _EXECUTE else self._data_at)

    def _relocate(self, relocations: _Section) -> None:
        table = self._data_at + self._table
        for k in range(relocations.size // 24):
            offset, info, addend = struct.unpack_from("<QQq", self._file, relocations.offset + 24 * k)
            kind, symbol = info & 0xFFFFFFFF, self._symbol(relocations.link, info >> 32)
            if kind == _GOTPC64:
                value = table - self._address(relocations.info, offset)
            elif kind == _GOT64:
                if symbol.section != _UNDEFINED:
                    raise _NoImageError("a reference by the table to what is inside")
                value = self._slot(self._name(relocations.link, symbol))
            elif kind == _GOTOFF64:
                value = self._address(symbol.section, symbol.value) - table
            else:
                raise _NoImageError(f"a reference of kind {kind}")
            part = self._text if self._sections[relocations.info].flags & _EXECUTE else self._data
            struct.pack_into("<q", part, self._at[relocations.info] + offset, value + addend)

    def _symbol(self, table: int, number: int) -> _Symbol:
        return _Symbol._make(struct.unpack_from("<IBBHQQ", self._file, self._sections[table].offset + 24 * number))

    def _name(self, table: int, symbol: _Symbol) -> str:
        first = self._sections[self._sections[table].link].offset + symbol.name
        return self._file[first : self._file.index(b"\0", first)].decode()

    def _slot(self, name: str) -> int:
        """Where the address of a function outside is, from the beginning of the table."""
        if name not in self._names:
            self._names.append(name)
            self._data += bytes(_WORD)
        return _WORD * self._names.index(name)

    def _find(self, function: str) -> int:
        for number, section in enumerate(self._sections):
            for k in range(section.size // 24 if section.type == _SYMTAB else 0):
                symbol = self._symbol(number, k)
                if self._name(number, symbol) == function and _UNDEFINED < symbol.section < _SPECIAL:
                    return self._address(symbol.section, symbol.value)
        raise _NoImageError("the function is not there")

    def content(self) -> bytes:
        names = b"".join(name.encode() + b"\0" for name in self._names)
        sizes = len(self._text), len(self._data), len(names)
        return _HEAD.pack(_MAGIC, self._entry, *sizes, self._table) + names + self._text + self._data


def _pad(part: bytearray, align: int) -> None:
    part += bytes(-len(part) % max(1, align))


def is_image(code: bytes) -> bool:
    """Is this an image, and no object file?"""
    return code.startswith(_MAGIC)


def load(image: bytes) -> int:
    """The address of the function of an image, in memory that stays mapped until the process ends.

    Raises OSError where the system refuses memory that can be executed.
    """
    _, entry, text, data, names, table = _HEAD.unpack_from(image)
    called = image[_HEAD.size : _HEAD.size + names].split(b"\0")[:-1]
    first = _HEAD.size + names
    data_at = -(-text // _PAGE) * _PAGE
    # Not `mmap.mmap`: Python would unmap it when it ends, and threads may still be in it.
    memory = _map(None, data_at + data, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if memory in (None, _FAILED):
        raise _refused("map")
    ctypes.memmove(memory, image[first : first + text], text)
    ctypes.memmove(memory + data_at, image[first + text : first + text + data], data)
    words = (ctypes.c_void_p * len(called)).from_address(memory + data_at + table)
    for k, name in enumerate(called):
        words[k] = ctypes.cast(ctypes.pythonapi[name.decode()], ctypes.c_void_p).value
    if _protect(memory, data_at, mmap.PROT_READ | mmap.PROT_EXEC) or _protect(memory + data_at, data, mmap.PROT_READ):
        raise _refused("execute")
    return int(memory + entry)


def _refused(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{os.strerror(number)}: the system does not let this process {what} memory for its kernels")


_libc = ctypes.CDLL(None, use_errno=True)
_map, _protect = _libc.mmap, _libc.mprotect
_map.restype, _map.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
_protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
