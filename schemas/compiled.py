"""Writers and readers compiled from a record's schema: from attributes to bytes and back, with no dict between.

A schema becomes one Python function per record type, as `dataclasses` makes `__init__`. What fastavro does for the same
bytes (a test compares them) takes four to six times as long, since it tries each value against each branch of each
union; and encoding is what the controller, the assembler and the gateway do most.

    string field `name` of Span, written:               and read:

        value = record.name                                 size = data[at]; at += 1
        data = value.encode()                               if size & 129: size, at = read_size(data, at - 1)
        size = len(data)                                    else: size >>= 1
        out += SHORT[size] if size < 1024 else …            name = data[at : at + size].decode(); at += size
        out += data

Only for schemas of our own: [null, X] is their only union. Records written with another version are fastavro's to read.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from .varint import SHORT, read_block, read_int, read_long, read_size, write_int, write_long

Type: TypeAlias = "dict[str, Any]"  # a named or complex type
Schema: TypeAlias = "str | list[Any] | Type"
Lines: TypeAlias = list[str]
DOUBLE = struct.Struct("<d")


class _Compiler(ABC):
    """What writer and reader share: named types seen so far, fresh names, one function per record type."""

    prefix: str

    def __init__(self, names: Mapping[str, object]) -> None:
        self.scope: dict[str, Any] = dict(names)
        self._named: dict[str, Type] = {}
        self._fresh = 0

    def fresh(self) -> str:
        """A variable that no other line uses."""
        self._fresh += 1
        return f"v{self._fresh}"

    def value(self, schema: Schema, name: str) -> Lines:
        """The lines that write or read a value of this schema."""
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if isinstance(schema, list):
            if len(schema) != 2 or schema[0] != "null":
                raise ValueError(f"only unions of null and one other type are compiled, not {schema}")
            return self.nullable(schema[1], name)
        if isinstance(schema, str):
            return self.plain(schema, name)
        kind = schema["type"]
        if kind in ("record", "enum"):
            short = schema["name"]
            self._named |= {short: schema, f"{schema.get('namespace', 'spanloop')}.{short}": schema}
        complex_types = {"record": self.record, "enum": self.enum, "array": self.array, "map": self.map}
        return complex_types[kind](schema, name) if kind in complex_types else self.plain(kind, name)

    def function(self, schema: Type) -> str:
        """The name of the function for a record type; compiled at its first use."""
        name = f"{self.prefix}_{schema['name']}"
        if name not in self.scope:
            exec("\n".join(self.body(name, schema)), self.scope)
        return name

    @abstractmethod
    def body(self, function: str, schema: Type) -> Lines:
        """The function of a record type."""

    @abstractmethod
    def plain(self, kind: str, name: str) -> Lines:
        """The lines for a string, bytes, a number or a boolean."""

    @abstractmethod
    def nullable(self, branch: Schema, name: str) -> Lines:
        """The lines for null or one other type."""

    @abstractmethod
    def record(self, schema: Type, name: str) -> Lines:
        """The lines for a record inside another."""

    @abstractmethod
    def enum(self, schema: Type, name: str) -> Lines:
        """The lines for a symbol."""

    @abstractmethod
    def array(self, schema: Type, name: str) -> Lines:
        """The lines for a list."""

    @abstractmethod
    def map(self, schema: Type, name: str) -> Lines:
        """The lines for a dict of strings."""


def _indent(lines: Lines) -> Lines:
    return [f"    {line}" for line in lines]


_WRITE_LONG = "out += SHORT[{0}] if 0 <= {0} < 1024 else write_long({0})"
_WRITE_SIZE = "size = len({0})\nout += SHORT[size] if size < 1024 else write_long(size)\nout += {0}"
_WRITE_PLAIN = {
    "string": "data = {0}.encode()\n" + _WRITE_SIZE.format("data"),
    "bytes": _WRITE_SIZE,
    "long": _WRITE_LONG,
    "int": "out += SHORT[{0}] if 0 <= {0} < 1024 else write_int({0}, '{1}')",
    "double": "out += double({0})",
    "boolean": "out += b'\\1' if {0} else b'\\0'",
}


class _Writer(_Compiler):
    prefix = "write"

    def __init__(self) -> None:
        super().__init__({"SHORT": SHORT, "write_long": write_long, "write_int": write_int, "double": DOUBLE.pack})
        self._field = ""  # being written, for errors

    def body(self, function: str, schema: Type) -> Lines:
        lines = [f"def {function}(record, out):"]
        for field in schema["fields"]:
            name = self.fresh()
            self._field = f"{schema['name']}.{field['name']}"
            lines += _indent([f"{name} = record.{field['name']}", *self.value(field["type"], name)])
        return lines

    def plain(self, kind: str, name: str) -> Lines:
        return _WRITE_PLAIN[kind].format(name, self._field).split("\n")

    def nullable(self, branch: Schema, name: str) -> Lines:
        return [
            f"if {name} is None:",
            "    out += b'\\0'",
            "else:",
            *_indent(["out += b'\\2'", *self.value(branch, name)]),
        ]

    def enum(self, schema: Type, name: str) -> Lines:
        symbols = f"symbols_{schema['name']}"
        self.scope[symbols] = {symbol: SHORT[i] for i, symbol in enumerate(schema["symbols"])}
        return [f"out += {symbols}[{name}]"]

    def record(self, schema: Type, name: str) -> Lines:
        return [f"{self.function(schema)}({name}, out)"]

    def array(self, schema: Type, name: str) -> Lines:
        item = self.fresh()
        return self._items(name, f"for {item} in {name}:", self.value(schema["items"], item))

    def map(self, schema: Type, name: str) -> Lines:
        key, item = self.fresh(), self.fresh()
        lines = [*self.value("string", key), *self.value(schema["values"], item)]
        return self._items(name, f"for {key}, {item} in {name}.items():", lines)

    def _items(self, name: str, loop: str, lines: Lines) -> Lines:
        block = [f"out += write_long(len({name}))", loop, *_indent(lines)]
        return [f"if {name}:", *_indent(block), "out += b'\\0'"]


# one byte that is even and below 128 is a number from 0 to 63, most often all there is
_READ_SHORT = "{0} = data[at]\nat += 1\nif {0} & 129: {0}, at = {1}(data, at - 1)\nelse: {0} >>= 1"
_READ_SIZE = _READ_SHORT.format("size", "read_size")
_READ_NUMBER = (
    "{{0}} = data[at]\nat += 1\n"
    "if {{0}} & 128: {{0}}, at = {0}(data, at - 1)\nelse: {{0}} = ({{0}} >> 1) ^ -({{0}} & 1)"
)
_READ_PLAIN = {
    "string": _READ_SIZE + "\n{0} = data[at : at + size].decode()\nat += size",
    "bytes": _READ_SIZE + "\n{0} = data[at : at + size]\nat += size",
    "long": _READ_NUMBER.format("read_long"),
    "int": _READ_NUMBER.format("read_int"),
    "double": "{0} = double(data, at)[0]\nat += 8",
    "boolean": "{0} = data[at] != 0\nat += 1",
}


class _Reader(_Compiler):
    """A value cut short leaves `at` past the end of the data, which the caller checks once instead of each line."""

    prefix = "read"

    def __init__(self, classes: Mapping[str, type]) -> None:
        numbers = {"read_size": read_size, "read_long": read_long, "read_int": read_int, "read_block": read_block}
        super().__init__({**numbers, "double": DOUBLE.unpack_from, **classes})

    def body(self, function: str, schema: Type) -> Lines:
        kind, fields = schema["name"], [(self.fresh(), field["name"], field["type"]) for field in schema["fields"]]
        lines = [line for name, _, value in fields for line in self.value(value, name)]
        # A frozen class's own __init__ takes as long as reading all its fields. So an object of an ordinary class with
        # the same slots is filled, and then becomes one of the frozen class.
        self.scope[f"open_{kind}"] = type(kind, (), {"__slots__": self.scope[kind].__slots__})
        lines.append(f"record = open_{kind}()")
        lines += [f"record.{field} = {name}" for name, field, _ in fields]
        lines += [f"record.__class__ = {kind}", "return record, at"]
        return [f"def {function}(data, at):", *_indent(lines)]

    def plain(self, kind: str, name: str) -> Lines:
        return _READ_PLAIN[kind].format(name).split("\n")

    def nullable(self, branch: Schema, name: str) -> Lines:
        return [
            "branch = data[at]",
            "at += 1",
            f"if branch == 0: {name} = None",
            "elif branch == 2:",
            *_indent(self.value(branch, name)),
            "else: raise ValueError('a union of two has no branch of that number')",
        ]

    def enum(self, schema: Type, name: str) -> Lines:
        symbols = f"symbols_{schema['name']}"
        self.scope[symbols] = tuple(schema["symbols"])
        return [*_READ_SHORT.format("index", "read_size").split("\n"), f"{name} = {symbols}[index]"]

    def record(self, schema: Type, name: str) -> Lines:
        return [f"{name}, at = {self.function(schema)}(data, at)"]

    def array(self, schema: Type, name: str) -> Lines:
        item = self.fresh()
        return self._items(f"{name} = []", [*self.value(schema["items"], item), f"{name}.append({item})"])

    def map(self, schema: Type, name: str) -> Lines:
        key, item = self.fresh(), self.fresh()
        lines = [*self.value("string", key), *self.value(schema["values"], item), f"{name}[{key}] = {item}"]
        return self._items(f"{name} = {{}}", lines)

    def _items(self, empty: str, lines: Lines) -> Lines:
        count = self.fresh()
        block = _READ_SHORT.format(count, "read_block").split("\n")
        loop = [f"for _ in range({count}):", *_indent(lines), *block]
        return [empty, *block, f"while {count}:", *_indent(loop)]


def compile_writer(schema: Type) -> Callable[[Any], bytes]:
    """A function from a record to its Avro body.

    It raises ValueError, TypeError, KeyError, AttributeError, OverflowError or struct.error where a value does not fit.
    """
    writer = _Writer()
    write = writer.scope[writer.function(schema)]

    def encode(record: Any) -> bytes:
        out = bytearray()
        write(record, out)
        return bytes(out)

    return encode


def compile_reader(schema: Type, classes: Mapping[str, type]) -> Callable[[bytes], tuple[Any, int]]:
    """A function from an Avro body to the record and the position after it, past the end where the body is cut short.

    `classes`: record name -> the class to make, a dataclass with slots. Raises nearly anything on garbage.
    """
    reader = _Reader(classes)
    read = reader.scope[reader.function(schema)]
    return lambda data: read(data, 0)
