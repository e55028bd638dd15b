"""Which checks there are, and which of them need the result of another.

Checks over the network run in parallel, in stages: without the server there is no repository, and without the
repository no store. A host that doesn't respond therefore costs the time limit of one check.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

import platformdirs

from lakegc_assets.doctor import (
    clocks,
    configuration,
    dagster_instance,
    folders,
    machine,
    permissions,
    repository,
    server,
    store,
)
from lakegc_assets.doctor.checks import Check, Checks
from lakegc_assets.doctor.findings import Finding, Result
from lakegc_assets.mark.context import Target, place_of, read_clocks
from spark_resources.errors import Forbidden, WrongUsage
from spark_resources.host.user_folders import NAME, cache_folder
from spark_resources.identifiers import server_of
from spark_resources.lakefs import LakeFS, LakeFSSettings, Repository
from spark_resources.lakefs.responses import ServerConfig
from spark_resources.mark_store.mark import refuse_foreign_namespace
from spark_resources.settings import Settings

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 8  # within a check's time limit
SPARK_TIME_LIMIT_S, PROBE_TIME_LIMIT_S = 180.0, 60.0
GROUPS = (
    *(machine.GROUP, folders.GROUP, configuration.GROUP, dagster_instance.GROUP, server.GROUP, clocks.GROUP),
    *(repository.GROUP, store.GROUP, permissions.MARK_GROUP, permissions.SWEEP_GROUP),
)
"""The groups of findings, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the checks take from this machine. `token` is unique to this examination. `start_spark` starts Spark and
    returns a result; None if Spark isn't to be started."""

    environ: Mapping[str, str]
    home: Path
    now: Callable[[], datetime]
    free_bytes: Callable[[Path], int]
    memory_bytes: int
    memory_limit: int | None
    token: str
    start_spark: Callable[[], Result] | None = None


@dataclass(frozen=True, slots=True)
class Connected:
    """The servers, the configuration of each one that responds, and the settings with short timeouts."""

    lakefs: LakeFS
    servers: Mapping[str, ServerConfig]
    settings: Settings


def examine(
    name: str | None, surroundings: Surroundings, checks: Checks, status: Callable[[str], None]
) -> list[Finding]:
    """The findings of all checks, by group, including those of a repository if one is named. No finding contains a
    secret."""
    status("checking this machine and the configuration")
    check_machine(surroundings, checks)
    settings = check_configuration(name, surroundings, checks)
    status("checking the lakeFS servers")
    connected = check_servers(settings, surroundings, checks)
    if connected is not None and name is not None:
        status(f"checking repository {name}")
        check_repository(name, connected, surroundings, checks)
    elif connected is not None:
        check = partial(clocks.server_clock, machine=surroundings.now(), max_skew=connected.settings.max_clock_skew)
        checks.run_in_parallel(
            [
                Check(clocks.GROUP, check_name(name, "clocks"), partial(connected.lakefs.server_time, name), check)
                for name in connected.servers
            ]
        )
    elif name is not None:
        checks.skip(repository.GROUP, ["all"], "needs the lakeFS server")
    if surroundings.start_spark is not None:
        status("starting Spark")
        start = surroundings.start_spark
        checks.run_in_parallel([Check(machine.GROUP, "Spark", start, limit_s=SPARK_TIME_LIMIT_S)])
    secrets = configuration.secrets_of(surroundings.environ, settings)
    hidden = [replace(found, result=hide(found.result, secrets)) for found in checks.findings]
    return sorted(hidden, key=lambda found: GROUPS.index(found.group))


def hide(result: Result, secrets: set[str]) -> Result:
    found, advice = (configuration.without_secrets(text, secrets) for text in (result.found, result.advice))
    return replace(result, found=found, advice=advice)


def check_machine(given: Surroundings, checks: Checks) -> None:
    decoder = partial(machine.compiled_decoder, machine.numba_finds_a_cache, lambda: cache_folder() / "numba")
    written = (
        folders.temporary(Path(tempfile.gettempdir())),
        folders.cache(platformdirs.user_cache_path(NAME)),
        folders.dagster(
            dagster_instance.home_of(given.environ), configured=dagster_instance.is_configured(given.environ)
        ),
    )
    for check in (
        Check(machine.GROUP, "Java", lambda: machine.java(given.environ)),
        Check(machine.GROUP, "Python", machine.python),
        Check(machine.GROUP, "packages", machine.packages),
        Check(machine.GROUP, "memory", lambda: machine.memory(given.memory_bytes, given.memory_limit)),
        Check(machine.GROUP, "compiled decoder", decoder),
        *(Check(folders.GROUP, folder.name, partial(folders.usable, folder, given.free_bytes)) for folder in written),
    ):
        checks.run(check)


