"""The numbers that verdicts depend on; docs/laws.md says why they are as they are."""

import math

CONFIDENCE = 0.95  # the level of all intervals
BOTH_SIDES = f"{100 * CONFIDENCE:g}%"  # the same in words
ONE_SIDE = f"{50 * (1 + CONFIDENCE):g}%"  # the level of one of their ends, in words
MARGIN = 1.0  # octaves below the optimum whose cost is the margin of a verdict
NEGLIGIBLE = math.log(1.001)  # a difference of log losses that nobody cares about: 2 to 3% of the tokens
LEARNED = 0.01  # share of the loss of chance by which a network that has learned is surely below it
TRAINS = 0.05  # a best loss less than this share below the loss of chance is noise: a search for rates goes on
SELDOM = 0.05  # of the trainings that diverge: so many are worth a word
STAYS = 0.05  # octaves, below which a best value has not moved
