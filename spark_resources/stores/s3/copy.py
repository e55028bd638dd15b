"""Server-side copy of an object on S3 with its metadata, even if it is too large for one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

MAX_COPY_BYTES = 5 * 1024**3  # bytes: the limit of CopyObject
_PART_BYTES = 512 * 1024**2

# A copy in parts is a new upload, and only the newest boto3 preserves these fields automatically. `Metadata` is
# user-defined.
_PRESERVED = ("Metadata", "ContentType", "ContentEncoding", "ContentDisposition", "ContentLanguage", "CacheControl")


def copy_object(
    client: S3Client,
    bucket: str,
    source: str,
    target: str,
    head: Mapping[str, Any],
    *,
    max_copy_bytes: int = MAX_COPY_BYTES,
) -> None:
    """Copy one key to another in the bucket; `head` is the response to a HEAD of the source. Raises boto3's errors."""
    copy_source = {"Bucket": bucket, "Key": source}
    if int(head["ContentLength"]) <= max_copy_bytes:
        client.copy_object(Bucket=bucket, Key=target, CopySource=copy_source)  # type: ignore[arg-type]
        return
    from boto3.s3.transfer import TransferConfig

    arguments = {name: head[name] for name in _PRESERVED if head.get(name)}
    config = TransferConfig(
        multipart_threshold=max_copy_bytes, multipart_chunksize=min(_PART_BYTES, max(max_copy_bytes, 5 << 20))
    )
    if_unchanged = {"CopySourceIfMatch": head["ETag"]}
    client.copy(copy_source, bucket, target, ExtraArgs={**arguments, **if_unchanged}, Config=config)  # type: ignore[arg-type]
