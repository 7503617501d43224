"""Make a code image of an object file: place its sections, and compute the distances between them.

Only a process that compiles imports this file.
"""

import struct
from typing import NamedTuple

from .code_image import HEAD, MAGIC, PAGE

_WORD = 8

# Of the ELF format, and of its supplement for x86-64.
_X86_64 = 62
_PROGBITS, _SYMTAB, _RELA, _UNWIND = 1, 2, 4, 0x70000001
_WRITE, _ALLOC, _EXECUTE = 1, 2, 4
_PC64, _GOTOFF64, _GOT64, _GOTPC64 = 24, 25, 27, 29
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
        self._at: dict[int, int] = {}  # number of a section -> where it is, counted from the beginning of its part
        for number, section in enumerate(self._sections):
            self._place(number, section)
        self._data_at = -(-len(self._text) // PAGE) * PAGE
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
            place = self._address(relocations.info, offset)
            if kind == _GOTPC64:
                value = table - place
            elif kind == _PC64:
                value = self._address(symbol.section, symbol.value) - place
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
        return HEAD.pack(MAGIC, self._entry, *sizes, self._table) + names + self._text + self._data


def _pad(part: bytearray, align: int) -> None:
    part += bytes(-len(part) % max(1, align))
