"""`lakegc fsck`: check that a repository's metadata is complete and intact, and that the store has all live objects.

Ids are content hashes (formats §3), so the whole chain commit → metarange → range → entry can be verified. Unlike a
mark, which stops at the first problem, a check continues and reports every problem. It writes nothing.
"""

from __future__ import annotations
