"""Does the best learning rate of a language model transfer? GPTs as their users write them, swept by `m.sweep`.

    python -m experiments.language                  # trains the demo; goes on where it stopped
    python -m experiments.language muon --scale=study
    python -m experiments.language --publish        # commits the rows of a scale whose sweeps are finished
    python -m experiments.documents                 # the tables and pictures of docs/language.md, from committed rows

gpt_linen.py and gpt_nnx.py know nothing of depthmup; sweeps.py has the rest: `dm.setup` and `m.sweep` on bytes of
NumPy's docstrings. docs/language.md has the questions, the predictions and what came out.
"""
