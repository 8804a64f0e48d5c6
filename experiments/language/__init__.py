"""Does the best learning rate of a language model transfer? GPTs as their users write them, swept by `m.sweep`.

    python -m experiments.language          # trains what is missing, writes its rows: some hours of two cores
    python -m experiments.language muon     # this case
    python -m experiments.documents         # the tables and pictures of docs/language.md, from the rows

gpt_linen.py and gpt_nnx.py know nothing of depthmup; sweeps.py has the rest: `dm.setup` and `m.sweep` on bytes of
NumPy's docstrings. docs/language.md has the questions, the predictions and what came out.
"""
