"""Link tokens, which prove that an address was issued for one path on one branch, and when (formats §1)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import datetime, timedelta

from spark_resources.lakefs_sandbox.errors import bad_request
from spark_resources.lakefs_sandbox.xids import generated_at

LINK_VALIDITY = timedelta(hours=24)
_DELIMITER = ","


class LinkTokens:
    """Signs `data/<slice>/<id>` as `data/<slice>/<id>,<token>`, and checks whether such an address may be linked."""

    def __init__(self, signing_key: str) -> None:
        self._key = signing_key.encode()

    def sign(self, address: str, *, repository: str, branch: str, path: str) -> str:
        return address + _DELIMITER + self._token(address, repository, branch, path)

    def check(self, signed_address: str, *, repository: str, branch: str, path: str, now: datetime) -> None:
        """Raise `Problem` 400 if an address wasn't issued for this path, or was issued too long ago."""
        address, delimiter, token = signed_address.rpartition(_DELIMITER)
        if not delimiter:
            raise bad_request("address is not signed: link address invalid")
        if not hmac.compare_digest(token.encode(), self._token(address, repository, branch, path).encode()):
            raise bad_request("invalid address signature: invalid address")
        if now - generated_at(address) > LINK_VALIDITY:
            raise bad_request("link address expired")

    def _token(self, address: str, repository: str, branch: str, path: str) -> str:
        content = json.dumps([repository, branch, path, address]).encode()
        return base64.urlsafe_b64encode(hmac.digest(self._key, content, hashlib.sha256)).decode().rstrip("=")
