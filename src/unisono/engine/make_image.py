"""Make a code image of an object file: place its sections, and compute the distances between them.

Only a process that compiles imports this file.
"""

import struct
from collections import namedtuple

from .code_image import HEAD, MAGIC, PAGE

_WORD = 8

# Of the ELF format, and of its supplement for x86-64: its structures, with their fields in order.
_SECTION, _SYMBOL, _RELOCATION = (struct.Struct(layout) for layout in ("<IIQQQQIIQQ", "<IBBHQQ", "<QQq"))
_Section = namedtuple("_Section", "name kind flags address offset size link info align entry_size")
_Symbol = namedtuple("_Symbol", "name info other section value size")
_X86_64 = 62
_PROGBITS, _SYMTAB, _RELA, _UNWIND = 1, 2, 4, 0x70000001
_WRITE, _ALLOC, _EXECUTE = 1, 2, 4
_PC64, _GOTOFF64, _GOT64, _GOTPC64 = 24, 25, 27, 29
_OUTSIDE = 0
"""The section number of a symbol from outside."""


def image_of(code: bytes, function: str) -> bytes | None:
    """The image of an object file that defines this function; None if it can have none.

    That is so for other processors than x86-64, and for code with variables or with references of other kinds than
    LLVM makes for its large code model.
    """
    try:
        return _Image(code, function).content
    except (ValueError, LookupError, struct.error):
        return None


class _Image:
    """content: the bytes of the image. Raises ValueError, LookupError or struct.error if there is none."""

    def __init__(self, code: bytes, function: str) -> None:
        if code[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", code, 18)[0] != _X86_64:
            raise ValueError("not for this kind of processor")
        (first,), (size, count) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<HH", code, 58)
        self._file = code
        self._sections = [_Section(*_SECTION.unpack_from(code, first + size * k)) for k in range(count)]
        self._memory = bytearray()
        self._at: dict[int, int] = {}  # number of a section -> where it is
        self._place(_EXECUTE)
        self._pad(PAGE)
        data_at = len(self._memory)
        self._place(0)
        self._pad(_WORD)
        self._table = len(self._memory)
        self._names: list[str] = []
        for section in self._sections:
            if section.kind == _RELA and section.info in self._at:
                self._relocate(section)
        names = b"".join(name.encode() + b"\0" for name in self._names)
        sizes = data_at, len(self._memory), len(names)
        self.content = HEAD.pack(MAGIC, self._entry(function), *sizes, self._table) + names + self._memory

    def _place(self, executed: int) -> None:
        """Place the sections with code (_EXECUTE), or those with data (0)."""
        for number, section in enumerate(self._sections):
            if not section.flags & _ALLOC or not section.size or section.kind == _UNWIND:
                continue  # a section of the linker's, or how to unwind the stack: nothing is thrown through this code
            if section.kind != _PROGBITS or section.flags & _WRITE:
                raise ValueError("it has variables")
            if section.flags & _EXECUTE == executed:
                self._pad(section.align)
                self._at[number] = len(self._memory)
                self._memory += self._file[section.offset : section.offset + section.size]

    def _pad(self, align: int) -> None:
        self._memory += bytes(-len(self._memory) % max(1, align))

    def _relocate(self, relocations: _Section) -> None:
        rows = self._file[relocations.offset : relocations.offset + relocations.size]
        for offset, info, addend in _RELOCATION.iter_unpack(rows):
            kind, symbol = info & 0xFFFFFFFF, self._symbol(relocations.link, info >> 32)
            place = self._at[relocations.info] + offset
            if kind == _GOTPC64:
                value = self._table - place
            elif kind == _PC64:
                value = self._address(symbol) - place
            elif kind == _GOTOFF64:
                value = self._address(symbol) - self._table
            elif kind == _GOT64 and symbol.section == _OUTSIDE:
                value = self._slot(self._name(relocations.link, symbol))
            else:
                raise ValueError(f"a reference of kind {kind}")
            struct.pack_into("<q", self._memory, place, value + addend)

    def _symbol(self, table: int, number: int) -> _Symbol:
        return _Symbol(*_SYMBOL.unpack_from(self._file, self._sections[table].offset + _SYMBOL.size * number))

    def _name(self, table: int, symbol: _Symbol) -> str:
        first = self._sections[self._sections[table].link].offset + symbol.name
        return self._file[first : self._file.index(b"\0", first)].decode()

    def _address(self, symbol: _Symbol) -> int:
        """Where a symbol is in memory, from the first byte of the code."""
        return self._at[symbol.section] + int(symbol.value)

    def _slot(self, name: str) -> int:
        """Where the address of a function outside is, from the beginning of the table."""
        if name not in self._names:
            self._names.append(name)
            self._memory += bytes(_WORD)
        return _WORD * self._names.index(name)

    def _entry(self, function: str) -> int:
        """Where the function of this name is."""
        for table, section in enumerate(self._sections):
            for number in range(section.size // _SYMBOL.size if section.kind == _SYMTAB else 0):
                symbol = self._symbol(table, number)
                if symbol.section in self._at and self._name(table, symbol) == function:
                    return self._address(symbol)
        raise ValueError("the function is not there")
