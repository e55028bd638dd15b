"""The policies on the page on permissions: their form, and the names of the permissions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from lakegc_assets.doctor.permissions import PERMISSIONS, UNTRIED
from spark_resources.mark_store.mark import GC_ROOT, MARKS_ROOT
from tests.support.least_privilege import PAGE, Permission, documented_policies, is_allowed, s3_statements

ROOT = Path(__file__).parents[2]
ARN = "arn:aws:s3:::my-bucket"
RANGE = f"{ARN}/lake/_lakefs/{'0' * 64}"

# The actions of lakeFS that read, or prepare a garbage collection, in the server's list (2026).
OF_LAKEFS = {
    *("fs:ReadRepository", "fs:ListRepositories", "fs:ReadObject", "fs:ListObjects", "fs:ReadCommit", "fs:ListCommits"),
    *("fs:ReadBranch", "fs:ListBranches", "fs:ReadTag", "fs:ListTags", "fs:ReadConfig"),
    *("retention:PrepareGarbageCollectionCommits", "retention:PrepareGarbageCollectionUncommitted"),
    *("retention:GetGarbageCollectionRules", "retention:SetGarbageCollectionRules"),
}
OF_GCS = {
    *("storage.buckets.get", "storage.objects.create", "storage.objects.delete", "storage.objects.get"),
    *("storage.objects.list", "storage.objects.update"),
}
OBJECTS = "projects/_/buckets/my-bucket/objects/lake/"
BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
OF_AZURE = {f"{BLOBS}/{verb}" for verb in ("read", "write", "delete", "add/action", "move/action")}


def section(name: str) -> str:
    return PAGE.read_text(encoding="utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def test_the_lakefs_policies_have_exactly_the_actions_that_lakegc_needs() -> None:
    """lakegc needs the actions that the errors of requests name, and those that the doctor checks."""
    statements = [statement for policy in documented_policies("lakeFS") for statement in policy["statement"]]
    granted = [action for statement in statements for action in texts(statement["action"])]
    modules = (ROOT / "spark_resources" / "lakefs").glob("*.py")
    needed = {name for path in modules for name in re.findall(r"\b(?:fs|retention):[A-Z]\w+", path.read_text())}
    checked = {permission.name for permission in PERMISSIONS} | set(UNTRIED)

    assert set(granted) == needed
    assert len(granted) == len(set(granted))
    assert set(granted) <= OF_LAKEFS
    assert checked <= set(granted)
    assert {statement["effect"] for statement in statements} == {"allow"}


def test_the_policy_of_a_mark_in_s3_deletes_and_writes_only_its_own_files() -> None:
    statements = s3_statements("List", "Versioning", "Read", "OwnFiles", bucket="my-bucket")
    for action in ("s3:DeleteObject", "s3:PutObject"):
        for key in ("data/s/a", "legacy", f"{GC_ROOT}rules/config.json", f"{GC_ROOT}quarantine/m1/data/s/a"):
            assert not is_allowed(Permission(action, f"{ARN}/lake/{key}"), statements)
        assert not is_allowed(Permission(action, RANGE), statements)
        assert is_allowed(Permission(action, f"{ARN}/lake/{MARKS_ROOT}m1/mark.json"), statements)
    assert is_allowed(Permission("s3:GetObject", RANGE), statements)
    assert not is_allowed(Permission("s3:ListBucket", ARN, "other/"), statements)


def test_no_policy_in_s3_allows_deleting_or_replacing_lakefs_metadata() -> None:
    every = [statement for policy in documented_policies("S3") for statement in policy["Statement"]]
    for action in ("s3:DeleteObject", "s3:PutObject"):
        assert not is_allowed(Permission(action, RANGE), every)
        for key in (f"{GC_ROOT}rules/config.json", f"{GC_ROOT}commits/run_id=r/commits.csv", "_lakefs/dummy"):
            assert not is_allowed(Permission(action, f"{ARN}/lake/{key}"), every)
        assert not is_allowed(Permission(action, f"{ARN}/lake-other/data/s/a"), every)
    assert {policy["Version"] for policy in documented_policies("S3")} == {"2012-10-17"}


def test_the_roles_of_google_cloud_have_known_permissions_and_limit_writes_to_folders() -> None:
    *roles, policy = documented_policies("Google Cloud Storage")
    permissions = {permission for role in roles for permission in role["includedPermissions"]}
    limited = [binding for binding in policy["bindings"] if not binding["role"].endswith("Read")]

    assert permissions <= OF_GCS
    assert {binding["role"].rpartition("/lakegc")[2].lower() for binding in policy["bindings"]} == {
        role["title"].removeprefix("lakegc ") for role in roles
    }
    folders = [
        re.fullmatch(rf"resource\.name\.startsWith\('{OBJECTS}(.*)'\)", binding["condition"]["expression"])
        for binding in limited
    ]
    assert [folder and folder[1] for folder in folders] == [
        MARKS_ROOT, f"{GC_ROOT}unified/", "data/", f"{GC_ROOT}quarantine/",
    ]  # fmt: skip


def test_the_roles_of_azure_have_known_actions_and_conditions_on_folders() -> None:
    conditions = re.findall(r"^```text\n(.*?)^```$", section("Azure"), re.MULTILINE | re.DOTALL)

    for role in documented_policies("Azure"):
        assert set(role["DataActions"]) <= OF_AZURE
    assert len(conditions) == len(documented_policies("Azure")) == 2
    for condition in conditions:
        assert condition.count("(") == condition.count(")")
        assert set(re.findall(r"ActionMatches\{'([^']+)'\}", condition)) <= OF_AZURE
        assert set(re.findall(r"StringLike '([^']+)'", condition)) <= {
            f"lake/{MARKS_ROOT}*", f"lake/{GC_ROOT}unified/*", "lake/data/*",
        }  # fmt: skip