def check_configuration(name: str | None, given: Surroundings, checks: Checks) -> Settings | None:
    """The settings, without unknown variables; None if a setting or the fleet file is invalid."""
    group, environ = configuration.GROUP, configuration.known_variables(given.environ)
    checks.run(Check(group, "variables", lambda: configuration.variables(given.environ)))
    fleet = checks.run(Check(group, "fleet file", lambda: configuration.fleet_file(environ, name)))
    if fleet.is_problem:
        checks.skip(group, ["settings"], "needs a valid fleet file")
        return None
    load = partial(configuration.load_settings, environ, given.home, name)
    loaded = checks.run(Check(group, "settings", load, configuration.valid_settings))
    if loaded.is_problem:
        return None
    settings: Settings = loaded.value
    checks.run(Check(group, "lakeFS credentials", lambda: configuration.server_credentials(settings)))
    checks.run(Check(group, "store credentials", lambda: configuration.store_credentials(settings)))
    if given.start_spark is None:
        checks.run(Check(machine.GROUP, "Spark", lambda: machine.spark_master(settings.spark_master)))
    return settings


# --- over the network -----------------------------------------------------------------------------------------------


def with_short_timeouts(settings: Settings) -> Settings:
    """The settings with short timeouts and without retries."""
    limits = {
        "connect_timeout_s": min(settings.connect_timeout_s, CONNECT_TIMEOUT_S),
        "read_timeout_s": min(settings.read_timeout_s, READ_TIMEOUT_S),
        "slow_read_timeout_s": READ_TIMEOUT_S,
        "store_connect_timeout_s": min(settings.store_connect_timeout_s or CONNECT_TIMEOUT_S, CONNECT_TIMEOUT_S),
        "store_read_timeout_s": min(settings.store_read_timeout_s or READ_TIMEOUT_S, READ_TIMEOUT_S),
        "retry_total_s": 0,
    }
    return settings.model_copy(update=limits)


SERVER_CHECKS = ("TLS", "connection", "credentials", "version")


def check_servers(settings: Settings | None, given: Surroundings, checks: Checks) -> Connected | None:
    """The servers, if at least one responds and accepts the credentials. The daemon is checked at the same time."""
    home = dagster_instance.home_of(given.environ)
    daemon = Check(dagster_instance.GROUP, "daemon", lambda: dagster_instance.daemon(home, given.now()))
    quick = None if settings is None else with_short_timeouts(settings)
    try:
        servers = () if quick is None else LakeFSSettings.of(quick)
    except WrongUsage:  # the check "lakeFS credentials" has reported it
        servers = ()
    if quick is None or not servers:
        checks.skip(server.GROUP, SERVER_CHECKS, "needs valid settings, with the server and its credentials")
        checks.run_in_parallel([daemon])
        return None
    lakefs, concurrent_checks = LakeFS(*servers), [daemon]
    configurations = {}
    for single in servers:
        config = check_server(lakefs, single, concurrent_checks, checks)
        concurrent_checks = []
        if config is not None:
            configurations[single.server] = config
    return Connected(lakefs, configurations, quick) if configurations else None


def check_server(
    lakefs: LakeFS, settings: LakeFSSettings, concurrent: list[Check], checks: Checks
) -> ServerConfig | None:
    """The configuration of a server, if it responds and accepts the credentials. Runs the `concurrent` checks at the
    same time."""
    group, name = server.GROUP, settings.server
    tls, connection, credentials, version = (check_name(name, check) for check in SERVER_CHECKS)
    checks.run(Check(group, tls, lambda: server.tls(settings)))
    shown = partial(server.connection, settings.endpoint_url)
    time = Check(group, connection, partial(lakefs.server_time, name), shown)
    responds, *_ = checks.run_in_parallel([time, *concurrent])
    if responds.is_problem:
        checks.skip(group, [credentials, version], "needs a server that responds")
        return None
    accepted = partial(server.credentials, settings.access_key_id)
    config = checks.run_in_parallel([Check(group, credentials, partial(lakefs.config, name), accepted)])[0]
    if config.is_problem:
        checks.skip(group, [version], "needs the server's configuration")
        return None
    checks.run(Check(group, version, lambda: server.version(config.value)))
    found: ServerConfig = config.value
    return found


def check_name(name: str, check: str) -> str:
    """The name of a check on one server; `name` is "" if it is the only server."""
    return f"{name}: {check}" if name else check


