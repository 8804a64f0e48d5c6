"""A hook of mkdocs: the build fails if a page of the site loads anything from the network, or has a link that leads
nowhere where the site is opened as files."""

import re
from pathlib import Path
from urllib.parse import unquote

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


def dead(site):
    """The links of a folder's pages to files, or to places in pages, that are not there; a folder is no page."""
    pages = {path: path.read_text() for path in sorted(site.rglob("*.html")) if path.name != "404.html"}  # of a server
    places = {
        path: {unquote(place) for place in re.findall(r"\bid=[\"']?([^\"'\s>]+)", text)} for path, text in pages.items()
    }
    lines = []
    for path, text in pages.items():
        for link in dict.fromkeys(re.findall(r"<a\b[^>]*?\bhref=[\"']?([^\"'\s>]+)", text)):
            if re.match(r"\w+:", link):
                continue
            name, _, place = unquote(link).partition("#")
            file = (path.parent / name).resolve() if name else path
            if not file.is_file() or (place and place != "__top" and place not in places.get(file, {place})):
                lines.append(f"{path.relative_to(site)} leads to {link}")
    return lines


def on_post_build(config):
    from mkdocs.exceptions import PluginError  # here, since tests have no mkdocs

    if links := dead(Path(config.site_dir)):
        raise PluginError("links that lead nowhere: " + "; ".join(links[:5]))
    addresses = loaded(Path(config.site_dir))
    if addresses:
        raise PluginError("the site must need no network: " + "; ".join(addresses[:5]))
