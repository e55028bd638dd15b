"""Where settings come from, which ones are refused, and that secrets are never shown."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pyspark import cloudpickle

from spark_resources.errors import WrongUsage
from spark_resources.lakefs import LakeFSSettings
from spark_resources.settings import RENAMED, Settings, parse_duration

SECRET = "a-very-secret-key"
LAKECTL_FILE = f"""
credentials:
  access_key_id: AKIAFILE
  secret_access_key: {SECRET}
server:
  endpoint_url: http://file:8000/api/v1
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder without configuration."""
    return tmp_path


def test_the_documented_defaults_apply_without_any_configuration(home: Path) -> None:
    """The defaults are the cautious values."""
    settings = Settings.load({}, home)

    assert (settings.min_age, settings.max_clock_skew) == (timedelta(hours=24), timedelta(minutes=5))
    assert (settings.max_missing, settings.max_probes, settings.single_deployment) == (0, 1_000_000, False)
    assert (settings.endpoint_url, settings.verify_tls, settings.spark_master) == (None, True, "local[*]")
    assert dict(settings.origins) == {}


def test_only_the_given_environment_and_home_are_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's own environment and home are not read."""
    monkeypatch.setenv("LAKEGC_MIN_AGE", "1h")
    monkeypatch.setenv("LAKECTL_SERVER_ENDPOINT_URL", "http://elsewhere")
    monkeypatch.setenv("HOME", str(home))
    (home / ".lakectl.yaml").write_text(LAKECTL_FILE)
    empty = home / "empty"
    empty.mkdir()

    for settings in (Settings(), Settings.load({}, empty)):
        assert (settings.min_age, settings.endpoint_url) == (timedelta(hours=24), None)


def test_options_override_environment_variables_and_these_override_lakectls_file(home: Path) -> None:
    """LAKEGC_ variables take precedence over lakectl's. The origin of each setting is recorded."""
    (home / ".lakectl.yaml").write_text(LAKECTL_FILE)
    key = "secret_access_key"
    environ: dict[str, str] = {}
    expected = [("http://file:8000/api/v1", f"server.endpoint_url in {home / '.lakectl.yaml'}")]
    loaded = [Settings.load(environ, home)]
    environ["LAKECTL_SERVER_ENDPOINT_URL"] = "http://lakectl"
    expected.append(("http://lakectl", "variable LAKECTL_SERVER_ENDPOINT_URL"))
    loaded.append(Settings.load(environ, home))
    environ["LAKEGC_ENDPOINT_URL"] = "http://lakegc"
    expected.append(("http://lakegc", "variable LAKEGC_ENDPOINT_URL"))
    loaded.append(Settings.load(environ, home))
    expected.append(("http://option", "option endpoint_url"))
    loaded.append(Settings.load(environ, home, endpoint_url="http://option"))

    assert [(settings.endpoint_url, settings.origins["endpoint_url"]) for settings in loaded] == expected
    assert all(settings.origins[key] == f"credentials.{key} in {home / '.lakectl.yaml'}" for settings in loaded)


def test_lakectls_variables_and_file_give_endpoint_key_and_secret(home: Path) -> None:
    variables = {
        "LAKECTL_SERVER_ENDPOINT_URL": "http://h:1",
        "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": "AKIAVAR",
        "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": "s",
    }
    elsewhere = home / "lakectl.yaml"
    elsewhere.write_text(LAKECTL_FILE)

    for environ, expected in (
        (variables, ("http://h:1", "AKIAVAR", "s")),
        ({"LAKECTL_CONFIG_FILE": str(elsewhere)}, ("http://file:8000/api/v1", "AKIAFILE", SECRET)),
    ):
        (server,) = LakeFSSettings.of(Settings.load(environ, home))
        assert (server.endpoint_url, server.access_key_id, server.secret_access_key) == expected


def test_without_an_option_the_environment_variable_applies(home: Path) -> None:
    """An option that is None counts as not given, and an empty variable as not set."""
    settings = Settings.load({"LAKEGC_RETRY_TOTAL_S": "7", "LAKEGC_MIN_AGE": " "}, home, retry_total_s=None)

    assert (settings.retry_total_s, settings.min_age) == (7, timedelta(hours=24))


def test_a_missing_lakectl_file_is_refused_if_an_environment_variable_names_it(home: Path) -> None:
    """If no variable names the file, it may be missing."""
    with pytest.raises(WrongUsage, match="LAKECTL_CONFIG_FILE"):
        Settings.load({"LAKECTL_CONFIG_FILE": str(home / "none.yaml")}, home)


