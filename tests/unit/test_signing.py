"""Signatures of records: what they cover, which keys verify them, and that keys are never shown or sent."""

from __future__ import annotations

import copy
import json
import os
import pickle  # noqa: TID251  # what Spark does with a place
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_resources.errors import NotFound, Refused, Untrusted, WrongUsage
from spark_resources.mark_store.hold_file import parse_hold
from spark_resources.mark_store.holds import HOLDS_KEY, add_hold, read_holds
from spark_resources.model import Namespace
from spark_resources.records.json_records import MAX_WRITE_DELAY, Version, record_bytes
from spark_resources.records.signing import Seal, SigningKey, SigningKeys, without_signing_keys
from spark_resources.settings import Settings
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings
from tests.support.s3_servers import SeaweedFS

OLD, NEW = "0f" * 32, "a1" * 32
CREATED = datetime(2026, 1, 2, tzinfo=UTC)
KEY = "_lakefs/retention/gc/lakegc/m1/mark.json"
OTHER_MARK = KEY.replace("m1", "m2")
CONTENT = record_bytes({"state": "approved", "counts": {"expired": 3}, "minimum": 86400.5, "by": "Åda"})


def keys(current: str = OLD, *retired: str) -> SigningKeys:
    return SigningKeys(SigningKey.parse(current), tuple(SigningKey.parse(key) for key in retired))


def seal(known: SigningKeys | None = None, **context: Any) -> Seal:
    fields = {"repository": "lake", "created": CREATED, "namespace": "local://lake", **context}
    return Seal.of(known or keys(), **fields)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "lake").mkdir()
    return Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)), seal=seal())


def unsigned(place: Place) -> Place:
    return replace(place, seal=None)


def refused(place: Place, *words: str, key: str = KEY) -> None:
    with pytest.raises(Untrusted) as caught:
        place.records().read(key)
    for word in (*words, key):
        assert word in str(caught.value)
    for secret in (OLD, NEW):
        assert secret not in str(caught.value)


# --- records ----------------------------------------------------------------------------------------------------------


def test_a_signed_record_is_read_back_as_written(place: Place) -> None:
    """The envelope has the format, key id and time. Anybody can read the record in it, with or without a key."""
    version = place.records().create(KEY, CONTENT)
    envelope = json.loads(place.store().read(KEY))

    assert place.records().read_with_version(KEY) == (CONTENT, version)
    assert unsigned(place).records().read(KEY) == CONTENT
    assert envelope["record"] == json.loads(CONTENT)
    assert envelope["signed"].keys() == {"format", "key", "written", "number", "hmac"}
    assert (envelope["signed"]["format"], envelope["signed"]["key"]) == (1, SigningKey.parse(OLD).id)

    place.records().replace(KEY, record_bytes({"state": "swept"}), version)
    assert json.loads(place.records().read(KEY)) == {"state": "swept"}
    with pytest.raises(NotFound):
        place.records().read(OTHER_MARK)


def test_a_record_without_a_signature_is_refused(place: Place) -> None:
    """The record was never signed, or somebody removed the envelope."""
    unsigned(place).records().create(KEY, CONTENT)
    refused(place, "isn't signed", "LAKEGC_SIGNING_KEY")


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain["record"].update(state="marked"),
        lambda plain: plain["signed"].update(hmac="0" * 64),
        lambda plain: plain["signed"].update(number=7),
        lambda plain: plain["signed"].update(written="2026-01-01T00:00:00+00:00"),
    ],
    ids=["content", "signature", "number", "time"],
)
def test_an_altered_record_is_refused(place: Place, change: Any) -> None:
    """The signature covers the content and all fields of the envelope."""
    place.records().create(KEY, CONTENT)
    plain = json.loads(place.store().read(KEY))
    change(plain)
    place.store().write(KEY, record_bytes(plain))
    refused(place, "altered")


