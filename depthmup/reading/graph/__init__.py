"""A model's forward pass as a graph of operations: its residual branches, its readout and its attentions.

jaxpr.py has the operations of a program, evaluate.py their results by NumPy, axes.py what its products do with each
axis of a parameter, graph.py the graph of operations, homogeneity.py the parameters in which a value is homogeneous,
products.py attentions and readouts, residual.py residual additions, sites.py all that factors multiply.
"""

from depthmup.reading.graph.axes import Uses, uses_of
from depthmup.reading.graph.evaluate import as_numpy, evaluated
from depthmup.reading.graph.graph import (
    ADDITIONS,
    COPIES,
    RESHAPES,
    ForwardError,
    Graph,
    Node,
    Program,
    reached,
    traced_program,
    union,
)
from depthmup.reading.graph.homogeneity import Parts
from depthmup.reading.graph.jaxpr import (
    CLOSED,
    CONTRACTIONS,
    ELEMENTWISE,
    PRODUCTS,
    bind,
    contractions,
    inner_jaxpr,
    interpreted,
    parts_of_scan,
    values_at,
)
from depthmup.reading.graph.products import last_layer
from depthmup.reading.graph.sites import SHARED, Site, last_matrices, paths_of, sites

__all__ = [
    "ADDITIONS",
    "CLOSED",
    "CONTRACTIONS",
    "COPIES",
    "ELEMENTWISE",
    "PRODUCTS",
    "RESHAPES",
    "SHARED",
    "ForwardError",
    "Graph",
    "Node",
    "Parts",
    "Program",
    "Site",
    "Uses",
    "as_numpy",
    "bind",
    "contractions",
    "evaluated",
    "inner_jaxpr",
    "interpreted",
    "last_layer",
    "last_matrices",
    "parts_of_scan",
    "paths_of",
    "reached",
    "sites",
    "traced_program",
    "union",
    "uses_of",
    "values_at",
]
