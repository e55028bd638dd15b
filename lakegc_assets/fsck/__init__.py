"""`lakegc fsck`: is all metadata of a repository there and whole, and does the store hold what is live.

Ids are content hashes (formats §3), so the whole chain commit → metarange → range → entry can be proved. Unlike a mark,
which stops at the first thing that is wrong, a check goes on and names all of them; it writes nothing.
"""

from __future__ import annotations