@pytest.mark.parametrize("signed", [{"format": 2}, {"format": 1}, "text", None])
def test_a_signature_in_an_unknown_format_is_refused(place: Place, signed: Any) -> None:
    """A signature of a later format, or a malformed one, is never accepted."""
    place.store().write(KEY, record_bytes({"record": {}, "signed": signed}))
    refused(place, "signature")


def test_a_record_that_was_moved_to_another_mark_is_refused(place: Place) -> None:
    """An approval, for example, is valid only for its own mark."""
    place.records().create(KEY, CONTENT)
    place.store().write(OTHER_MARK, place.store().read(KEY))
    refused(place, "another location", key=OTHER_MARK)


@pytest.mark.parametrize(
    "context",
    [{"repository": "pond"}, {"created": CREATED + timedelta(seconds=1)}, {"namespace": "local://pond"}],
    ids=["another repository", "deleted and created again", "another namespace"],
)
def test_a_record_of_another_repository_is_refused(place: Place, context: Mapping[str, Any]) -> None:
    """The other repository may have had the same name before it was deleted."""
    place.records().create(KEY, CONTENT)
    refused(replace(place, seal=seal(**context)), "repository")


def test_an_older_record_that_was_restored_is_refused(place: Place, tmp_path: Path) -> None:
    """The signature of a revoked approval is valid, but the store's date of the file is later than the signed time."""
    place.records().create(KEY, CONTENT)
    file = tmp_path / "lake" / KEY
    for late, back in ((MAX_WRITE_DELAY - timedelta(minutes=1), False), (MAX_WRITE_DELAY + timedelta(minutes=1), True)):
        then = (datetime.now(UTC) + late).timestamp()
        os.utime(file, (then, then))
        if back:
            refused(place, "put back")
        else:
            assert place.records().read(KEY) == CONTENT


@pytest.mark.parametrize("key", [KEY, HOLDS_KEY])
def test_a_record_that_was_uploaded_in_parts_is_refused(seaweedfs: SeaweedFS, key: str) -> None:
    """S3 dates such an upload by its start. An upload that was started while a version was new, and completed days
    later, would restore that version with a time that matches the signature."""
    bucket = "in-parts"
    seaweedfs.make_bucket(bucket)
    place = Place(Namespace.parse(f"s3://{bucket}/{uuid.uuid4().hex}"), seaweedfs.settings(), seal=seal())
    if key == HOLDS_KEY:
        add_hold(place, parse_hold({"id": "h1", "owner": "ada", "reason": "audit", "prefix": "data/"}))
    else:
        place.records().create(key, CONTENT)
    data, client = place.store().read(key), seaweedfs.client()
    read: Callable[[], object] = (lambda: read_holds(place)) if key == HOLDS_KEY else lambda: place.records().read(key)
    place.store().write(key, data)
    read()
    at = {"Bucket": bucket, "Key": f"{place.namespace.path}/{key}"}
    upload = client.create_multipart_upload(**at)["UploadId"]
    part = {"PartNumber": 1, "ETag": client.upload_part(**at, UploadId=upload, PartNumber=1, Body=data)["ETag"]}
    client.complete_multipart_upload(**at, UploadId=upload, MultipartUpload={"Parts": [part]})  # type: ignore[list-item]

    assert place.store().read(key) == data
    with pytest.raises(Untrusted, match=f"{key} was uploaded in parts.*the file is not used"):
        read()


def test_a_retired_key_verifies_and_the_new_one_signs(place: Place) -> None:
    """A key can be replaced without signing all records again: the id in the envelope selects the right key."""
    version = place.records().create(KEY, CONTENT)
    rotated = replace(place, seal=seal(keys(NEW, OLD)))

    assert rotated.records().read(KEY) == CONTENT
    rotated.records().replace(KEY, CONTENT, version)
    assert json.loads(place.store().read(KEY))["signed"]["key"] == SigningKey.parse(NEW).id
    refused(place, SigningKey.parse(NEW).id, "LAKEGC_RETIRED_SIGNING_KEYS")