@pytest.mark.parametrize(
    "content",
    [f"credentials:\n  secret_access_key: '{SECRET}\n", f"\t{SECRET}: [", "\x00" + SECRET],
)
def test_a_broken_lakectl_file_is_refused_without_showing_its_content(home: Path, content: str) -> None:
    """The message shows only the name of the file."""
    (home / ".lakectl.yaml").write_text(content)

    with pytest.raises(WrongUsage, match=r"\.lakectl\.yaml") as raised:
        Settings.load({}, home)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "- a\n- b\n",
        "server: http://h\n",
        "server:\n  endpoint_url:\n",
        "server: {endpoint_url: ''}\n",
        "metastore: {}\n",
    ],
)
def test_a_lakectl_file_without_a_server_sets_nothing(home: Path, content: str) -> None:
    """Empty fields of the file set nothing either."""
    (home / ".lakectl.yaml").write_text(content)

    settings = Settings.load({}, home)

    assert settings.endpoint_url is None
    assert dict(settings.origins) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24h", timedelta(hours=24)),
        ("90m", timedelta(minutes=90)),
        ("1d12h", timedelta(hours=36)),
        ("1.5h", timedelta(minutes=90)),
        (" 2W ", timedelta(weeks=2)),
        ("30s", timedelta(seconds=30)),
        ("0", timedelta(0)),
    ],
)
def test_a_duration_is_one_or_more_numbers_with_units(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text", ["", "24", "h", "-1h", "1h-5m", "1 day", "1y", "24:00:00", "P1D", "inf", "9" * 30 + "d", "1h x"]
)
def test_other_forms_of_a_duration_are_refused(text: str) -> None:
    """The most important of these forms is a number without a unit."""
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("min_age", "24", "24h"),
        ("min_age", "-1h", "24h"),
        ("max_clock_skew", "soon", "5m"),
        ("max_missing", "-1", "whole number"),
        ("max_probes", "many", "whole number"),
        ("retry_total_s", "-1", "0 to 86400"),
        ("listing_requests", "0", "1 to 256"),
        ("reading_requests", "1000", "1 to 256"),
        ("probe_requests", "few", "1 to 256"),
        ("parallelism", "0", "1 to 100000"),
        ("shuffle_partitions", "1.5", "1 to 100000"),
        ("task_timeout_s", "-1", "seconds"),
        ("read_timeout_s", "0", "seconds"),
        ("read_timeout_s", "nan", "seconds"),
        ("store_read_timeout_s", "inf", "seconds"),
        ("verify_tls", "perhaps", "true or false"),
        ("single_deployment", "2", "true or false"),
        ("s3_path_style", "auto", "true or false"),
    ],
)
def test_an_invalid_value_is_refused_with_its_environment_variable_and_the_expected_form(
    home: Path, name: str, value: str, expected: str
) -> None:
    """The message shows the value."""
    variable = f"LAKEGC_{name.upper()}"

    with pytest.raises(WrongUsage) as raised:
        Settings.load({variable: value}, home)

    assert f"variable {variable} is '{value}'" in str(raised.value)
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENDPOINT_URL", f"http://me:{SECRET}@h"),
        ("ENDPOINT_URL", f"h:8000?{SECRET}"),
        ("S3_ENDPOINT_URL", f"https://me:{SECRET}@h"),
        ("AZURE_ENDPOINT_URL", f"https://me:{SECRET}@h"),
        ("GCS_ENDPOINT_URL", f"https://me:{SECRET}@h"),
        ("SPARK_CONF", f'{{"spark.hadoop.fs.s3a.secret.key": "{SECRET}"'),
        ("SPARK_CONF", f'["{SECRET}"]'),
        ("SPARK_CONF", f'{{"a": ["{SECRET}"]}}'),
    ],
)
def test_an_invalid_value_that_may_contain_a_secret_is_not_shown(home: Path, name: str, value: str) -> None:
    """The message shows only the setting's name and the expected form."""
    with pytest.raises(WrongUsage, match=f"variable LAKEGC_{name} is invalid: expected") as raised:
        Settings.load({f"LAKEGC_{name}": value}, home)
    assert SECRET not in str(raised.value)
    assert raised.value.__suppress_context__


def test_the_error_about_an_invalid_value_in_the_lakectl_file_names_its_field(home: Path) -> None:
    (home / ".lakectl.yaml").write_text("credentials:\n  access_key_id: [1]\n")

    with pytest.raises(WrongUsage, match=r"credentials\.access_key_id in .*\.lakectl\.yaml"):
        Settings.load({}, home)


