"""The fleet file: which settings apply to which repository, and which files are refused."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from spark_resources.errors import WrongUsage
from spark_resources.identifiers import Scope
from spark_resources.settings import RENAMED, Settings

NO_HOME = Path("/nonexistent")
FLEET = """
min_age = "48h"
trusted_repositories = ["scratch-*", "archive"]
mark_scope = "committed"

[repositories."lake-*"]
brake_share = 0.1
min_age = "3d"

[repositories.lake-main]
brake_share = 0.02
"""


def load(folder: Path, content: str, repository: str | None = None, **environ: str) -> Settings:
    """The settings that apply to a repository if the working directory has a fleet file with this content."""
    (folder / "lakegc.toml").write_text(content)
    return Settings.load(environ, NO_HOME, repository=repository, directory=folder)


def test_settings_above_the_sections_apply_to_every_repository(tmp_path: Path) -> None:
    for repository in (None, "other"):
        settings = load(tmp_path, FLEET, repository)
        assert settings.min_age == timedelta(hours=48)
        assert settings.trusted_repositories == ("scratch-*", "archive")
        assert settings.mark_scope is Scope.COMMITTED
        assert settings.brake_share == 0.3
        assert settings.origins["min_age"] == f"min_age in {tmp_path}/lakegc.toml"


def test_a_section_for_the_id_takes_precedence_over_patterns_and_patterns_over_the_shared_settings(
    tmp_path: Path,
) -> None:
    by_pattern, by_id = load(tmp_path, FLEET, "lake-a"), load(tmp_path, FLEET, "lake-main")

    assert (by_pattern.brake_share, by_pattern.min_age) == (0.1, timedelta(days=3))
    assert (by_id.brake_share, by_id.min_age) == (0.02, timedelta(days=3))
    assert by_id.origins["brake_share"] == f'brake_share in [repositories."lake-main"] of {tmp_path}/lakegc.toml'


def test_environment_variables_override_the_fleet_file_which_overrides_lakectls_settings(tmp_path: Path) -> None:
    environ = {"LAKEGC_BRAKE_SHARE": "0.5", "LAKECTL_SERVER_ENDPOINT_URL": "http://lakectl"}
    settings = load(tmp_path, f'endpoint_url = "http://fleet"\n{FLEET}', "lake-main", **environ)

    assert settings.brake_share == 0.5
    assert settings.origins["brake_share"] == "variable LAKEGC_BRAKE_SHARE"
    assert settings.endpoint_url == "http://fleet"


def test_lakegc_config_chooses_the_fleet_file(tmp_path: Path) -> None:
    """A file that doesn't exist is refused, because its limits would silently not apply."""
    (tmp_path / "fleet.toml").write_text('min_age = "5d"')
    settings = load(tmp_path, FLEET, LAKEGC_CONFIG=str(tmp_path / "fleet.toml"))

    assert settings.min_age == timedelta(days=5)
    with pytest.raises(WrongUsage, match=r"LAKEGC_CONFIG is missing.toml, which is not a file"):
        load(tmp_path, FLEET, LAKEGC_CONFIG="missing.toml")


