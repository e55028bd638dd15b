"""The base class of records. A record is declared as a frozen dataclass, and pydantic verifies it when it is read.

    @dataclass(frozen=True, slots=True)
    class Stock(Record):
        counted: UtcTime
        objects: Mapping[str, Count]
        format: Annotated[int, require_format(1)] = 1

Nothing is coerced: neither "1" nor true is read as 1. A record with an undeclared or a missing field is damaged, even
if the field has a default: defaults are only for code. A class lists exceptions in `optional_fields`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)

from spark_resources.errors import DamagedData, LakegcError, UnknownFormat, WrongUsage, shortened
from spark_resources.identifiers import check_mark_id
from spark_resources.records.json_records import check_format, parse_time, read_json, record_bytes

T = TypeVar("T")
MAX_PROBLEMS = 3  # maximum number of problems of a record in a message


class Record:
    """The base of all records. Its configuration also applies to plain dataclasses and typed dicts within a record."""

    __slots__ = ()
    __pydantic_config__: ClassVar = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    optional_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields with a default that earlier versions didn't write."""

    def to_json(self) -> bytes:
        return record_bytes(self)

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Parse a record.

        Raises `UnknownFormat` if a newer version of lakegc wrote it, and the error from `damaged_error` if it isn't as
        declared.
        """
        try:
            plain = read_json(data)
            declared = cls.as_declared(plain) if isinstance(plain, dict) else plain
            record: Self = _reader(cls).validate_python(declared, context=where)
            record.verify(data)
        except UnknownFormat:
            raise
        except (ValueError, KeyError, TypeError, DamagedData) as error:
            raise cls.damaged_error(where, shortened(_reason(error))) from error
        return record

    @classmethod
    def as_declared(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """The JSON with the declared fields, for records that had other fields in earlier formats."""
        return plain

    def verify(self, data: bytes) -> None:
        """Raise `ValueError` if the fields contradict each other, or the bytes that they were read from."""

    @classmethod
    def damaged_error(cls, where: str, why: str) -> LakegcError:
        """The error for a record that can't be read, with what to do next."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema: Any = handler.resolve_ref_schema(handler(source))
        schema["strict"] = False  # accepts a JSON object; its fields stay strict
        for field in schema["schema"]["fields"]:
            if field["schema"]["type"] == "default" and field["name"] not in cls.optional_fields:
                field["schema"] = field["schema"]["schema"]
        return schema


_reader: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)  # built when the first record is read


def _reason(error: Exception) -> str:
    """What is wrong with a record, on one line."""
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    if not isinstance(error, ValidationError):
        return str(error)
    problems = []
    for detail in error.errors(include_url=False)[:MAX_PROBLEMS]:
        name = shortened(".".join(map(str, detail["loc"])) or "it", 80)
        match detail["type"]:
            case "dataclass_type":
                problems.append(f"{name} is {detail['input']!r:.80}, not a JSON object")
            case "missing":
                problems.append(f"{name} is missing")
            case "unexpected_keyword_argument" | "extra_forbidden":
                problems.append(f"{name} is unknown")
            case "value_error":
                problems.append(f"{name}: {detail['ctx']['error']}")
            case _:
                problems.append(f"{name} is {detail['input']!r:.80}: {detail['msg']}")
    return "; ".join(problems) + (" …" if error.error_count() > MAX_PROBLEMS else "")


# --- types of fields --------------------------------------------------------------------------------------------------


class _AsInJson:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema: Any = handler.resolve_ref_schema(handler(source))
        schema["strict"] = False
        return schema


AsInJson = Annotated[T, _AsInJson()]
"""A tuple, a set, an enum, or a dataclass that isn't a record, read from a JSON array, string or object."""


def require_format(supported: int) -> BeforeValidator:
    """Validate the field `format` before all others: raise `UnknownFormat` unless it is `supported`."""

    def check(value: object, info: ValidationInfo) -> object:
        check_format(value, supported, str(info.context))
        return value

    return BeforeValidator(check)


def _parse_with(parse: Callable[[Any], object]) -> PlainValidator:
    def validate(value: object) -> object:
        try:
            return parse(value)
        except (TypeError, OverflowError, WrongUsage) as error:
            raise ValueError(str(error)) from error

    return PlainValidator(validate)


def _checked_time(text: str) -> str:
    try:
        parse_time(text)
    except OverflowError as error:  # pydantic would raise it without the field's name
        raise ValueError(str(error)) from error
    return text


def _seconds(value: Any) -> timedelta:
    if isinstance(value, bool):
        raise TypeError(f"{value} is not a number of seconds")
    return timedelta(seconds=value)


UtcTime = Annotated[datetime, _parse_with(parse_time)]
TimeText = Annotated[str, AfterValidator(_checked_time)]
Seconds = Annotated[timedelta, _parse_with(_seconds)]
MarkId = Annotated[str, _parse_with(check_mark_id)]
Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
