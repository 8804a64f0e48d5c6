from depthmup.recipe import Recipe as Recipe
from depthmup.train.divergence import chance as chance