def test_an_unknown_option_is_refused(home: Path) -> None:
    """Otherwise, a misspelled option would have no effect."""
    with pytest.raises(WrongUsage, match="min_aeg"):
        Settings.load({}, home, min_aeg="1h")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LAKEGC_BAKCUP_TO", "LAKEGC_BACKUP_TO"),
        ("LAKEGC_BACKUP_T0", "LAKEGC_BACKUP_TO"),
        ("LAKEGC_min_age", "LAKEGC_MIN_AGE"),
    ],
)
def test_a_misspelled_environment_variable_is_refused_with_the_closest_name(home: Path, name: str, meant: str) -> None:
    """Otherwise, a backup or a minimum age that somebody relies on would not apply."""
    with pytest.raises(WrongUsage, match=f"variable {name} is not a lakegc setting. Did you mean {meant}\\?"):
        Settings.load({name: "72h", "LAKEGC_MIN_AGE": "48h", "PATH": "/bin"}, home)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_renamed_setting_is_refused_with_its_new_name(home: Path, old: str, new: str) -> None:
    """Otherwise, a bound that somebody relies on would silently return to its default. Setting both names is
    also refused."""
    before, now = f"LAKEGC_{old.upper()}", f"LAKEGC_{new.upper()}"

    assert new in Settings.model_fields
    assert old not in Settings.model_fields
    for environ in ({before: "1"}, {before: "1", now: "1"}):
        with pytest.raises(WrongUsage, match=f"variable {before} was renamed to {now}: set the new name"):
            Settings.load(environ, home)
    with pytest.raises(WrongUsage, match=f"the setting '{old}' was renamed to '{new}'"):
        Settings.load({}, home, **{old: "1"})


def test_one_error_names_all_renamed_environment_variables(home: Path) -> None:
    """An operator who upgrades can correct all of them at once."""
    with pytest.raises(WrongUsage) as raised:
        Settings.load({f"LAKEGC_{old.upper()}": "1" for old in RENAMED}, home)

    assert all(f"LAKEGC_{new.upper()}" in str(raised.value) for new in RENAMED.values())


def test_an_unknown_environment_variable_is_refused(home: Path) -> None:
    """If there are several, the error names all of them."""
    with pytest.raises(WrongUsage, match=r"LAKEGC_XYZZY is not a .* LAKEGC_ZYX is not a lakegc setting\. Correct"):
        Settings.load({"LAKEGC_XYZZY": "1", "LAKEGC_ZYX": "1"}, home)


def test_empty_environment_variables_and_those_of_the_tests_are_not_refused(home: Path) -> None:
    """An empty variable counts as not given. lakegc's own tests read variables that aren't settings."""
    read = set()
    for file in Path(__file__).parents[1].rglob("*.py"):
        read |= set(re.findall(r"""environ(?:\.get\(|\[)"(LAKEGC_\w+)\"""", file.read_text(encoding="utf-8")))
    named = {f"LAKEGC_{name.upper()}" for name in Settings.model_fields}

    assert len(read - named) > 5
    Settings.load({**dict.fromkeys(read - named, "1"), "LAKEGC_XYZZY": " ", "LAKEGC_DEBUG": "1"}, home)


SECRETS: dict[str, Any] = {
    "secret_access_key": SECRET,
    "s3_secret_access_key": SECRET,
    "s3_session_token": SECRET,
    "azure_account_key": SECRET,
    "azure_sas_token": SECRET,
    "spark_conf": {"spark.hadoop.fs.s3a.secret.key": SECRET},
}


def test_no_repr_or_text_of_the_settings_shows_a_secret(home: Path) -> None:
    """The settings passed to the store and to the server don't show one either."""
    settings = Settings.load({}, home, endpoint_url="http://h", access_key_id="AKIA", **SECRETS)

    texts = [
        repr(settings),
        str(settings),
        repr(settings.store_settings()),
        repr(LakeFSSettings.of(settings)),
        str(settings.origins),
    ]

    assert not any(SECRET in text for text in texts)


def test_an_error_raised_by_the_constructor_of_settings_does_not_show_the_secret() -> None:
    """The secret passed to the constructor has the wrong type."""
    with pytest.raises(ValidationError) as raised:
        Settings(secret_access_key=[SECRET], spark_conf={"a": [SECRET]})  # type: ignore[arg-type, dict-item]
    assert SECRET not in str(raised.value)


def test_settings_are_frozen_and_can_be_pickled(home: Path) -> None:
    """On another machine they have the same values."""
    settings = Settings.load({"LAKEGC_MIN_AGE": "48h"}, home, **SECRETS)

    with pytest.raises(ValidationError):
        settings.min_age = timedelta(0)
    arrived = cloudpickle.loads(cloudpickle.dumps(settings))
    assert arrived == settings
    assert arrived.origins == settings.origins


