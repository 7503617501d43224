"""The numbers that stand for dtypes wherever ranks tell each other a dtype. The same in all versions of torch."""

from .records import digest

DTYPE_CODES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "bool": 5, "float16": 6, "float32": 7, "float64": 8,
    "bfloat16": 9, "complex32": 10, "complex64": 11, "complex128": 12, "uint16": 13, "uint32": 14, "uint64": 15,
    "float8_e5m2": 16, "float8_e4m3fn": 17, "float8_e5m2fnuz": 18, "float8_e4m3fnuz": 19, "float8_e8m0fnu": 20,
    "float4_e2m1fn_x2": 21, "qint8": 22, "quint8": 23, "qint32": 24, "quint4x2": 25, "quint2x4": 26, "bits1x8": 27,
    "bits2x4": 28, "bits4x2": 29, "bits8": 30, "bits16": 31, "uint1": 32, "uint2": 33, "uint3": 34, "uint4": 35,
    "uint5": 36, "uint6": 37, "uint7": 38, "int1": 39, "int2": 40, "int3": 41, "int4": 42, "int5": 43, "int6": 44,
    "int7": 45, "bcomplex32": 46,
}  # fmt: skip
"""torch's name of a dtype -> its code. Codes never change: a new dtype gets the next number."""

NAMES = {code: name for name, code in DTYPE_CODES.items()}
"""Code -> name."""

DTYPES_DIGEST = f"{digest(*DTYPE_CODES.items()):016x}"
"""What ranks compare when they meet."""
