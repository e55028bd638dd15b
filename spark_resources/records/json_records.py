"""The small JSON records of a namespace: their format, and all code that reads and writes them.

If a signing key is configured, a record is wrapped in an envelope with its signature (`records.signing`):

    {"record": {…}, "signed": {"format": 1, "key": id, "written": time, "number": 0, "hmac": hex}}
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from spark_resources.errors import Refused, UnknownFormat, Untrusted
from spark_resources.records.signing import KEY_VARIABLE, Seal, Signature

if TYPE_CHECKING:
    from spark_resources.stores.base import Store

ENVELOPE = {"record", "signed"}
_MULTIPART_ETAG = re.compile(r"[0-9a-fA-F]{32}-\d+")  # lakegc never uploads a record in parts
MAX_WRITE_DELAY = timedelta(minutes=15)
"""The largest difference between a record's time in the store and its signed time.

No write takes longer, even with all its retries, so a larger difference means that an older copy was put back.
"""


def record_bytes(record: object) -> bytes:
    """Serialize a record: a mapping or a dataclass. Raises `TypeError` for a value that JSON can't represent."""
    return json.dumps(record, indent=1, sort_keys=True, default=to_json_value).encode()


def read_json(data: bytes | str) -> Any:
    """Parse the JSON of a record.

    Also raises `ValueError` for NaN and infinite numbers: Python's parser accepts them, and checks against limits may
    miss them.
    """
    try:
        return json.loads(data, parse_constant=_finite, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def to_json_value(value: object) -> object:
    """A value that JSON has no type for, as stored in a record: times in UTC, durations in seconds, sets sorted."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case timedelta():
            return value.total_seconds()
        case frozenset():
            return sorted(value)
        case Mapping():
            return dict(value)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"{value!r} can't be stored in a record")


def check_format(number: object, supported: int, where: str) -> None:
    """Raise `UnknownFormat` if a record's format isn't the supported one."""
    if type(number) is not int or number != supported:
        raise UnknownFormat(
            f"{where} is of format {number!r:.80}, but this version of lakegc supports {supported}: a newer version "
            "of lakegc probably wrote this file, so this one can't tell what the file protects. Nothing was done. "
            "Update lakegc."
        )


def parse_time(text: str) -> datetime:
    """Parse a time of a record, in UTC. Raises `ValueError` if it isn't a time or has no zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"the time {text} has no time zone")
    return moment.astimezone(UTC)


# --- reading and writing --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Version:
    """A record's version for a conditional replace: the tag of the object that was read, and whether it was signed."""

    tag: str
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one namespace. With a seal, they are signed, and unsigned ones are refused."""

    store: Store
    seal: Seal | None

    def read(self, key: str) -> bytes:
        return self.read_with_version(key)[0]

    def read_with_version(self, key: str) -> tuple[bytes, Version]:
        """A record without its envelope. Raises `NotFound`, and `Untrusted` for a record without a valid signature."""
        while True:  # not a retry: a record that was replaced before its time was looked up is read again
            data, tag = self.store.read_with_tag(key)
            where = f"{self.store.where}/{key}"
            content, signature = open_envelope(data, where)
            if self.seal is None:
                return content, Version(tag, signature is not None)
            self.seal.check(key, content, signature, where)
            assert signature is not None
            if has_signed_time(self.store, key, signature):
                return content, Version(tag, True)
            if self.store.read_with_tag(key)[1] == tag:
                raise replay_error(where, signature)

    def read_untrusted(self, key: str) -> tuple[bytes, Version]:
        """An unverified record and its version; only for replacing the record."""
        data, tag = self.store.read_with_tag(key)
        try:
            content, signature = open_envelope(data, f"{self.store.where}/{key}")
        except Untrusted:  # a signature of an unknown form
            return data, Version(tag, signed=True)
        return content, Version(tag, signature is not None)

    def create(self, key: str, content: bytes) -> Version:
        """Write a new record. Raises as `Store.write_if_absent` does."""
        return self._version(self.store.write_if_absent(key, self._seal_content(key, content)))

    def replace(self, key: str, content: bytes, version: Version) -> Version:
        """Replace the record that was read.

        Raises as `Store.replace_if_unchanged` does, and `Refused` if a signed record would lose its signature.
        """
        self.refuse_to_drop_signature(key, version)
        return self._version(self.store.replace_if_unchanged(key, self._seal_content(key, content), version.tag))

    def write(self, key: str, content: bytes) -> None:
        self.store.write(key, self._seal_content(key, content))

    def refuse_to_drop_signature(self, key: str, version: Version) -> None:
        if version.signed and self.seal is None:
            raise Refused(
                f"{self.store.where}/{key} is signed, but {KEY_VARIABLE} isn't set, so the file would lose its "
                "signature. Set the variable to your deployment's signing key, and run the command again.",
                invariant=7,
            )

    def _version(self, tag: str) -> Version:
        return Version(tag, self.seal is not None)

    def _seal_content(self, key: str, content: bytes) -> bytes:
        if self.seal is None:
            return content
        record = json.loads(content)
        signature = self.seal.sign(key, record_bytes(record), written=self.store.now())
        return record_bytes({"record": record, "signed": signature.to_dict()})


def open_envelope(data: bytes, where: str) -> tuple[bytes, Signature | None]:
    """The content of an envelope and its signature, unverified; the bytes unchanged and None if there is no envelope.

    Raises `Untrusted` if the signature is malformed or the record nested too deeply.
    """
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        return data, None
    if not isinstance(plain, dict) or plain.keys() != ENVELOPE:
        return data, None
    try:
        content = record_bytes(plain["record"])
    except RecursionError as error:
        raise Untrusted(
            f"{where} has a record that is nested too deeply, so the file is not used. Find out who wrote it."
        ) from error
    return content, Signature.of(plain["signed"], where)


def has_signed_time(store: Store, key: str, signature: Signature) -> bool:
    """Whether an object's time in the store matches its signature. A copy that was put back later has a later time.

    Raises `Untrusted` for an upload in parts: S3 dates it by the start of the upload, so an older version that is put
    back this way could have its original time.
    """
    stored = store.stat(key)
    if stored.checksum is not None and _MULTIPART_ETAG.fullmatch(stored.checksum):
        raise Untrusted(
            f"{store.where}/{key} was uploaded in parts (its ETag is {stored.checksum}), which lakegc never does. Its "
            "modification time doesn't show whether an older version was put back, so the file is not used. Find out "
            "who wrote it."
        )
    return abs(stored.modified - signature.written) <= MAX_WRITE_DELAY


def replay_error(where: str, signature: Signature) -> Untrusted:
    return Untrusted(
        f"{where} was signed at {signature.written:%Y-%m-%d %H:%M:%S} UTC, but the store's modification time "
        "differs: an older version was put back, or the bucket was copied or restored. The file is not used. If "
        "the whole bucket was copied or restored, make new marks there."
    )
