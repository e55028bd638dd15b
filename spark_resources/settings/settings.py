"""All settings of lakegc, their origins, and the precedence of their sources.

The sources are options, `LAKEGC_*` environment variables, the fleet file, lakectl's environment variables and lakectl's
file; the first one that has a setting wins. `Settings.load` gets the environment as an argument; nothing here reads
`os.environ`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from spark_resources.errors import LakegcError, WrongUsage, did_you_mean
from spark_resources.identifiers import SERVER_VARIABLES, Scope
from spark_resources.records.signing import KEY_VARIABLE, SigningKeys, parse_keys
from spark_resources.settings.fleet_file import VARIABLE as FLEET_FILE_VARIABLE
from spark_resources.settings.fleet_file import (
    FleetFile,
    KnownSettings,
    find_fleet_file,
    parse_fleet_file,
    read_fleet_file,
)
from spark_resources.settings.lakectl import Source, lakectl_file, lakectl_variables
from spark_resources.settings.servers import SECTION as SERVERS
from spark_resources.settings.servers import ServerSettings, refuse_single_server, servers_from
from spark_resources.settings.value_errors import expected_form, refuse_booleans_as_numbers, validation_error
from spark_resources.settings.value_types import (
    Amount,
    Count,
    Cron,
    Days,
    Destination,
    Duration,
    Events,
    HeadCheck,
    MetricsFile,
    Name,
    Patterns,
    Requests,
    RetrySeconds,
    Seconds,
    Secret,
    SecretTexts,
    Share,
    Tasks,
    Url,
    Wait,
    Webhook,
)

if TYPE_CHECKING:
    from spark_resources.stores.retry import RetryPolicy
    from spark_resources.stores.settings import StoreSettings

PREFIX = "LAKEGC_"
NOT_SETTINGS = frozenset({"LAKEGC_DEBUG", "LAKEGC_INCREMENTAL_MARKS", "LAKEGC_RECORDINGS", FLEET_FILE_VARIABLE})
"""Environment variables with the settings' prefix that aren't settings: for the option --debug, for the location of the
fleet file, and for lakegc's own tests."""
KNOWN_PREFIXES = (SERVER_VARIABLES, "LAKEGC_TEST_", "LAKEGC_MODEL_", "LAKEGC_ALL_", "LAKEGC_LONG_", "LAKEGC_RANDOM_")
"""Prefixes of environment variables that are checked elsewhere (those of several servers), or that are for lakegc's own
tests."""
RENAMED: Mapping[str, str] = {
    "asking_requests": "probe_requests",
    "clean_every": "full_every",
    "max_questions": "max_probes",
    "proof_age": "verification_age",
}
"""The new name of each renamed setting. The former name is refused, because ignoring it might remove a limit."""
DEFAULT_MARK_CRON = "0 3 * * *"
PROCESS_SETTINGS = frozenset(
    {
        *(SERVERS, "endpoint_url", "access_key_id", "ca_bundle", "verify_tls", "probe_requests", "retry_total_s"),
        *("connect_timeout_s", "read_timeout_s", "slow_read_timeout_s", "task_timeout_s"),
        *("spark_master", "parallelism", "shuffle_partitions", "spark_conf"),
        *("repositories_include", "repositories_exclude"),
        "log_format",
    }
)
"""Settings of the lakeFS server, of Spark, of logs and of the selection of repositories, which can't differ by
repository."""
ADDITIVE_SETTINGS = frozenset({"holds"})
"""Lists to which each source and section adds. A section can't remove what others contain."""

_SPARK_SECRETS = re.compile(
    r"secret|password|passphrase|pwd|token|credential|signature|\bsig=|sas|(access|account|api|private|shared)[._-]?key"
    r"|encryption[._-]?key(?!size|gen)|://[^/@\s\"]*:[^/@\s\"]*@",
    re.IGNORECASE,
)


