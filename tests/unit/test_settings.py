"""Where settings come from, what is refused, and that secrets stay secret."""

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
from spark_resources.settings import Settings, parse_duration

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
    """A home without any configuration."""
    return tmp_path


def test_a_default_changed_unnoticed(home: Path) -> None:
    """Without any source the documented defaults hold, on the careful side."""
    settings = Settings.load({}, home)

    assert (settings.min_age, settings.max_clock_skew) == (timedelta(hours=24), timedelta(minutes=5))
    assert (settings.max_missing, settings.max_questions, settings.single_deployment) == (0, 1_000_000, False)
    assert (settings.endpoint_url, settings.verify_tls, settings.spark_master) == (None, True, "local[*]")
    assert dict(settings.origins) == {}


def test_the_environment_is_read_behind_one_s_back(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the mapping and the home that `load` is given are read."""
    monkeypatch.setenv("LAKEGC_MIN_AGE", "1h")
    monkeypatch.setenv("LAKECTL_SERVER_ENDPOINT_URL", "http://elsewhere")
    monkeypatch.setenv("HOME", str(home))
    (home / ".lakectl.yaml").write_text(LAKECTL_FILE)
    empty = home / "empty"
    empty.mkdir()

    for settings in (Settings(), Settings.load({}, empty)):
        assert (settings.min_age, settings.endpoint_url) == (timedelta(hours=24), None)


def test_a_weaker_source_wins(home: Path) -> None:
    """Options win over LAKEGC_ variables, those over lakectl's, those over its file; each tells its origin."""
    (home / ".lakectl.yaml").write_text(LAKECTL_FILE)
    key = "secret_access_key"
    environ: dict[str, str] = {}
    expected = [("http://file:8000/api/v1", f"server.endpoint_url in {home / '.lakectl.yaml'}")]
    found = [Settings.load(environ, home)]
    environ["LAKECTL_SERVER_ENDPOINT_URL"] = "http://lakectl"
    expected.append(("http://lakectl", "variable LAKECTL_SERVER_ENDPOINT_URL"))
    found.append(Settings.load(environ, home))
    environ["LAKEGC_ENDPOINT_URL"] = "http://lakegc"
    expected.append(("http://lakegc", "variable LAKEGC_ENDPOINT_URL"))
    found.append(Settings.load(environ, home))
    expected.append(("http://option", "option endpoint_url"))
    found.append(Settings.load(environ, home, endpoint_url="http://option"))

    assert [(each.endpoint_url, each.origins["endpoint_url"]) for each in found] == expected
    assert all(each.origins[key] == f"credentials.{key} in {home / '.lakectl.yaml'}" for each in found)


def test_lakectl_s_credentials_are_not_found(home: Path) -> None:
    """lakectl's variables and its file give endpoint, key and secret."""
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
        server = LakeFSSettings.of(Settings.load(environ, home))
        assert (server.endpoint_url, server.access_key_id, server.secret_access_key) == expected


def test_an_option_that_is_not_given_hides_a_variable(home: Path) -> None:
    """None means not given, and an empty variable means not set."""
    settings = Settings.load({"LAKEGC_RETRY_TOTAL_S": "7", "LAKEGC_MIN_AGE": " "}, home, retry_total_s=None)

    assert (settings.retry_total_s, settings.min_age) == (7, timedelta(hours=24))


def test_a_named_file_that_is_missing_is_ignored(home: Path) -> None:
    """lakectl's file may be missing, but not where a variable names it."""
    with pytest.raises(WrongUsage, match="LAKECTL_CONFIG_FILE"):
        Settings.load({"LAKECTL_CONFIG_FILE": str(home / "none.yaml")}, home)


@pytest.mark.parametrize(
    "content",
    [f"credentials:\n  secret_access_key: '{SECRET}\n", f"\t{SECRET}: [", "\x00" + SECRET],
)
def test_a_broken_file_shows_its_secrets(home: Path, content: str) -> None:
    """A file that isn't YAML is named, and nothing of it is shown."""
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
def test_a_file_without_a_server_breaks(home: Path, content: str) -> None:
    """What lakectl's file doesn't say, or leaves empty, is not set."""
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
def test_a_duration_is_misread(text: str, expected: timedelta) -> None:
    """A duration is a number with a unit, or several."""
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text", ["", "24", "h", "-1h", "1h-5m", "1 day", "1y", "24:00:00", "P1D", "inf", "9" * 30 + "d", "1h x"]
)
def test_a_duration_is_guessed(text: str) -> None:
    """Anything else is refused, above all a number without a unit."""
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("min_age", "24", "24h"),
        ("min_age", "-1h", "24h"),
        ("max_clock_skew", "soon", "5m"),
        ("max_missing", "-1", "whole number"),
        ("max_questions", "many", "whole number"),
        ("retry_total_s", "-1", "0 to 86400"),
        ("listing_requests", "0", "1 to 256"),
        ("reading_requests", "1000", "1 to 256"),
        ("asking_requests", "few", "1 to 256"),
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
def test_a_bad_value_is_used(home: Path, name: str, value: str, expected: str) -> None:
    """A bad value is refused with the variable's name, the value and the form that was expected."""
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
        ("SPARK_CONF", f'{{"spark.hadoop.fs.s3a.secret.key": "{SECRET}"'),
        ("SPARK_CONF", f'["{SECRET}"]'),
        ("SPARK_CONF", f'{{"a": ["{SECRET}"]}}'),
    ],
)
def test_a_bad_value_shows_its_secret(home: Path, name: str, value: str) -> None:
    """A value that may hold a secret is refused by its name and the form that was expected, alone."""
    with pytest.raises(WrongUsage, match=f"variable LAKEGC_{name} is not usable: expected") as raised:
        Settings.load({f"LAKEGC_{name}": value}, home)
    assert SECRET not in str(raised.value)
    assert raised.value.__suppress_context__


