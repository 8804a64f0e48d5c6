"""Does the best learning rate of a language model transfer? GPTs as their users write them, set up by `dm.setup`.

    python -m experiments.language                  # the demo: 15 minutes on two cores; goes on where it stopped
    python -m experiments.language --scale=study    # up to three hours
    python -m experiments.language --draw           # the page and the pictures, from committed rows

gpt_linen.py and gpt_nnx.py know nothing of depthmup. They read bytes of the docstrings of NumPy. Each case of `CASES`
is trained at several depths and widths over a grid of learning rates; what is judged is the mean training loss over the
last tenth of the steps. Rows are in docs/results/language/, the page is docs/language.md.

CompleteP's claim (Dey et al. 2025) stands beside: for transformers, whose branches have two layers, depth exponent 1
(`completep`) transfers better and trains better than 1/2 (`depth_mup`).
"""
