"""The rows of docs/results.md for figures that other experiments of the project show, or that nothing shows yet."""

THEORY = "the limit, where simulations decide: [limit.md](limit.md)"
# figure, claim, paper, ours, verdict, command
ELSEWHERE: tuple[tuple[str, str, str, str, str, str], ...] = ()
