"""A hook of mkdocs: the build fails if a page of the site loads anything from the network."""

import re
from pathlib import Path

LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)\s*=\s*[\"']?((?:https?:)?//[^\"'\s>]+)")
STYLED = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)")


def loaded(site):
    """What the pages and styles of a folder load from the network, a line each."""
    return [
        f"{path.relative_to(site)} loads {address}"
        for ending, pattern in (("html", LOADED), ("css", STYLED))
        for path in sorted(site.rglob(f"*.{ending}"))
        for address in pattern.findall(path.read_text())
    ]


def on_post_build(config):
    from mkdocs.exceptions import PluginError  # here, since tests have no mkdocs

    addresses = loaded(Path(config.site_dir))
    if addresses:
        raise PluginError("the site must need no network: " + "; ".join(addresses[:5]))