class Settings(BaseSettings):
    """The settings of one run. Secrets are `SecretStr`, and no repr or message shows them.

    Create it with `load`. `origins` has the source of each given setting, in readable form.

    `docs/settings.md` is generated from the fields: a comment above them is the heading of their section, the text
    below each is its meaning, and "Default: …" at its end describes a default that isn't in the code.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True
    )

    # Several servers

    servers: dict[str, ServerSettings] = Field(default_factory=dict)
    """The sections `[servers.NAME]` of the fleet file; names consist of lower-case letters, digits and -."""

    # The lakeFS server

    endpoint_url: Url | None = None
    """The server's address, with or without `/api/v1`. Default: lakectl's."""
    access_key_id: Name | None = None
    """The id of an access key for the server. Default: lakectl's."""
    secret_access_key: Secret | None = None
    """The secret of the access key for the server. Default: lakectl's."""
    ca_bundle: Name | None = None
    """A file with the certificates that are trusted. Default: the system's."""
    verify_tls: bool = True
    """Whether the server's certificate is verified."""
    connect_timeout_s: Seconds = 10
    """Timeout for a connection to the server."""
    read_timeout_s: Seconds = 60
    """Timeout for a response from the server."""
    slow_read_timeout_s: Seconds | None = None
    """Timeout for a response that requires a scan of the repository. Default: 900, or `read_timeout_s` if that is
    longer."""
    task_timeout_s: Seconds = 21_600
    """Timeout for a scan of the repository that the server runs in the background."""

    # The store

    s3_endpoint_url: Url | None = None
    """The address of an S3-compatible store. Endpoints in `AWS_ENDPOINT_URL` are refused. Default: AWS."""
    s3_region: Name | None = None
    """The store's region. Default: AWS's own chain."""
    s3_path_style: bool | None = None
    """Whether the bucket is in a URL's path instead of its host. Default: true with `s3_endpoint_url`."""
    s3_access_key_id: Name | None = None
    """The id of an access key for the store. Default: AWS's own chain."""
    s3_secret_access_key: Secret | None = None
    """The secret of the access key for the store. Default: AWS's own chain."""
    s3_session_token: Secret | None = None
    """The token of temporary credentials. Default: AWS's own chain."""
    s3_profile: Name | None = None
    """The profile in AWS's configuration. Default: AWS's own chain."""
    s3_ca_bundle: Name | None = None
    """A file with the certificates that are trusted. Default: the system's."""
    gcs_credentials_file: Name | None = None
    """A file with credentials for Cloud Storage. It must exist on every machine that runs executors. Default: Google's
    own chain."""
    gcs_endpoint_url: Url | None = None
    """A different endpoint from Google's, such as an emulator's. Default: Google's."""
    gcs_anonymous: bool = False
    """Whether no credentials are sent, for an emulator."""
    gcs_ca_bundle: Name | None = None
    """A file with the certificates that are trusted. Default: the system's."""
    azure_account_key: Secret | None = None
    """A key of the storage account. Default: the machine's identity (`DefaultAzureCredential`)."""
    azure_sas_token: Secret | None = None
    """A SAS token for the container, instead of a key. Default: the machine's identity."""
    azure_account: Name | None = None
    """The only storage account that the key and the token are used for. Default: any."""
    azure_endpoint_url: Url | None = None
    """Another endpoint of the storage account. Default: the namespace's host."""
    azure_ca_bundle: Name | None = None
    """A file with the certificates that are trusted. Default: the system's."""
    local_path: Name | None = None
    """The local block adapter's folder on this machine."""
    store_connect_timeout_s: Seconds | None = None
    """Timeout for a connection to the store. Default: 10."""
    store_read_timeout_s: Seconds | None = None
    """Timeout for a response from the store. Default: 60."""

    # Marks

    min_age: Duration = timedelta(hours=24)
    """Objects younger than this by the store's clock are kept."""
    max_clock_skew: Duration = timedelta(minutes=5)
    """How far the clocks of store, server and machine may differ."""
    max_missing: Count = 0
    """How many live addresses may be missing from the store. List known losses in `--accept-missing FILE` instead."""
    max_probes: Count = 1_000_000
    """Maximum number of path probes, including other repositories' branches. If it is reached, remaining objects are
    kept."""
    full_every: Count = 10
    """Every Nth mark is full, and reports what the others missed; 1: every mark."""
    trusted_repositories: Patterns = ()
    """Patterns of other repositories that reference nothing in this one and aren't read. For all others, each mark and
    re-verification reads the ranges of their heads."""
    require_other_repositories: bool = False
    """Whether a mark stops if another repository can't be read, instead of letting the approval release it by name."""
    single_deployment: bool = False
    """Allows a store without conditional writes: declares that no other lakegc deployment uses it."""
    price_per_gb_month: Amount | None = None
    """Monthly price of 2^30 bytes in the store, in any currency. Reviews then show costs."""
    holds: tuple[dict[str, Any], ...] = ()
    """[Holds](how-it-decides.md#holds) in addition to those of the namespace: a list of tables, in JSON if given as an
    environment variable. The holds of all sources apply together."""

    # Brakes

    brake_share: Share = 0.3
    """*share*: the fraction of all objects, or of all bytes, that will be deleted."""
    brake_first_share: Share = 0.5
    """*share*: like `brake_share`, for a repository's first mark."""
    brake_gib: Amount = 102_400.0
    """*bytes*: GiB that will be deleted (102,400 are 100 TiB)."""
    brake_count: Count = 50_000_000
    """*count*: objects that will be deleted."""
    brake_jump: Amount = 3.0
    """*jump*: expired objects, as a multiple of the previous mark's."""
    brake_jump_least: Count = 1_000
    """*jump*: the least number of expired objects for which the brake trips."""
    brake_live: Share = 0.5
    """*live*: the least number of live addresses, as a fraction of the previous mark's."""
    brake_listing: Share = 0.5
    """*listing*: the least number of listed objects, as a fraction of those that the previous mark would leave."""
    brake_age: Duration = timedelta(days=7)
    """*age*: a mark's age when it is swept, and thus the longest validity of an approval."""

    # Sweeps and backups

    verification_age: Duration = timedelta(minutes=30)
    """Maximum age of the re-verification when a key is deleted."""
    head_check_interval_s: HeadCheck = 3
    """Seconds between two listings of branch heads while a sweep deletes, at most 60. Deletes stop when a listing is
    10 s overdue."""
    backup_to: Destination | None = None
    """Destination of backups. If it is set, only objects in a [backup](backup.md) there are swept."""
    sweep_quarantine: bool = False
    """Whether all sweeps [quarantine](operations.md#quarantine) objects instead of deleting them, as with
    `--quarantine`."""

    # Approval by a policy

    auto_approve: bool = False
    """Whether the sensor `auto_approvals` approves marks of the repository."""
    auto_approve_max_share: Share = 0.01
    """The largest fraction of all objects, and of all bytes, that may be expired."""
    auto_approve_min_age: Duration = timedelta(days=30)
    """The age by the store's clock that every expired object must exceed."""
    auto_approve_wait: Wait = timedelta(hours=24)
    """How long an approval is announced before it is given, at most 365d; 0: nothing is approved."""

    # Schedules

    repositories_include: Patterns = ("*",)
    """Shell patterns of the repositories that the schedule and the sensor mark, such as `lake-*,archive`."""
    repositories_exclude: Patterns = ()
    """Shell patterns of the repositories that the schedule and the sensor don't mark."""
    mark_cron: Cron = DEFAULT_MARK_CRON
    """When the schedule marks a repository: a cron expression with five fields, in UTC."""
    mark_scope: Scope = Scope.UNIFIED
    """The scope of marks, unless an option overrides it: `unified`, `committed` or `uncommitted`."""
    approval_reminder: Duration = timedelta(days=2)
    """How long a mark waits for approval before the sensor `waiting_marks` reports it."""
    mark_max_age: Duration | None = None
    """Age of a repository's newest mark beyond which the check `marks_are_recent` warns. Default: when two times of
    `mark_cron` have passed without a mark."""
    sweep_max_age: Duration = timedelta(days=30)
    """Age of a repository's last sweep beyond which the check `sweeps_are_recent` warns, if objects are expired."""
    retire_after: Days | None = None
    """Time since a mark, its approval, sweep or purge ended, after which the schedule
    [retires](operations.md#retirement) it, at least 1d. Default: never."""
    purge_after: Days | None = None
    """Time since a sweep ended after which the schedule purges its [quarantine](operations.md#quarantine), at least
    1d. Default: never."""
    owners: Patterns = ()
    """Who is responsible for a repository, for people who see it in a list or [are notified](#notifications). The
    owners of all repositories own the assets in Dagster."""

    # Notifications

    webhook_url: Webhook | None = None
    """The address that events are posted to. It is a secret, because anyone who knows it can post there."""
    webhook_secret: Secret | None = None
    """The shared secret that signs the posted events."""
    webhook_format: Literal["json", "slack"] = "json"
    """The form of the posted events: `json` or `slack`."""
    notify: Events = ("*",)
    """Shell patterns of the events that are posted, such as `run_failed,brakes_*`. An empty list in the fleet file:
    none."""
    metrics_file: MetricsFile | None = None
    """The file of metrics for Prometheus' node exporter: an absolute path that ends with `.prom`."""
    metrics_push_url: Url | None = None
    """The address of a Prometheus push gateway."""
    log_format: Literal["text", "json"] = "text"
    """The form of lines on stderr: `text` or `json`."""

    # Signing

    signing_key: Secret | None = None
    """The key that [signs lakegc's records](operations.md#signed-records): 64 or more hexadecimal digits."""
    retired_signing_keys: SecretTexts = ()
    """Earlier signing keys, used only to verify records, separated by commas."""

    # Spark

    spark_master: Name = "local[*]"
    """Any Spark master; see [clusters](clusters.md)."""
    spark_conf: dict[str, str] = Field(default_factory=dict, repr=False)
    """Any Spark settings, as a JSON object of strings. They aren't shown, because they may contain credentials."""

    # Requests and tasks

    parallelism: Tasks | None = None
    """Expected number of concurrent Spark tasks. Listings and tables are split into a few times as many. Set it with
    dynamic allocation, because Spark counts only the initial executors. Default: the cores that Spark sees."""
    shuffle_partitions: Tasks | None = None
    """Number of partitions for comparing and counting addresses. Default: twice `parallelism`; otherwise twice the
    cores on one machine, and at least 200 on a cluster, where Spark coalesces small partitions."""
    listing_requests: Requests = 8
    """Listing pages that one task requests concurrently."""
    reading_requests: Requests = 16
    """Tables that one task prefetches while it decodes; fewer if they are large (up to 32 MiB, but at least 4)."""
    probe_requests: Requests = 8
    """Path probes that one task sends to lakeFS concurrently."""
    retry_total_s: RetrySeconds = 60
    """How long a request to lakeFS or the store is retried, in seconds after its first transient failure (busy,
    unreachable), with exponential backoff and jitter; 0: no retries."""

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only the constructor's arguments, because `load` gets the environment as an argument."""
        return (init_settings,)

    @classmethod
    def load(
        cls,
        environ: Mapping[str, str],
        home: Path,
        *,
        repository: str | None = None,
        directory: Path | None = None,
        **options: Any,
    ) -> Settings:
        """The settings from options (None: not given), environment variables, the fleet file, and lakectl's in `home`.

        With `repository`, the fleet file's sections for it apply. The fleet file is looked for in `directory`, by
        default the working directory.

        Raises `WrongUsage`, naming the option, variable or file and the expected form, for an invalid value. Also
        raises it for a variable that begins with LAKEGC_ but isn't a setting: misspelling one could disable a safeguard
        that the user relies on.
        """
        if unknown := sorted(set(options) - set(cls.model_fields)):
            if new := RENAMED.get(unknown[0]):
                raise WrongUsage(f"the setting '{unknown[0]}' was renamed to '{new}'")
            suggestion = did_you_mean(unknown[0], cls.model_fields)
            raise WrongUsage(f"there is no setting '{unknown[0]}'. {suggestion}".rstrip())
        refuse_unknown_variables(environ)
        if not environ.get(KEY_VARIABLE, "-").strip():
            raise WrongUsage(f"variable {KEY_VARIABLE} is empty: set a key, or unset it to disable signing")
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        fleet = cls.fleet_file(environ, directory)
        given: tuple[Source, ...] = (
            {name: (value, f"option {name}") for name, value in options.items() if value is not None},
            _variables(cls, environ),
            {} if fleet is None else fleet.values(repository),
        )
        servers = servers_from({} if fleet is None else fleet.servers, environ)
        if fleet is not None and servers:
            single = {name: origin for source in reversed(given) for name, (_, origin) in source.items()}
            refuse_single_server(single, list(servers), str(fleet.path))
            sources = (*given, {SERVERS: (servers, f"{SERVERS} in {fleet.path}")})
        else:
            sources = (*given, lakectl_variables(environ), lakectl_file(environ, home))
        for source in sources:
            for name, (value, origin) in source.items():
                if name in ADDITIVE_SETTINGS and name in values:
                    values[name], origins[name] = (*values[name], *value), f"{origins[name]} and {origin}"
                elif name not in values:
                    values[name], origins[name] = value, origin
        try:
            settings = cls(**values)
            settings.signing_keys()
        except ValidationError as error:
            raise validation_error(cls, error, values, origins) from None
        except ValueError as error:
            raise WrongUsage(f"invalid signing keys: {error}") from None
        settings._origins = origins
        return settings

    @classmethod
    def fleet_file(cls, environ: Mapping[str, str], directory: Path | None = None) -> FleetFile | None:
        """The fleet file that LAKEGC_CONFIG names, or else `lakegc.toml` in the directory (by default the working
        directory); None if there is none. Raises `WrongUsage` if any section of it is invalid."""
        path = find_fleet_file(environ, Path() if directory is None else directory)
        return None if path is None else _validated_fleet_file(cls, path, read_fleet_file(path))

    @classmethod
    def is_secret(cls, name: str, value: str) -> bool:
        """Whether a setting's value, as text, must not be shown: a secret, or a Spark configuration with one in it."""
        return "SecretStr" in str(cls.model_fields[name].annotation) or (
            name == "spark_conf" and _SPARK_SECRETS.search(value) is not None
        )

    @property
    def origins(self) -> Mapping[str, str]:
        """The source of each given setting, e.g. `variable LAKEGC_MIN_AGE`; defaults are not included."""
        return MappingProxyType(self._origins)

    def spark_settings(self) -> dict[str, str]:
        """The settings for starting Spark, by Spark's own names; those in `spark_conf` take precedence."""
        partitions = self.shuffle_partitions or (2 * self.parallelism if self.parallelism else None)
        counts = {"spark.default.parallelism": self.parallelism, "spark.sql.shuffle.partitions": partitions}
        chosen = {name: str(count) for name, count in counts.items() if count is not None}
        return {"spark.master": self.spark_master, **chosen, **self.spark_conf}

    def retry_policy(self) -> RetryPolicy:
        """The retry policy for requests to the server and to the store."""
        from spark_resources.stores.retry import RetryPolicy

        return RetryPolicy(total_s=self.retry_total_s)

    def store_settings(self) -> StoreSettings:
        """The settings for opening an object store; those not given are left to the store's defaults."""
        from spark_resources.stores.settings import StoreSettings

        shared = (name for name in StoreSettings.model_fields if name in Settings.model_fields)
        fields = {name: getattr(self, name) for name in shared} | {
            "connect_timeout": self.store_connect_timeout_s,
            "read_timeout": self.store_read_timeout_s,
            "retry": self.retry_policy(),
        }
        return StoreSettings.model_validate({name: value for name, value in fields.items() if value is not None})

    def signing_keys(self) -> SigningKeys | None:
        """The keys that records are signed and verified with; None if none is set."""
        current = None if self.signing_key is None else self.signing_key.get_secret_value()
        return parse_keys(current, [key.get_secret_value() for key in self.retired_signing_keys])


