"""What each parameter is: from the axes that grow, and from what the forward pass does with them.

Four trees of shapes (trees.py, by `jax.eval_shape`) and two forward passes (reading.py) tell:

    T = shapes(w, d)    W = shapes(2w, d)    Q = shapes(4w, d)    D = shapes(w, 2d)    P = pass(w, d)    R = pass(w, 2d)

1. Growing axes differ between T, W and Q. An axis that does not double twice is asked for, but for a rounding of at
   most an eighth and a part of fixed size. A plateau that lasts until 4w is not seen.
2. Axes of weights (graph/axes.py). P sums over an axis of inputs and keeps one of outputs; an axis that both factors of
   a product share counts copies, as that of experts. What acts entry by entry has no inputs.
3. Roles (roles.py). Inputs and outputs grow: `hidden`. Outputs alone: `input`, or `vector` without inputs. Inputs
   alone: `readout` if it stores the output factor, else `output`. Nothing grows: `fixed`, or `scalar` in every block
   and where nothing that grows acts behind it. A table that acts entry by entry is `input` if it has rows, as
   positions have.
4. The stack axis is the only axis that differs between T and D. P takes its members.
5. Branches (places.py) of R that P has fewer of repeat with depth; alike are those that compute the same. A single
   branch of their stream that shares a shape of parameters with them, and one whose skip is a projection, counts, too.
6. Places. A parameter is in a branch if P and R have it in as many branches: what all blocks share is in more of them.
   What repeats outside the branches acts on the stream (vectors), or is asked for (weights).
7. Fans are the numbers of terms and of results of one product: the sizes of the axes of inputs and of outputs.

Overrides (overrides.py) win over all of this. Names decide nothing, but for two ties that a program does not break: of
several equal norms on the stream one may be too many for the number of blocks, and a last block may have parameters on
which nothing depends; then paths that differ in numbers alone belong together.

Without a forward pass shapes alone decide, in a layout that the caller says, and one error asks for what they cannot
tell, with an `overrides=` to paste. Blocks are then stacks, or lists of which D has twice as many of each shape
(blocks.py). A stack of experts looks like a receptive field, and norms behind the sums like those of branches.

Depth is the number of residual blocks. Families whose depth cannot double (6n + 2 layers) take n.
"""

from depthmup.reading.infer import infer_specs

__all__ = ["infer_specs"]