def check_repository(name: str, connected: Connected, given: Surroundings, checks: Checks) -> None:
    group, lakefs = repository.GROUP, connected.lakefs
    if server_of(name) in lakefs.servers and server_of(name) not in connected.servers:
        checks.skip(group, ["all"], "needs the repository's server")
        return
    find = Check(group, "exists", lambda: repository.find_repository(lakefs, name), repository.exists)
    found = checks.run_in_parallel([find])[0]
    if found.is_problem:
        for skipped in (store.GROUP, permissions.MARK_GROUP, permissions.SWEEP_GROUP):
            checks.skip(skipped, ["all"], "needs the repository")
        return
    checks.run(Check(group, "writable", lambda: repository.writable(found.value)))
    configuration_of = connected.servers[server_of(name)]
    matches = checks.run(Check(group, "block store", lambda: repository.block_store(found.value, configuration_of)))
    target = None if matches.is_problem else open_target(found.value, connected, checks)
    check_access(found.value, target, connected, checks)
    if target is None:
        checks.skip(store.GROUP, ["all"], "needs a location that lakegc can open")
    checks.report(permissions.SWEEP_GROUP, "lakeFS", permissions.sweep_permissions(checks.findings))
    scheme = str(found.value.storage_namespace).partition("://")[0]
    checks.report(permissions.SWEEP_GROUP, "delete objects", store.delete_objects(scheme))
    checks.report(permissions.SWEEP_GROUP, "write to quarantine", store.quarantine())
    if target is not None:
        check_store(target, connected, given, checks)


def open_target(lakefs_repository: Repository, connected: Connected, checks: Checks) -> Target | None:
    """The repository with its store (no request is sent to the store yet); None if the store can't be opened."""
    blockstore = connected.servers[lakefs_repository.server].blockstore(lakefs_repository.storage_id)
    open_place = partial(place_of, lakefs_repository, blockstore, connected.settings.store_settings())
    place = checks.run(Check(store.GROUP, "location", open_place, store.location))
    return None if place.is_problem else Target(lakefs_repository, blockstore, place.value)


def check_access(lakefs_repository: Repository, target: Target | None, connected: Connected, checks: Checks) -> None:
    """Check the permissions in lakeFS, and whether the namespace overlaps another one."""
    group, lakefs = permissions.MARK_GROUP, connected.lakefs
    tried = [
        Check(group, permission.name, partial(permissions.try_permission, permission, lakefs, lakefs_repository))
        for permission in permissions.PERMISSIONS
    ]
    if target is not None:
        tried.append(Check(repository.GROUP, "namespace", partial(repository.namespace, target, lakefs)))
    checks.run_in_parallel(tried)
    for name, result in permissions.UNTRIED.items():
        checks.report(group, name, result)


def check_store(target: Target, connected: Connected, given: Surroundings, checks: Checks) -> None:
    """Check the store. If it can't be reached or its bucket is missing, most checks are skipped."""
    group, place = permissions.MARK_GROUP, target.place
    opened = place.store()
    listing = checks.run_in_parallel([Check(group, store.LIST, partial(store.list_objects, opened))])[0]
    if listing.is_problem and not isinstance(listing.error, Forbidden):
        checks.skip(group, [store.READ, store.WRITE], "needs a store that responds")
        checks.skip(store.GROUP, ["capabilities", "conditional writes", "deletes"], "needs a store that responds")
        checks.skip(clocks.GROUP, ["clocks"], "needs a store that responds")
        return
    settings, checked = connected.settings, target.repository
    owner = partial(refuse_foreign_namespace, place, checked.id, checked.created)
    reading = partial(read_clocks, opened, connected.lakefs, checked.server, given.now)
    judged = partial(clocks.all_clocks, max_skew=settings.max_clock_skew, repository=checked.id)
    write, *_ = checks.run_in_parallel(
        [
            Check(group, store.WRITE, partial(store.write_and_delete, opened, given.token)),
            Check(group, store.READ, partial(store.read_metadata, opened)),
            Check(repository.GROUP, "owner", partial(store.owner, owner)),
            Check(clocks.GROUP, "clocks", reading, judged),
            Check(store.GROUP, "deletes", opened.delete_effect, partial(store.deletes, place.namespace.scheme)),
        ]
    )
    checks.report(group, "write the reference's files", store.write_for_reference())
    find = partial(store.find_capabilities, place, given.token, can_write=not write.is_problem)
    known = checks.run_in_parallel(
        [Check(store.GROUP, "capabilities", find, store.capabilities, limit_s=PROBE_TIME_LIMIT_S)]
    )[0]
    judged_writes = partial(store.conditional_writes, known.value, single_deployment=settings.single_deployment)
    checks.run(Check(store.GROUP, "conditional writes", judged_writes))
