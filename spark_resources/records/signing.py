"""Signatures of lakegc's records in a namespace: HMAC-SHA-256 with a key that is kept elsewhere. Pure.

A signature covers the repository (id and creation date), its namespace, the record's key in the store, the time of
writing, its number, and its content. So a record can't be altered or moved to another key or repository, and a record
that was put back later has a modification time that differs from the signed time.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from spark_resources.errors import Untrusted, parse_problem

FORMAT = 1
MIN_BYTES = 32
KEY_FORMAT = f"{2 * MIN_BYTES} or more hexadecimal digits, as 'openssl rand -hex {MIN_BYTES}' prints"
KEY_VARIABLE, RETIRED_KEYS_VARIABLE = "LAKEGC_SIGNING_KEY", "LAKEGC_RETIRED_SIGNING_KEYS"
_HMAC = re.compile("[0-9a-f]{64}")
_HEX = re.compile(r"([0-9a-fA-F]{2})+")


class SigningKey:
    """One key and its id, which reveals nothing about the key. The key is never shown and never leaves this process."""

    __slots__ = ("_secret", "id")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.id = hmac.new(secret, b"lakegc key id", hashlib.sha256).hexdigest()[:16]

    @classmethod
    def parse(cls, text: str) -> SigningKey:
        """Parse a key in KEY_FORMAT. Raises `ValueError` for anything else; its message doesn't contain the text."""
        stripped = text.strip()
        if not _HEX.fullmatch(stripped) or len(stripped) < 2 * MIN_BYTES or len(set(stripped)) == 1:
            raise ValueError(f"expected {KEY_FORMAT}")
        return cls(bytes.fromhex(stripped))

    def hmac(self, message: bytes) -> str:
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()

    def __repr__(self) -> str:
        return f"SigningKey(id={self.id})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a signing key never leaves the process it was given to")


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """The signing key, and the retired keys, which are accepted only for verification."""

    current: SigningKey
    retired: tuple[SigningKey, ...] = ()

    def by_id(self, key_id: str) -> SigningKey | None:
        return next((key for key in (self.current, *self.retired) if key.id == key_id), None)


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature of a record. `key` is the id of the key; `written` is by the store's clock.

    `number` is the version number for a record that has one, otherwise 0.
    """

    key: str
    written: datetime
    hmac: str
    number: int = 0
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": self.format, "key": self.key, "written": self.written.astimezone(UTC).isoformat(),
            "number": self.number, "hmac": self.hmac,
        }  # fmt: skip

    @classmethod
    def of(cls, plain: Mapping[str, Any], where: str) -> Signature:
        """Parse a signature. Raises `Untrusted` for an invalid one, or one of an unknown format."""
        try:
            if plain["format"] != FORMAT:
                raise Untrusted(
                    f"{where} has a signature of format {plain['format']!r:.80}, but this version of lakegc supports "
                    f"{FORMAT}. Update lakegc."
                )
            written = datetime.fromisoformat(plain["written"])
            if written.tzinfo is None or plain.keys() != {"format", "key", "written", "number", "hmac"}:
                raise ValueError("missing or unexpected fields, or a time without a time zone")
            if not _HMAC.fullmatch(plain["hmac"]):
                raise ValueError("its HMAC is not 64 hexadecimal digits")
            return cls(str(plain["key"]), written.astimezone(UTC), plain["hmac"], int(plain["number"]))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Untrusted(
                f"{where} has an invalid signature ({parse_problem(error)}), so the file is not used. Find out who "
                "wrote it."
            ) from error


class Seal:
    """Signs and verifies the records of one repository's namespace.

    Pickling it for a task drops the keys, and any use of it there raises `Untrusted`: only the driver reads and writes
    records.
    """

    __slots__ = ("_context", "_keys")

    def __init__(self, keys: SigningKeys | None, context: tuple[str, ...] = ()) -> None:
        self._keys, self._context = keys, context

    @classmethod
    def of(cls, keys: SigningKeys, *, repository: str, created: datetime, namespace: str) -> Seal:
        return cls(keys, (repository, created.astimezone(UTC).isoformat(), namespace))

    def for_repository(self, repository: str, *, created: datetime, namespace: str) -> Seal:
        """The seal of another repository's namespace, with the same keys."""
        return Seal.of(self._require_keys(), repository=repository, created=created, namespace=namespace)

    def sign(self, name: str, content: bytes, *, written: datetime, number: int = 0) -> Signature:
        """The signature of a record. `name` is the record's key in the store."""
        key = self._require_keys().current
        unsigned = Signature(key.id, written, "", number)
        return Signature(key.id, written, key.hmac(self._message(name, content, unsigned)), number)

    def check(self, name: str, content: bytes, signature: Signature | None, where: str) -> None:
        """Raise `Untrusted` unless the record was signed with a known key, for this name and content."""
        keys = self._require_keys()
        if signature is None:
            raise Untrusted(
                f"{where} isn't signed, but {KEY_VARIABLE} is set: it was written without the key, or by someone else, "
                "so it is not used."
            )
        key = keys.by_id(signature.key)
        if key is None:
            known = ", ".join(key.id for key in (keys.current, *keys.retired))
            raise Untrusted(
                f"{where} is signed with key {signature.key:.80}, which is not among the known keys ({known}). If it "
                f"is one of your older keys, add it to {RETIRED_KEYS_VARIABLE}."
            )
        if not hmac.compare_digest(key.hmac(self._message(name, content, signature)), signature.hmac):
            raise Untrusted(
                f"{where} doesn't match its signature: it was altered, or it was signed for another location, mark or "
                "repository. It is not used. Find out who wrote it."
            )

    def _require_keys(self) -> SigningKeys:
        if self._keys is None:
            raise Untrusted("a task has no signing key: only the driver signs and verifies records")
        return self._keys

    def _message(self, name: str, content: bytes, signature: Signature) -> bytes:
        signed_fields = ["lakegc record", *self._context, name, {**signature.to_dict(), "hmac": ""}]
        return json.dumps(signed_fields, sort_keys=True).encode() + b"\0" + content

    def __repr__(self) -> str:
        return f"Seal({', '.join(self._context)})"

    def __reduce__(self) -> tuple[type[Seal], tuple[None]]:
        return (Seal, (None,))


def parse_keys(current: str | None, retired: Iterable[str]) -> SigningKeys | None:
    """Parse keys; None if none is given. Raises `ValueError` for an invalid one, without showing it."""
    others = tuple(_parse_key(key, RETIRED_KEYS_VARIABLE) for key in retired)
    if current is None:
        if others:
            raise ValueError(f"{RETIRED_KEYS_VARIABLE} is only used for verification: also set {KEY_VARIABLE}")
        return None
    return SigningKeys(_parse_key(current, KEY_VARIABLE), others)


def without_signing_keys(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of the environment for another process, without lakegc's signing keys."""
    return {name: value for name, value in environ.items() if name not in (KEY_VARIABLE, RETIRED_KEYS_VARIABLE)}


def _parse_key(text: str, variable: str) -> SigningKey:
    try:
        return SigningKey.parse(text)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None