def test_a_bad_line_of_the_file_is_called_a_variable(home: Path) -> None:
    """A bad value of lakectl's file is named by its place in the file."""
    (home / ".lakectl.yaml").write_text("credentials:\n  access_key_id: [1]\n")

    with pytest.raises(WrongUsage, match=r"credentials\.access_key_id in .*\.lakectl\.yaml"):
        Settings.load({}, home)


def test_an_unknown_option_is_ignored(home: Path) -> None:
    """An option that is no setting is refused."""
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
def test_a_misspelt_variable_is_refused_with_the_name_that_is_meant(home: Path, name: str, meant: str) -> None:
    """Taken for nothing, it would leave out the backup or the age that somebody relies on."""
    with pytest.raises(WrongUsage, match=f"variable {name} names no setting of lakegc. Did you mean {meant}\\?"):
        Settings.load({name: "72h", "LAKEGC_MIN_AGE": "48h", "PATH": "/bin"}, home)


def test_a_variable_that_is_like_no_setting_is_refused(home: Path) -> None:
    """Of several, each is named."""
    with pytest.raises(WrongUsage, match=r"LAKEGC_XYZZY names no .* LAKEGC_ZYX names no setting of lakegc\. Correct"):
        Settings.load({"LAKEGC_XYZZY": "1", "LAKEGC_ZYX": "1"}, home)


def test_variables_that_are_empty_or_no_settings_are_not_refused(home: Path) -> None:
    """An empty variable counts as not given, and lakegc's own tests read more than settings."""
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


def test_a_secret_shows(home: Path) -> None:
    """No repr or text of the settings shows a secret, nor do the parts made of them."""
    settings = Settings.load({}, home, endpoint_url="http://h", access_key_id="AKIA", **SECRETS)

    shown = [
        repr(settings),
        str(settings),
        repr(settings.store()),
        repr(LakeFSSettings.of(settings)),
        str(settings.origins),
    ]

    assert not any(SECRET in each for each in shown)


def test_a_secret_of_another_type_shows() -> None:
    """Even an error of the constructor itself doesn't show what it was given."""
    with pytest.raises(ValidationError) as raised:
        Settings(secret_access_key=[SECRET], spark_conf={"a": [SECRET]})  # type: ignore[arg-type, dict-item]
    assert SECRET not in str(raised.value)


def test_settings_change_under_way(home: Path) -> None:
    """Settings are frozen, and arrive whole on another machine."""
    settings = Settings.load({"LAKEGC_MIN_AGE": "48h"}, home, **SECRETS)

    with pytest.raises(ValidationError):
        settings.min_age = timedelta(0)
    arrived = cloudpickle.loads(cloudpickle.dumps(settings))
    assert arrived == settings
    assert arrived.origins == settings.origins


def test_a_store_is_opened_with_the_server_s_settings(home: Path) -> None:
    """The store's part holds what was given for the store, and the store's own defaults otherwise."""
    environ = {
        "LAKEGC_S3_ENDPOINT_URL": "http://store:9000",
        "LAKEGC_S3_SECRET_ACCESS_KEY": "s",
        "LAKEGC_S3_PATH_STYLE": "false",
        "LAKEGC_RETRY_TOTAL_S": "9",
        "LAKEGC_READ_TIMEOUT_S": "3",
    }

    store = Settings.load(environ, home, local_path="/data").store()

    assert (store.s3_endpoint_url, store.s3_path_style, store.local_path) == ("http://store:9000", False, "/data")
    assert store.s3_secret_access_key is not None
    assert store.s3_secret_access_key.get_secret_value() == "s"
    assert (store.retry.total_s, store.read_timeout) == (9, type(store)().read_timeout)
    assert Settings.load({}, home).store() == type(store)()


def test_the_server_is_asked_with_the_store_s_settings(home: Path) -> None:
    """The server's part holds what was given for the server."""
    given: dict[str, Any] = {"ca_bundle": "/ca.pem", "verify_tls": False, "connect_timeout_s": 1}

    server = LakeFSSettings.of(
        Settings.load(
            {}, home, endpoint_url="http://h", access_key_id="a", secret_access_key="s", retry_total_s=9, **given
        )
    )

    assert {name: getattr(server, name) for name in given} == given
    assert server.retry.total_s == 9


def test_a_slow_answer_is_waited_for_less_than_any_other(home: Path) -> None:
    """A call that walks a whole repository has 15 minutes, or longer where any call has, unless its own time is set."""
    login: dict[str, Any] = {"endpoint_url": "http://h", "access_key_id": "a", "secret_access_key": "s"}
    times = [
        LakeFSSettings.of(Settings.load({}, home, **login, **given)).slow_read_timeout_s
        for given in ({}, {"read_timeout_s": 1000}, {"read_timeout_s": 1000, "slow_read_timeout_s": 30})
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
def test_counts_of_tasks_are_lost(
    home: Path, environ: dict[str, str], tasks: str | None, partitions: str | None
) -> None:
    """What is chosen becomes Spark's own setting, and what Spark's configuration says of the same counts more."""
    spark = Settings.load(environ | {"LAKEGC_SPARK_MASTER": "yarn"}, home).spark()

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
def test_a_missing_server_is_a_riddle(home: Path, given: dict[str, str], missing: str) -> None:
    """What is missing to reach the server is named, with the variable that gives it."""
    with pytest.raises(WrongUsage, match=missing):
        LakeFSSettings.of(Settings.load({}, home, **given))
