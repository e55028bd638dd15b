"""The permit to delete, which the driver grants to the tasks of a round for a few seconds at a time.

    <folder of receipts>/<round>/permit.json                    until when deletes may be sent, or why the round stopped
    <folder of receipts>/<round>/became-live-<number>.parquet   addresses that became live during the round

The permit carries an HMAC with a secret that the driver makes for the round and gives to its tasks, never to the store:
anyone who can write to the namespace can remove a permit, but not forge one. An earlier permit that is put back expires
when it would have anyway. The driver renews the permit after each listing of branch heads. The driver needn't reach a
task to stop the deletes: a permit that isn't renewed expires, whether the driver, its network or the lakeFS server has
failed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from spark_resources.deleting.receipts import Receipts
from spark_resources.errors import DamagedData, LakegcError, NotFound, Refused, parse_problem
from spark_resources.mark_store.lease import boottime_s
from spark_resources.model import ADDRESSES
from spark_resources.records.json_records import check_format, parse_time, read_json
from spark_resources.records.parquet_files import parquet_rows
from spark_resources.spark.datasets import parquet_bytes
from spark_resources.stores.base import Store

FORMAT = 1
NEVER = datetime.fromtimestamp(0, UTC)
PERMIT_WAIT_S = 60.0  # how long a task waits for a renewed permit before it leaves its keys to another round


@dataclass(frozen=True, slots=True)
class Permit:
    """Deletes may be sent before `until`, by the store's clock. `became_live` has the hashes of the files with the
    addresses that became live during the round. `stopped` is why the round was stopped, "" if it wasn't."""

    until: datetime = NEVER
    became_live: tuple[str, ...] = ()
    stopped: str = ""

    def to_json(self, secret: bytes, key: str) -> bytes:
        plain = {"format": FORMAT, **asdict(self), "until": self.until.isoformat()}
        return json.dumps({**plain, "hmac": _hmac(secret, key, plain)}).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str, secret: bytes, key: str) -> Permit:
        try:
            plain = read_json(data)
            check_format(plain["format"], FORMAT, where)  # written in this round, so by this version of lakegc
            if not hmac.compare_digest(str(plain.pop("hmac")), _hmac(secret, key, plain)):
                raise ValueError("not written by the driver of this round")
            return cls(parse_time(plain["until"]), tuple(map(str, plain["became_live"])), str(plain["stopped"]))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise DamagedData(
                f"{where} is not a valid permit to delete ({parse_problem(error)}). Run the same command again."
            ) from error


def _hmac(secret: bytes, key: str, plain: Mapping[str, object]) -> str:
    return hmac.new(secret, json.dumps([key, plain], sort_keys=True).encode(), hashlib.sha256).hexdigest()


def permit_key(receipts: Receipts, round_number: int) -> str:
    return f"{receipts.folder}{round_number:04d}/permit.json"


def became_live_key(receipts: Receipts, round_number: int, number: int) -> str:
    return f"{receipts.folder}{round_number:04d}/became-live-{number:04d}.parquet"


class PermitIssuer:
    """The driver's side of the permit of one round. Thread-safe."""

    def __init__(self, receipts: Receipts, round_number: int, secret: bytes) -> None:
        self._receipts, self._round, self._secret, self._issued = receipts, round_number, secret, Permit()
        self._unwritten: list[pa.Array] = []
        self._lock = threading.Lock()

    @property
    def is_stopped(self) -> bool:
        """Whether the round was stopped, so that this permit is never renewed."""
        return bool(self._issued.stopped)

    def grant(self, until: datetime) -> None:
        """Permit deletes until this time by the store's clock. Does nothing once the round is stopped.

        First writes addresses that `exclude` could not write. If that fails again, raises without renewing the permit.
        """
        with self._lock:
            if not self.is_stopped:
                self._write_excluded()
                self._write(replace(self._issued, until=until))

    def pause(self) -> None:
        """Permit no deletes until the permit is granted again."""
        with self._lock:
            self._write(replace(self._issued, until=NEVER))

    def stop(self, why: str) -> None:
        """Permit no more deletes in this round."""
        with self._lock:
            if not self.is_stopped:
                self._write(replace(self._issued, until=NEVER, stopped=why))

    def exclude(self, addresses: pa.Array) -> None:
        """Exclude these addresses from deletion in this round, as soon as tasks read the permit again.

        If they can't be written, raises the store's error, and nothing is permitted until they are.
        """
        with self._lock:
            self._unwritten.append(addresses)
            try:
                self._write_excluded()
            except LakegcError:
                self._write(replace(self._issued, until=NEVER))
                raise

    def _write_excluded(self) -> None:
        while self._unwritten:
            hashes, data = self._issued.became_live, parquet_bytes(pa.table([self._unwritten[0]], schema=ADDRESSES))
            self._receipts.store.write(became_live_key(self._receipts, self._round, len(hashes)), data)
            self._write(replace(self._issued, became_live=(*hashes, hashlib.sha256(data).hexdigest())))
            del self._unwritten[0]

    def _write(self, permit: Permit) -> None:
        key = permit_key(self._receipts, self._round)
        self._receipts.store.write(key, permit.to_json(self._secret, key))
        self._issued = permit