def test_a_process_without_the_key_does_not_overwrite_a_signed_record(place: Place) -> None:
    """A process without the key stops instead of writing a record that the others would refuse."""
    place.records().create(KEY, CONTENT)
    before = place.store().read(KEY)
    records = unsigned(place).records()
    content, version = records.read_with_version(KEY)

    with pytest.raises(Refused, match="LAKEGC_SIGNING_KEY isn't set"):
        records.replace(KEY, content, version)
    assert place.store().read(KEY) == before
    assert version == Version(version.tag, signed=True)


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_is_neither_shown_nor_pickled(place: Place) -> None:
    """A task gets the place without its keys. The task can't sign, and can't mistake a signed record for an unsigned
    one."""
    known = keys(NEW, OLD)
    unpickled = pickle.loads(pickle.dumps(replace(place, seal=seal(known))))

    with pytest.raises(TypeError):
        pickle.dumps(known)
    with pytest.raises(Untrusted, match="task"):
        unpickled.records().create(KEY, CONTENT)
    for text in (repr(known), repr(seal(known)), repr(place), repr(vars(type(known.current))), str(unpickled.seal)):
        assert OLD not in text
        assert repr(bytes.fromhex(OLD)) not in text
    assert OLD.encode() not in pickle.dumps(replace(place, seal=seal(known)))
    assert bytes.fromhex(OLD) not in pickle.dumps(replace(place, seal=seal(known)))
    assert copy.deepcopy(place) == place


@pytest.mark.parametrize("text", ["secret", OLD[:-2], OLD + "0", OLD[:-2] + "zz", "0" * 64, f"{OLD},{NEW}"])
def test_the_error_about_a_malformed_key_does_not_show_it(text: str) -> None:
    """The error names the variable and the expected form."""
    for variable in ("LAKEGC_SIGNING_KEY", "LAKEGC_RETIRED_SIGNING_KEYS"):
        if variable.endswith("KEYS") and "," in text:
            continue
        with pytest.raises(WrongUsage, match=f"{variable}.*openssl rand -hex 32") as caught:
            Settings.load({"LAKEGC_SIGNING_KEY": OLD, variable: text}, Path("/nonexistent"))
        assert text not in str(caught.value)


def test_an_empty_key_raises_an_error(tmp_path: Path) -> None:
    """Otherwise, a secret that failed to arrive would switch signing off."""
    with pytest.raises(WrongUsage, match="LAKEGC_SIGNING_KEY is empty"):
        Settings.load({"LAKEGC_SIGNING_KEY": " "}, tmp_path)
    with pytest.raises(WrongUsage, match="also set LAKEGC_SIGNING_KEY"):
        Settings.load({"LAKEGC_RETIRED_SIGNING_KEYS": OLD}, tmp_path)
    assert Settings.load({}, tmp_path).signing_keys() is None


def test_settings_contain_the_keys_but_do_not_show_them(tmp_path: Path) -> None:
    """Upper case, spaces around a key and several retired keys are accepted."""
    environ = {"LAKEGC_SIGNING_KEY": f" {NEW.upper()} ", "LAKEGC_RETIRED_SIGNING_KEYS": f"{OLD}, {'b2' * 40}"}
    settings = Settings.load({**environ, "HOME": "/h"}, tmp_path)
    signing = settings.signing_keys()

    assert signing is not None
    assert signing.current.id == SigningKey.parse(NEW).id
    assert [key.id for key in signing.retired] == [SigningKey.parse(text).id for text in (OLD, "b2" * 40)]
    for representation in (
        repr(settings),
        str(settings.model_dump()),
        settings.model_dump_json(),
        repr(settings.origins),
    ):
        assert not any(key in representation for key in (OLD, NEW.upper(), "b2" * 40))
    assert without_signing_keys({**environ, "HOME": "/h"}) == {"HOME": "/h"}
