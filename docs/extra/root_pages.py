"""A hook of mkdocs: CONTRIBUTING.md and CHANGELOG.md stand beside docs/ and are pages of the site too."""

import re
from pathlib import Path

PAGES = ("CHANGELOG.md", "CONTRIBUTING.md")
NAMED = re.compile(r"(?<![\w/\[`])docs/([\w-]+\.md)")  # in plain text


def text_on_the_site(text):
    """Links start in docs/, and pages that the text names are links."""
    return NAMED.sub(r"[\1](\1)", text.replace("](docs/", "]("))


def on_files(files, config):
    from mkdocs.structure.files import File  # here, since tests have no mkdocs

    for name in PAGES:
        text = (Path(config.docs_dir).parent / name).read_text()
        files.append(File.generated(config, name, content=text_on_the_site(text)))
    return files