def test_the_store_gets_its_own_settings_and_not_those_of_the_server(home: Path) -> None:
    """Settings of the server, except for those for retries, don't apply to the store. A store without settings of its
    own has the defaults."""
    environ = {
        "LAKEGC_S3_ENDPOINT_URL": "http://store:9000",
        "LAKEGC_S3_SECRET_ACCESS_KEY": "s",
        "LAKEGC_S3_PATH_STYLE": "false",
        "LAKEGC_RETRY_TOTAL_S": "9",
        "LAKEGC_READ_TIMEOUT_S": "3",
    }

    store = Settings.load(environ, home, local_path="/data").store_settings()

    assert (store.s3_endpoint_url, store.s3_path_style, store.local_path) == ("http://store:9000", False, "/data")
    assert store.s3_secret_access_key is not None
    assert store.s3_secret_access_key.get_secret_value() == "s"
    assert (store.retry.total_s, store.read_timeout) == (9, type(store)().read_timeout)
    assert Settings.load({}, home).store_settings() == type(store)()


def test_settings_for_tls_timeouts_and_retries_apply_to_the_server(home: Path) -> None:
    options: dict[str, Any] = {"ca_bundle": "/ca.pem", "verify_tls": False, "connect_timeout_s": 1}

    (server,) = LakeFSSettings.of(
        Settings.load(
            {}, home, endpoint_url="http://h", access_key_id="a", secret_access_key="s", retry_total_s=9, **options
        )
    )

    assert {name: getattr(server, name) for name in options} == options
    assert server.retry.total_s == 9


def test_slow_calls_have_a_longer_read_timeout(home: Path) -> None:
    """Such calls traverse a whole repository. Their timeout is 15 minutes, or the general one if that is longer, unless
    it is set itself."""
    login: dict[str, Any] = {"endpoint_url": "http://h", "access_key_id": "a", "secret_access_key": "s"}
    times = [
        LakeFSSettings.of(Settings.load({}, home, **login, **options))[0].slow_read_timeout_s
        for options in ({}, {"read_timeout_s": 1000}, {"read_timeout_s": 1000, "slow_read_timeout_s": 30})
    ]

    assert times == [900, 1000, 30]


@pytest.mark.parametrize(
    ("environ", "tasks", "partitions"),
    [
        ({}, None, None),
        ({"LAKEGC_PARALLELISM": "64"}, "64", "128"),
        ({"LAKEGC_SHUFFLE_PARTITIONS": "400"}, None, "400"),
        ({"LAKEGC_PARALLELISM": "64", "LAKEGC_SHUFFLE_PARTITIONS": "400"}, "64", "400"),
        ({"LAKEGC_PARALLELISM": "64", "LAKEGC_SPARK_CONF": '{"spark.sql.shuffle.partitions": "7"}'}, "64", "7"),
    ],
)
def test_configured_numbers_of_tasks_apply_unless_sparks_own_configuration_sets_them(
    home: Path, environ: dict[str, str], tasks: str | None, partitions: str | None
) -> None:
    spark = Settings.load(environ | {"LAKEGC_SPARK_MASTER": "yarn"}, home).spark_settings()

    assert (spark.get("spark.default.parallelism"), spark.get("spark.sql.shuffle.partitions")) == (tasks, partitions)
    assert spark["spark.master"] == "yarn"


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, "LAKEGC_ENDPOINT_URL"),
        ({"endpoint_url": "http://h"}, "LAKEGC_ACCESS_KEY_ID"),
        ({"endpoint_url": "http://h", "access_key_id": "a"}, "LAKEGC_SECRET_ACCESS_KEY"),
    ],
)
def test_the_error_about_missing_server_settings_names_their_environment_variables(
    home: Path, given: dict[str, str], missing: str
) -> None:
    """Endpoint and credentials are required."""
    with pytest.raises(WrongUsage, match=missing):
        LakeFSSettings.of(Settings.load({}, home, **given))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AUTO_APPROVE", "maybe"),
        ("AUTO_APPROVE_MAX_SHARE", "1 %"),
        ("AUTO_APPROVE_MAX_SHARE", "1.01"),
        ("AUTO_APPROVE_MIN_AGE", "30"),
        ("AUTO_APPROVE_WAIT", "366d"),
        ("SWEEP_QUARANTINE", "later"),
    ],
)
def test_invalid_settings_for_a_policy_are_refused(tmp_path: Path, name: str, value: str) -> None:
    """The message names the variable and the expected form; no default replaces it."""
    with pytest.raises(WrongUsage, match=f"LAKEGC_{name}.*expected"):
        Settings.load({f"LAKEGC_{name}": value}, tmp_path)
