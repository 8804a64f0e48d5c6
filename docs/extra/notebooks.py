"""A hook of mkdocs: every docs/notebooks/NAME.ipynb becomes a page, notebooks/NAME.md, with the outputs in the file.

    python docs/extra/notebooks.py [NAME ...]

executes notebooks and writes their outputs into the files (`make notebooks`: all).
"""

import re
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "notebooks"


def page(notebook, name):
    """(markdown, {file name: bytes} of its pictures) of a notebook."""
    from nbconvert import MarkdownExporter

    text, resources = MarkdownExporter().from_notebook_node(notebook, {"unique_key": name})
    return text, resources["outputs"]


def on_page_markdown(markdown, **_):
    """Links to notebooks lead to their pages, but for the buttons, whose `)` has attributes behind it."""
    return re.sub(r"\.ipynb\)(?!\{)", ".md)", markdown)


def on_files(files, config):
    import nbformat
    from mkdocs.structure.files import File

    for path in sorted(Path(config.docs_dir, "notebooks").glob("*.ipynb")):
        text, pictures = page(nbformat.read(path, as_version=4), path.stem)
        text = f"[This page as a notebook]({path.name}){{.md-button download }}\n\n{text}"
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def execute(path):
    """Write a notebook's outputs into its file, without progress. Raises CellExecutionError, which names the cell."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    about = dict(notebook.metadata)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=1800, record_timing=False, resources=resources).execute()
    notebook.metadata = about  # nbclient writes the version of this machine's Python
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        print(f"executing {name}", flush=True)
        execute(FOLDER / f"{name}.ipynb")
