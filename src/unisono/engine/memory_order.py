"""The order of Python's reads and writes in shared memory. In kernels, `kernels.atomics` has this part.

A writer publishes a word behind the bytes that it stands for; a reader looks at the word, then reads the bytes. So a
reader that finds the word finds the bytes. On x86-64 the processor keeps this order. Other processors keep it only
where a program asks for it.

On no processor does a write reach the other processes before a later read of another word is made. Where two processes
each write, then read what the other has written, each needs a full fence in between: so at least one sees the other.
"""

import ctypes

from ..base.linux import FUTEX, KEEPS_ORDER

_FUTEX_WAKE_PRIVATE = 1 | 128

_word = ctypes.c_uint32()
_fence = ctypes.PyDLL(None).syscall, FUTEX, ctypes.byref(_word), _FUTEX_WAKE_PRIVATE, 1


def fence() -> None:
    """A full fence: for all processes, reads and writes before it come before reads and writes behind it.

    It wakes the sleepers at a word at which no thread sleeps. A thread that wakes others has written the word before,
    with a plain write, and Linux must look for sleepers behind that write: else a sleeper that has read the word too
    early sleeps on. So FUTEX_WAKE has a full barrier of the processor: barrier (B) in the proof that begins
    kernel/futex/waitwake.c. Private words, such as this one, have it since Linux 3.18 (commit 76835b0ebf8a), which is
    older than the process descriptors that ranks need.
    """
    call, *arguments = _fence
    call(*arguments)


def order() -> None:
    """Reads and writes before it come before writes behind it, and reads before it come before reads behind it."""
    if not KEEPS_ORDER:
        fence()


def publish(memory: memoryview, at: int, word: int) -> None:
    """Write the word at byte `at`. A reader that looks at it sees all that this process has written before.

    All its bytes appear at once, unlike those that `struct` writes.
    """
    order()
    memory[at : at + 8].cast("Q")[0] = word


def look(memory: memoryview, at: int) -> int:
    """Read the word at byte `at`, before anything that is read later."""
    word: int = memory[at : at + 8].cast("Q")[0]
    order()
    return word


RECORD_HEAD = 16
"""The bytes of a record in front of its content: its number, and the length of the content."""


def write_record(memory: memoryview, at: int, number: int, data: bytes) -> None:
    """Write a record at byte `at`. Its number is 0 while its content changes."""
    publish(memory, at, 0)
    order()
    memory[at + 8 : at + RECORD_HEAD + len(data)] = len(data).to_bytes(8, "little") + data
    publish(memory, at, number)


def read_record(memory: memoryview, at: int, room: int) -> tuple[int, bytes]:
    """The number and the content of a record at one moment: the writer may change them meanwhile.

    The content is empty if the number is 0, or if it says that it is longer than its room.
    """
    number = look(memory, at)
    while True:
        data = bytes(memory[at + 8 : at + RECORD_HEAD + room])
        order()
        again = look(memory, at)
        if again == number:
            length = int.from_bytes(data[:8], "little")
            return number, data[8 : 8 + length] if number and length <= room else b""
        number = again
