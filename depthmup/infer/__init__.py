"""Specs from shapes: which axes of a parameter grow when width or depth doubles, and what the parameter therefore is.

The algorithm looks at four trees of shapes, which `jax.eval_shape` makes without computing anything:

    T = shapes(w, d)    W = shapes(2w, d)    Q = shapes(4w, d)    D = shapes(w, 2d)    (heads stay divisible)

`setup` hands in what the products of the forward pass do with each axis (graph/axes.py): this decides roles and fans of
the weights, whatever they are called and however they are stored. Where no product tells, shapes decide, and where they
cannot, names and neighbours that several libraries share (names.py). One error asks for the rest and prints an
`overrides=` to paste. Every leaf gets a role, or the call fails and names the leaf.

 0. Overrides (overrides.py) win over every rule below. `infer_specs` describes their values.
 1. Leaves that are not arrays of real or complex numbers are passed over. Their spec is None.
 2. A path becomes names and indices (paths.py), so that the paths of all libraries read alike.
 3. T, W and Q must have the same paths. A model that ignores width is an error. So is a residual model with hidden
    weights that ignores depth or shares the weights of its blocks.
 4. Growing axes (trees.py) differ between T, W and Q. An axis that does not double twice is unclear, but for a rounding
    of at most an eighth and a part of fixed size. A plateau that lasts until 4w is not seen.
 5. The stack axis (blocks.py) is the only axis that D changes. It must double exactly and must not grow with width. The
    leaf is then in the stack, and the steps below leave this axis out. Any other change of shape with depth is unclear,
    unless the leaf is in a list that gains members, since automatic names shift there.
 6. Lists of blocks (blocks.py) decide for a leaf without a stack axis. Replace one index of its path by "*", and count
    the paths that match in T (a) and in D (b). If b = 2a, the leaf is in the stack. If b <= a, there is no evidence.
    Otherwise count again among leaves of the same shape: doubled is in the stack, more but not doubled is ambiguous.
    Only one index is replaced at a time, since replacing all of them merges the convolutions of shortcuts and branches.
    The test is b = 2a, since b > a also holds for models without blocks. Equal indices (norm_3/up_3/scale) are replaced
    together if no single one repeats. Names without numbers count as indices where their container has twice as many
    of them at twice the depth.
 7. Not every member of such a list is a block. A member with a matrix whose shape no other member repeats is a read-in
    or a readout if one axis grows. It changes the width if two axes of different sizes grow: then it is a block if a
    parameter projects its shortcut, and unclear otherwise (MobileNet has no skip connection there). Projections of
    shortcuts are outside the branches, by name. A 1x1 kernel beside a larger one is unclear.
 8. Layout (checks.py): "out_in" reads (out, in, *receptive field) as (*receptive field, in, out). A bias has the size
    of its kernel's outputs, which shows a wrong layout, or one kernel of the other layout if both axes grow. An
    embedding (vocabulary, width) is `input` in either layout, by its name.
 9. Roles (roles.py). Three growing axes are unclear. Two are `hidden`. One is `input` if it is an axis of outputs, and
    otherwise `output` in a branch and `readout` outside. One axis among axes of size 1 is a `vector`, and so is what
    libraries name as one (bias, scale) and a diagonal state matrix. Without a growing axis a matrix is `fixed`, and so
    is what stands before the readout; a vector in a branch and the readout's bias are `scalar`. Two parameters that
    look like readouts are unclear unless the forward pass tells (`ends`). A model without a readout needs a tied
    embedding, and one under "out_in" needs a read-in.
10. Places. What is in the stack is in a branch if `residual` is true, and everything else is outside. The forward pass
    decides where shapes are unclear (`inside`), and says that projections of a skip are outside. A path that only D has
    must match a block that was found, or a leaf that only some members of a list have.
11. Fans are the products of the axes before and after the boundary between inputs and outputs. A bias shows the
    boundary. Without one the boundary follows the first growing axis, or makes the fans most alike if two axes grow. An
    axis of experts is in neither fan: its name shows it, or a router that has as many outputs.

Depth is the number of residual blocks. Families whose depth cannot double (6n + 2 layers) take n.

Neither shapes nor names tell three things, and no message says so: norms after the sum of a block (post-LN) are on the
stream; experts without a router or a name look like a receptive field; a leaf (N, k) in a branch need not be a
matrix, in a tree of plain names. Overrides settle these, and a coordinate check shows them. tests/foreign/ has the
models of other libraries on which the algorithm is tested.
"""

from depthmup.infer.call import infer_specs

__all__ = ["infer_specs"]
