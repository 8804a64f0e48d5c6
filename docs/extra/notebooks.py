"""A hook of mkdocs: every docs/notebooks/NAME.ipynb is executed and becomes a page, notebooks/NAME.md.

The notebooks are committed without outputs. NOTEBOOKS=false leaves them unexecuted: seconds instead of minutes.
"""

import os
import re
import tempfile
from pathlib import Path


def page(notebook, name):
    """(markdown, {file name: bytes} of its pictures) of a notebook."""
    from nbconvert import MarkdownExporter

    text, resources = MarkdownExporter().from_notebook_node(notebook, {"unique_key": name})
    return text, resources["outputs"]


def executed(notebook):
    """The notebook with its outputs. Raises CellExecutionError, which names the cell, if one fails."""
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as folder:
        return NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": folder}}).execute()


def on_page_markdown(markdown, **_):
    """Links to notebooks lead to their pages, but for the buttons, whose `)` has attributes behind it."""
    return re.sub(r"\.ipynb\)(?!\{)", ".md)", markdown)


def on_files(files, config):
    import nbformat
    from mkdocs.structure.files import File

    for path in sorted(Path(config.docs_dir, "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        if os.environ.get("NOTEBOOKS", "true") != "false":
            print(f"executing {path.name}", flush=True)
            notebook = executed(notebook)
        text, pictures = page(notebook, path.stem)
        text = f"[This page as a notebook]({path.name}){{.md-button download }}\n\n{text}"
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files