def has_json_logs(environ: Mapping[str, str], home: Path) -> bool:
    """Whether lines on stderr are JSON (the setting `log_format`). If any setting is invalid, the variable alone
    decides, because the error about that setting has to be printed, too."""
    try:
        return Settings.load(environ, home).log_format == "json"
    except LakegcError:
        return environ.get(f"{PREFIX}LOG_FORMAT", "").strip() == "json"


# with 50 sections, validating all of them takes 20 ms, and a tick of a schedule loads settings for each repository
@lru_cache(maxsize=4)
def _validated_fleet_file(cls: type[Settings], path: Path, text: str) -> FleetFile:
    """The fleet file with this text, with valid values in every section. Raises `WrongUsage` for any other."""
    secret = [name for name in cls.model_fields if cls.is_secret(name, "")]
    known = KnownSettings(cls.model_fields, secret, PROCESS_SETTINGS, RENAMED, ADDITIVE_SETTINGS)
    fleet = parse_fleet_file(path, text, known)
    for values in (fleet.values(None), *map(fleet.section, fleet.sections)):
        given = {name: value for name, (value, _) in values.items()}
        origins = {name: origin for name, (_, origin) in values.items()}
        refuse_booleans_as_numbers(cls, given, origins)
        try:
            cls(**given)
        except ValidationError as error:
            raise validation_error(cls, error, given, origins) from None
        if cls.is_secret("spark_conf", str(given.get("spark_conf", ""))):
            raise WrongUsage(f"{origins['spark_conf']} contains a secret: set LAKEGC_SPARK_CONF instead")
    return fleet


