"""Checks of the store behind a namespace: permissions, capabilities, and the effect of a delete.

Writing and deleting are tried only under lakegc's own scratch prefix, with a name that nothing else uses.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from lakegc_assets.doctor.findings import Result, not_tried, ok, problem, warning
from lakegc_assets.formatting import plural
from spark_resources.errors import LakegcError, NotFound, full_stop
from spark_resources.stores import endpoint_to_probe
from spark_resources.stores.base import Capabilities, DeleteEffect, Store
from spark_resources.stores.permissions import delete_permission, identity, settings_permission
from spark_resources.stores.place import Place
from spark_resources.stores.probe import SCRATCH, probe, read_record
from spark_resources.stores.retry import delete_own_files

GROUP = "store"
LIST, READ, WRITE = "list data/", "read _lakefs/", "write and delete lakegc's files"
LARGEST_READ = 1 << 20  # bytes; large tables of lakeFS aren't downloaded


def location(place: Place) -> Result:
    scheme = place.namespace.uri.partition("://")[0]
    return ok(f"{place.store().where}, as {identity(scheme, place.settings)}")


def list_objects(store: Store) -> Result:
    found = sum(len(page.objects) for page in islice(store.pages("data/", page_size=1), 1))
    return ok("listed" if found else "listed; nothing is stored there yet")


def read_metadata(store: Store) -> Result:
    page = next(iter(store.pages("_lakefs/", page_size=50)), None)
    small = [listed.key for listed in (page.objects if page else ()) if listed.size <= LARGEST_READ]
    if not small:
        return not_tried("no small file was found under _lakefs/")
    for key in small:
        try:
            store.read(key)
        except NotFound:  # removed since it was listed
            continue
        return ok(f"{key} was read")
    return not_tried("the files found under _lakefs/ were removed before they could be read")


def write_and_delete(store: Store, token: str) -> Result:
    """Write, read and delete one file. `token` is unique to this call. The file is also removed after a failure, since
    a write whose response was lost may have succeeded."""
    key, content = f"{SCRATCH}{token}/doctor", f"lakegc doctor {token}".encode()
    try:
        store.write(key, content)
        read = store.read(key)
    except LakegcError:
        with suppress(LakegcError):  # the first error explains more
            delete_own_files(store, [key])
        raise
    failed = delete_own_files(store, [key])
    if failed:
        return problem(
            f"{key} was written, but can't be deleted: {failed[0].code} {full_stop(failed[0].message)}",
            "Grant permission to delete under _lakefs/retention/gc/lakegc/, and delete this file.",
        )
    if read != content:
        return problem(f"{key} was written, but reading it returned other bytes.", "Check the store and its proxies.")
    return ok("a file was written, read and deleted under _lakefs/retention/gc/lakegc/")


def write_for_reference() -> Result:
    return not_tried(
        "only lakegc's own folder is written to", "A mark also writes under _lakefs/retention/gc/unified/."
    )


def delete_objects(scheme: str) -> Result:
    return not_tried(
        f"users' objects are never touched. Required: {delete_permission(scheme)}, under data/ and at the namespace's "
        "root.",
        "A sweep deletes a single approved object first, and ends there if the store refuses.",
    )


def quarantine() -> Result:
    return not_tried(
        "only lakegc's own folder is written to",
        "A sweep with --quarantine also writes under _lakefs/retention/gc/quarantine/.",
    )


# --- capabilities ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KnownCapabilities:
    """The capabilities of a store, and how they are known."""

    capabilities: Capabilities
    origin: str


def find_capabilities(place: Place, token: str, *, can_write: bool) -> KnownCapabilities | None:
    """The capabilities that are known for the provider, recorded by an earlier probe, or found by a new probe, which
    isn't recorded. None if a probe is needed but nothing can be written."""
    store, endpoint = place.store(), endpoint_to_probe(place.namespace, place.settings)
    if endpoint is None:
        return KnownCapabilities(store.capabilities, "known for this kind of store")
    recorded = read_record(store, endpoint, store.now(), place.seal)
    if recorded is not None:
        return KnownCapabilities(recorded, "recorded by an earlier probe")
    return KnownCapabilities(probe(store, f"{SCRATCH}{token}/"), "probed now") if can_write else None


def capabilities(known: KnownCapabilities | None) -> Result:
    if known is None:
        return not_tried("a probe needs permission to write")
    found, unsupported = known.capabilities, ", ".join(sorted(known.capabilities.unsupported_keys)) or "none"
    return ok(
        f"lists in byte order: {yes_or_no(found.byte_order)}; ETags are MD5: {yes_or_no(found.md5_etags)}; "
        f"up to {plural(found.delete_batch, 'key')} per delete; unsupported kinds of keys: {unsupported} "
        f"({known.origin})"
    )


def yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def conditional_writes(known: KnownCapabilities | None, *, single_deployment: bool) -> Result:
    """Whether the store can prevent two deployments of lakegc from working on one repository at the same time."""
    if known is None:
        return not_tried("the store's capabilities aren't known")
    if known.capabilities.conditional_writes:
        return ok("supported: only one mark or sweep of a repository runs at a time")
    text = "not supported, so nothing prevents two deployments of lakegc from working on one repository."
    if single_deployment:
        return warning(text, "single_deployment is set: make sure that no other deployment works on this repository.")
    return problem(
        text,
        "Use a store with conditional writes, or set LAKEGC_SINGLE_DEPLOYMENT=true if there is no other deployment.",
    )


def deletes(scheme: str, effect: DeleteEffect) -> Result:
    if effect is DeleteEffect.FINAL:
        return ok(effect.value)
    if effect is DeleteEffect.UNKNOWN:
        return warning(
            f"{effect.value}.",
            f"If they do, grant {settings_permission(scheme)}, so that reviews show what a delete does.",
        )
    return warning(f"{effect.value}.")


def owner(refuse: Callable[[], None]) -> Result:
    """`refuse` raises `Refused` if the namespace is recorded as another repository's."""
    refuse()
    return ok("the namespace isn't recorded as another repository's")
