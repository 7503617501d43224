"""From Python functions of integers to object files, by Numba and LLVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit, types

from ..machine_code import object_code, symbol

_I32, _I64, _POINTER = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()


def compiled(function: Callable[..., Any]) -> Any:
    """Decorator: a function that Numba compiles, for functions of these files to call. Divisions raise nothing.

    A literal is an integer like any other. Numba would make a version for that number, and later take it for the
    version for all integers; and which arguments are literals depends on the bytecode, so on Python's version.
    """
    made: Any = njit(error_model="numpy")(function)
    version_for = made.get_call_template
    made.get_call_template = lambda args, keywords: version_for([types.unliteral(one) for one in args], keywords)
    return made


def object_file(name: str, function: Any) -> bytes:
    """Compile a function that `compiled` has decorated. Its arguments and result are int64.

    If the last two arguments are `objects` and `many`, Python code passes any objects in their place: the function gets
    the address of a table of pointers to them, and their number. It keeps the GIL, and may leave an exception set.
    """
    code = function.py_func.__code__
    count = code.co_argcount
    takes_objects = code.co_varnames[:count][-2:] == ("objects", "many")
    integers = (types.int64,) * count
    function.compile(integers)
    made = function.overloads[integers]
    module = llvm.parse_assembly(made.library.get_llvm_str())
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration:
            value.linkage = "internal"  # drops functions without a caller: wrappers, and what they need of Numba
    target = module.get_function(made.fndesc.llvm_func_name)
    target.linkage = "external"
    module.link_in(llvm.parse_assembly(str(_entry(name, target.name, count, takes_objects))))
    target = module.get_function(made.fndesc.llvm_func_name)
    target.linkage = "internal"
    return object_code(module)


def _entry(name: str, target: str, count: int, takes_objects: bool) -> ir.Module:
    """A function for CPython that unpacks integers, releases the GIL, and calls the target with them.

    Unlike the wrapper that Numba makes, it needs nothing of Numba. takes_objects: see `object_file`.
    """
    module = ir.Module(name)

    def extern(called: str, result: ir.Type, *args: ir.Type) -> ir.Function:
        return ir.Function(module, ir.FunctionType(result, args), called)

    as_integer, from_integer = (
        extern("PyLong_AsLongLong", _I64, _POINTER),
        extern("PyLong_FromLongLong", _POINTER, _I64),
    )
    failed, misused = extern("PyErr_Occurred", _POINTER), extern("PyErr_BadInternalCall", ir.VoidType())
    save, restore = extern("PyEval_SaveThread", _POINTER), extern("PyEval_RestoreThread", ir.VoidType(), _POINTER)
    # Numba's convention: the address of the result, the address of an exception, then the arguments.
    run = extern(target, _I32, _POINTER, _POINTER, *[_I64] * count)
    entry = extern(symbol(name), _POINTER, _POINTER, _POINTER.as_pointer(), _I64)
    _, args, given = entry.args
    b = ir.IRBuilder(entry.append_basic_block())
    result, error = b.alloca(_I64), b.alloca(_POINTER)
    fixed = ir.Constant(_I64, count - 2 if takes_objects else count)
    with b.if_then(b.icmp_signed("<" if takes_objects else "!=", given, fixed), likely=False):
        b.call(misused, [])
        b.ret(ir.Constant(_POINTER, None))

    def raise_what_is_set() -> None:
        with b.if_then(b.icmp_unsigned("!=", b.call(failed, []), ir.Constant(_POINTER, None)), likely=False):
            b.ret(ir.Constant(_POINTER, None))

    words = [b.call(as_integer, [b.load(b.gep(args, [ir.Constant(_I64, k)]))]) for k in range(fixed.constant)]
    raise_what_is_set()
    if takes_objects:
        words += [b.ptrtoint(b.gep(args, [fixed]), _I64), b.sub(given, fixed)]
    thread = None if takes_objects else b.call(save, [])
    b.call(run, [b.bitcast(result, _POINTER), b.bitcast(error, _POINTER), *words])
    if thread is None:
        raise_what_is_set()
    else:
        b.call(restore, [thread])
    b.ret(b.call(from_integer, [b.load(result)]))
    return module