def _variables(cls: type[Settings], environ: Mapping[str, str]) -> Source:
    # an empty variable counts as not given
    names = (name for name in cls.model_fields if name != SERVERS)  # each setting of a server has a variable of its own
    texts = {name: text for name in names if (text := environ.get(PREFIX + name.upper(), "")).strip()}
    source = EnvSettingsSource(cls, case_sensitive=True)
    source.env_vars = {PREFIX + name: text for name, text in texts.items()}  # with the fields' lower-case names
    values: Source = {}
    # calling the source would inspect all other fields, too, which takes three times as long
    for name, text in texts.items():
        field, variable = cls.model_fields[name], PREFIX + name.upper()
        try:
            if name in ADDITIVE_SETTINGS:
                value = _json_list(text)
            else:
                given, _, is_complex = source.get_field_value(field, name)
                value = source.prepare_field_value(name, field, given, is_complex)
            values[name] = value, f"variable {variable}"
        except (SettingsError, ValueError):
            raise WrongUsage(f"variable {variable} is invalid: expected {expected_form(cls, name)}") from None
    return values


def _json_list(text: str) -> list[Any]:
    """A list in JSON. Raises `ValueError` for any other value, and for an object with the same name twice."""

    def with_distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a name appears twice")
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=with_distinct_names)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """The environment variables that begin with LAKEGC_ but aren't settings, sorted. Empty ones count as not given."""
    known = NOT_SETTINGS.union(PREFIX + name.upper() for name in Settings.model_fields) - {PREFIX + SERVERS.upper()}
    return sorted(
        name
        for name, value in environ.items()
        if name.startswith(PREFIX) and value.strip() and name not in known and not name.startswith(KNOWN_PREFIXES)
    )


def refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    """Raise `WrongUsage` if an environment variable begins with LAKEGC_ but isn't a setting."""
    known = [PREFIX + name.upper() for name in Settings.model_fields]
    unknown = unknown_variables(environ)
    renamed = {PREFIX + old.upper(): PREFIX + new.upper() for old, new in RENAMED.items()}
    if old := [name for name in unknown if name in renamed]:
        explanation = ", and ".join(f"{name} was renamed to {renamed[name]}" for name in old)
        raise WrongUsage(f"variable {explanation}: set the new name and unset the old one.")
    if unknown:
        explanation = " ".join(
            f"{name} is not a lakegc setting. {did_you_mean(name, known)}".strip() for name in unknown
        )
        raise WrongUsage(f"variable {explanation} Correct its spelling, or unset it.")