def test_patterns_that_contradict_each_other_are_refused_for_the_repositories_that_match_both(tmp_path: Path) -> None:
    """Neither pattern silently wins. A section for the id decides, and equal values don't contradict each other."""
    contradiction = '[repositories."lake-*"]\nmin_age = "2d"\n[repositories."*-main"]\nmin_age = "4d"\n'

    assert load(tmp_path, contradiction, "lake-a").min_age == timedelta(days=2)
    with pytest.raises(
        WrongUsage, match=r'min_age in \[repositories."lake-\*"\] of .* is \'2d\', but min_age in'
    ) as raised:
        load(tmp_path, contradiction, "lake-main")
    assert 'Set min_age in a section [repositories."lake-main"]' in str(raised.value)
    decided = contradiction + '[repositories.lake-main]\nmin_age = "7d"\n'
    assert load(tmp_path, decided, "lake-main").min_age == timedelta(days=7)
    assert load(tmp_path, contradiction.replace("4d", "2d"), "lake-main").min_age == timedelta(days=2)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('min_aeg = "1h"', "min_aeg in .*/lakegc.toml is not a lakegc setting. Did you mean min_age?"),
        ('[repositories."x-*"]\nbrake_shar = 1', r'brake_shar in \[repositories."x-\*"\] of .* mean brake_share?'),
        ("[repository.x]\nmin_age = 1", "repository in .* Did you mean repositories?"),
        ("min_age = 24", "min_age in .* is '24': expected a duration such as 24h"),
        ('mark_cron = "at night"', "mark_cron in .* is 'at night': expected a cron schedule in UTC"),
        ('mark_cron = "61 * * * *"', "mark_cron in .* expected a cron schedule in UTC"),
        ('[repositories."x-*"]\nbrake_share = 7', r'brake_share in \[repo.*"x-\*"\] of .* is .7.: expected a fraction'),
        ('signing_key = "abc"', "signing_key in .* is a secret, .* environment variable LAKEGC_SIGNING_KEY instead"),
        ('[repositories."x-*"]\ns3_secret_access_key = "abc"', "is a secret, .* LAKEGC_S3_SECRET_ACCESS_KEY instead"),
        ('[spark_conf]\n"spark.hadoop.fs.s3a.secret.key" = "abc"', "spark_conf in .* contains a secret"),
        ('[repositories."x-*"]\nendpoint_url = "http://h"', "endpoint_url in .* applies to the whole process"),
        ("min_age =", "lakegc.toml is not valid TOML"),
        ("repositories = 3", "must contain only sections"),
        ("[repositories]\nlake = 3", "must contain only sections"),
        ("brake_share = true", "brake_share in .* is 'true': expected a fraction"),
        ('[repositories."x-*"]\nmax_missing = true', r'max_missing in \[repo.*"x-\*"\] of .* is .true.'),
        ("max_missing = " + "1" * 5000, "a value that is too long or nested too deeply"),
        ("owners = " + "[" * 5000, "a value that is too long or nested too deeply"),
        ('[spark_conf]\n"spark.hadoop.fs.gs.auth.service.account.private.key" = "abc"', "contains a secret"),
        ('[spark_conf]\n"spark.hadoop.fs.s3a.server-side-encryption.key" = "abc"', "contains a secret"),
        ('[spark_conf]\n"spark.x" = "http://user:abc@host"', "contains a secret"),
        ('backup_to = "https://a.blob.core.windows.net/c?sig=abc"', "backup_to in .* .no user name, password"),
        ('backup_to = "s3://user:abc@bucket/x"', "backup_to in .* .no user name, password"),
    ],
)  # fmt: skip
def test_an_invalid_file_is_refused_as_a_whole(tmp_path: Path, content: str, expected: str) -> None:
    """The file is refused even if the mistake is in another repository's section, whose author may rely on it. The
    error never shows a secret."""
    with pytest.raises(WrongUsage, match=expected) as raised:
        load(tmp_path, content, "lake-main")
    assert "abc" not in str(raised.value)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_renamed_setting_in_the_file_is_refused_with_its_new_name(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(WrongUsage, match=f"the setting '{old}' is now called '{new}': rename it in .*"):
        load(tmp_path, f"{old} = 1")


def test_a_file_that_is_not_readable_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lakegc.toml").write_bytes(b"\xff")

    with pytest.raises(WrongUsage, match=r"lakegc.toml can't be read \(UnicodeDecodeError\)"):
        Settings.load({}, NO_HOME, directory=tmp_path)


@pytest.mark.parametrize(
    "pattern", ["", "lake-a,lake-b", "Lake-*", " lake-a", "lake-[ab", "lake-[b-a]", "lake_a", "-lake", "lake-\u0430"]
)
def test_a_section_that_can_match_no_repository_is_refused(tmp_path: Path, pattern: str) -> None:
    """The holds and limits in the section would silently apply to no repository."""
    with pytest.raises(WrongUsage, match="matches no repository: expected an id, or a shell pattern"):
        load(tmp_path, f'[repositories."{pattern}"]\nmin_age = "2d"')


@pytest.mark.parametrize("pattern", ["*", "lake-[ab]", "lake-[!b-z]", "l?ke-a", "lake-a", "*-a"])
def test_each_kind_of_pattern_applies(tmp_path: Path, pattern: str) -> None:
    settings = load(tmp_path, f'[repositories."{pattern}"]\nmin_age = "2d"', "lake-a")

    assert settings.min_age == timedelta(days=2)


def test_ordinary_addresses_and_spark_settings_are_not_mistaken_for_secrets(tmp_path: Path) -> None:
    content = """
    backup_to = "https://account.blob.core.windows.net/container/backups"
    [spark_conf]
    "spark.io.encryption.keySizeBits" = "256"
    "spark.hadoop.fs.defaultFS" = "abfss://container@account.dfs.core.windows.net"
    """

    assert load(tmp_path, content).spark_conf["spark.io.encryption.keySizeBits"] == "256"


@pytest.mark.parametrize("kind", ["link without target", "link to itself", "folder"])
def test_a_fleet_file_that_is_not_a_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    """An example is a link into a folder that isn't mounted: its holds and limits would silently not apply."""
    path = tmp_path / "lakegc.toml"
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("lakegc.toml" if kind == "link to itself" else "missing")

    with pytest.raises(WrongUsage, match=r"lakegc.toml is not a readable file, so lakegc can't tell which settings"):
        Settings.load({}, NO_HOME, directory=tmp_path)
    path.rmdir() if kind == "folder" else path.unlink()
    assert Settings.load({}, NO_HOME, directory=tmp_path / "missing").min_age == timedelta(hours=24)


@pytest.mark.parametrize("planted", ["by another user", "in a file that anyone may change"])
def test_a_file_in_the_working_directory_that_another_user_may_have_written_must_be_named_by_lakegc_config(
    tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings in the file choose the server that gets the credentials, and Spark's settings can run code."""
    path = tmp_path / "lakegc.toml"
    path.write_text("brake_share = 0.02\n")
    if planted == "by another user":
        if os.geteuid() == 0:
            os.chown(path, 12_345, -1)
        else:
            monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    else:
        path.chmod(0o666)

    with pytest.raises(WrongUsage, match="set LAKEGC_CONFIG to this path"):
        Settings.load({}, NO_HOME, directory=tmp_path)
    assert Settings.load({"LAKEGC_CONFIG": str(path)}, NO_HOME, directory=tmp_path).brake_share == 0.02


def test_a_changed_file_takes_effect_immediately(tmp_path: Path) -> None:
    """A process that runs for weeks, such as Dagster's daemon, validates each content only once."""
    assert load(tmp_path, FLEET, "lake-main").brake_share == 0.02
    assert load(tmp_path, FLEET.replace("0.02", "0.03"), "lake-main").brake_share == 0.03
    with pytest.raises(WrongUsage, match="min_aeg"):
        load(tmp_path, f"min_aeg = '1h'\n{FLEET}", "lake-main")
    assert load(tmp_path, FLEET, "lake-main").brake_share == 0.02
