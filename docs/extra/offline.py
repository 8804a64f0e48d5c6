"""A hook of mkdocs: the build fails if a page of the site loads anything from the network."""

import re
from pathlib import Path

from mkdocs.exceptions import PluginError

LOADED = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)\s*=\s*["']?((?:https?:)?//[^"'\s>]+)""")
STYLED = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")


def on_post_build(config):
    site = Path(config.site_dir)
    found = [
        f"{path.relative_to(site)} loads {address}"
        for ending, pattern in (("html", LOADED), ("css", STYLED))
        for path in sorted(site.rglob(f"*.{ending}"))
        for address in pattern.findall(path.read_text())
    ]
    if found:
        raise PluginError("the site must need no network: " + "; ".join(found[:5]))
