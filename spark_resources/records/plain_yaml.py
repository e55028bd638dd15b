"""YAML for files that people write and review: without the features that hide content from a reader. Pure."""

from __future__ import annotations

import yaml

MAX_DEPTH = 8  # levels of lists and fields; a valid file has five
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map"))


class PlainLoader(yaml.BaseLoader):
    """Reads every scalar as text. Rejects aliases, and tags that convert text to other types."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            problem = "aliases (*name) are not supported: write the value out"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "lists and fields are nested too deeply", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        if node is not None and node.tag not in _PLAIN_TAGS:
            problem = f"the tag {node.tag} is not supported: write plain text"
            raise yaml.composer.ComposerError(None, None, problem, node.start_mark)
        return node
