"""Avro's numbers: zigzag, seven bits a byte, least significant first."""

from __future__ import annotations

MAX_INT = (1 << 31) - 1
# Seven bits are one lookup, fourteen another: a timestamp in nanoseconds takes five steps instead of nine.
_ONE = [bytes((i,)) for i in range(1 << 7)]
_PAIR = [bytes((i & 127 | 128, i >> 7 | 128)) for i in range(1 << 14)]
_EIGHT_MARKS = sum(128 << 7 * i for i in range(8))  # the bits that say "more follows"


def write_long(value: int) -> bytes:
    """A number's bytes. Raises OverflowError beyond 64 bits, TypeError where it is none."""
    rest = (value << 1) ^ (value >> 63)
    if rest >> 64:
        raise OverflowError(f"{value} does not fit into 64 bits")
    out = b""
    while rest >= 1 << 14:
        out += _PAIR[rest & 16383]
        rest >>= 14
    return out + (_ONE[rest] if rest < 128 else bytes((rest & 127 | 128, rest >> 7)))


def write_int(value: int, field: str) -> bytes:
    """A number of 32 bits. Raises OverflowError naming the field, TypeError where it is none."""
    if -MAX_INT - 1 <= value <= MAX_INT:
        return write_long(value)
    raise OverflowError(f"{field} is {value}, expected a whole number from {-MAX_INT - 1} to {MAX_INT}")


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position after it.

    Raises IndexError where the data ends, ValueError for more than 64 bits.
    """
    first = data[at]
    if first < 128:
        return (first >> 1) ^ -(first & 1), at + 1
    second = data[at + 1]
    if second < 128:
        return (first & 127 | second << 7) >> 1 ^ -(first & 1), at + 2
    nine = data[at : at + 9]
    if len(nine) == 9:  # as long as a timestamp of today
        a, b, c, d, e, f, g, h, last = nine
        if a & b & c & d & e & f & g & h & 128 and last < 128:
            rest = a + (b << 7) + (c << 14) + (d << 21) + (e << 28) + (f << 35) + (g << 42) + (h << 49) + (last << 56)
            rest -= _EIGHT_MARKS
            return (rest >> 1) ^ -(rest & 1), at + 9
    at += 2
    rest, shift = first & 127 | (second & 127) << 7, 14
    byte = second
    while byte & 128:
        if shift > 63:  # garbage may go on for megabytes
            raise ValueError("a number of more than 64 bits")
        byte = data[at]
        at += 1
        rest |= (byte & 127) << shift
        shift += 7
    if rest >> 64:
        raise ValueError("a number of more than 64 bits")
    return (rest >> 1) ^ -(rest & 1), at


def read_int(data: bytes, at: int) -> tuple[int, int]:
    """A number of 32 bits, which others refuse if it is larger. Raises ValueError where it is."""
    value, at = read_long(data, at)
    if not -MAX_INT - 1 <= value <= MAX_INT:
        raise ValueError(f"{value} does not fit into 32 bits")
    return value, at


def read_size(data: bytes, at: int) -> tuple[int, int]:
    """A length or an index, which cannot be negative. Raises ValueError where it is."""
    value, at = read_long(data, at)
    if value < 0:
        raise ValueError(f"a length or index of {value}")
    return value, at


def read_block(data: bytes, at: int) -> tuple[int, int]:
    """How many items the next block of an array or map holds; 0 = no more. A block may name its bytes, too."""
    count, at = read_long(data, at)
    if count < 0:
        _, at = read_long(data, at)
    return abs(count), at


SHORT = [write_long(i) for i in range(1 << 10)]
"""The bytes of small numbers, which most lengths and counts are."""