class PermitWatch:
    """A task's side of the permit: whether a delete may be sent now, and for which keys. Thread-safe.

    The permit is read again every `interval_s` seconds. `now` returns the store's time or a slightly later one.
    """

    def __init__(
        self,
        receipts: Receipts,
        round_number: int,
        secret: bytes,
        *,
        interval_s: float,
        now: Callable[[], datetime],
        clock: Callable[[], float] = boottime_s,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._receipts, self._round, self._secret, self._interval_s = receipts, round_number, secret, interval_s
        self._now, self._clock, self._sleep = now, clock, sleep
        self._permit, self._read_at = Permit(), -float("inf")
        self._expired_at: float | None = None
        self._became_live: set[str] = set()
        self._lock = threading.Lock()

    def check(self) -> None:
        """Return once a delete may be sent; wait a while for an expired permit to be renewed.

        Raises `Refused` if the round was stopped, or the permit is gone or isn't renewed, and `DamagedData` if the
        permit is invalid.
        """
        with self._lock:
            while True:  # not `poll`: each iteration decides again whether to permit (invariant 1)
                if self._clock() - self._read_at >= self._interval_s or self._now() >= self._permit.until:
                    self._read()
                if self._permit.stopped:
                    raise Refused(f"nothing more is deleted in this round: {self._permit.stopped}", invariant=1)
                if self._now() < self._permit.until:
                    self._expired_at = None
                    return
                if self._expired_at is None:
                    self._expired_at = self._clock()
                if self._clock() - self._expired_at >= PERMIT_WAIT_S:
                    raise Refused(
                        "the driver did not renew the permit in time, so nothing more is deleted in this round",
                        invariant=1,
                    )
                self._sleep(self._interval_s)

    def is_valid(self) -> bool:
        """Whether the permit that was read last is still valid."""
        return self._now() < self._permit.until

    def became_live(self, key: str) -> bool:
        """Whether a key became live during this round, as of the last `check`."""
        return key in self._became_live

    def _read(self) -> None:
        started, store = self._clock(), self._receipts.store
        key = permit_key(self._receipts, self._round)
        permit = Permit.from_json(_read_permit_file(store, key), f"{key} in {store.where}", self._secret, key)
        for number, sha256 in list(enumerate(permit.became_live))[len(self._permit.became_live) :]:
            self._became_live.update(_addresses(store, became_live_key(self._receipts, self._round, number), sha256))
        self._permit, self._read_at = permit, started


def _read_permit_file(store: Store, key: str) -> bytes:
    try:
        return store.read(key)
    except NotFound as error:
        raise Refused(
            f"{key} in {store.where} is gone, so nothing more is deleted in this round. Run the same command again.",
            invariant=1,
        ) from error


def _addresses(store: Store, key: str, sha256: str) -> list[str]:
    data = _read_permit_file(store, key)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DamagedData(f"{key} in {store.where} was altered after the driver wrote it. Run the same command again.")
    try:
        addresses: list[str] = parquet_rows(data).select(ADDRESSES.names).cast(ADDRESSES)["address"].to_pylist()
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise DamagedData(
            f"{key} in {store.where} can't be read as a list of addresses ({error}). Run the same command again."
        ) from error
    return addresses


def permit_duration(interval: timedelta) -> timedelta:
    """How long a permit lasts, counted from the start of a listing of branch heads, if these are listed at this
    interval: long enough that the next listing may be somewhat late."""
    return interval + timedelta(seconds=10)
