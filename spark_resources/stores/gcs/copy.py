"""Server-side copy of an object of any size on Cloud Storage, including its metadata."""

from __future__ import annotations

from typing import Any

from spark_resources.errors import Unavailable, parse_problem
from spark_resources.stores.gcs.client import GCSClient, object_path
from spark_resources.stores.gcs.listing import ListedObject, parse_object

_FIELDS = "done,rewriteToken,totalBytesRewritten,resource(name,size,updated,crc32c,generation)"


def copy_object(client: GCSClient, bucket: str, source: ListedObject, target: str, where: str) -> None:
    """Copy exactly the content of `source` to another key of the bucket.

    Raises Google's errors, and `Unavailable` if the copy makes no progress or its result differs from the source.
    """
    path = f"{object_path(bucket, source.name)}/rewriteTo{object_path(bucket, target).removeprefix('/storage/v1')}"
    # an empty body keeps all metadata of the source; the generation pins every request to the same content
    params = {"sourceGeneration": source.generation, "fields": _FIELDS, "prettyPrint": "false"}
    previously_copied = -1
    while True:
        response: dict[str, Any] = client.request("POST", path, params=params).json()
        if response.get("done") is True:
            break
        token, copied = response.get("rewriteToken"), int(response.get("totalBytesRewritten", 0))
        if not token or copied <= previously_copied:
            raise Unavailable(
                f"the copy of {source.name!r} in {where} is stuck at {copied} of {source.size} bytes. Try again."
            )
        params["rewriteToken"], previously_copied = str(token), copied
    try:
        copy = parse_object(response["resource"])
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(
            f"could not copy {source.name!r} in {where}: invalid response ({parse_problem(error)}). Check the endpoint."
        ) from error
    if (copy.name, copy.size) != (target, source.size) or copy.crc32c != source.crc32c:
        raise Unavailable(
            f"the copy of {source.name!r} at {copy.name!r} in {where} has {copy.size} bytes and the checksum "
            f"{copy.checksum}; expected {source.size} bytes and {source.checksum}, at {target!r}. Try again."
        )
