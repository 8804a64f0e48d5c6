"""The products of a forward pass that factors multiply, attentions and readouts, and which parameters they weigh."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from depthmup.reading.graph.graph import COPIES, Graph, Node, as_stored, union
from depthmup.reading.graph.homogeneity import Parts, homogeneous_in
from depthmup.reading.graph.jaxpr import KNOWN, PRODUCTS

SOFTMAX = ("exp", "exp2")
GATES = ("logistic", "max")  # they make weights of attention logits without a softmax, and gates elsewhere
LARGE = 2.0**10  # the size of weights behind which a norm is looked for


def applied(graph: Graph) -> dict[str, Node]:
    """{path of a matrix, of a stack of matrices or of the kernel of a convolution: the first product that applies it to
    activations}. Tables are none of them.

        relu(h @ up) @ down             # {"up": h @ up, "down": relu(h @ up) @ down}
        table[tokens]                   # {}
    """
    first, matrices = dict[str, Node](), weights(graph)
    for node in _layers(graph):
        for number in range(len(node.operands)):
            path = _matrix(node, number)
            if path in matrices:
                first.setdefault(path, node)
    return first


def _matrix(product: Node, number: int) -> str:
    """The path of the matrix, of the stack of matrices or of the kernel that is this operand; "" if it is none."""
    operand = product.operands[number]
    parameter = as_stored(operand)
    is_matrix = product.op == "dot_general" and len(parameter.shape) == 2
    parameter = as_stored(parameter.operands[0]) if parameter.op == "member" else parameter  # of a stack
    stored = operand.operands[0] if operand.op == "convert_element_type" else operand
    is_kernel = product.op == "conv_general_dilated" and stored is parameter
    # The members of an ensemble lie along the first axis, in one product.
    is_stack = len(parameter.shape) == len(operand.shape) == 3 and parameter.shape[0] == operand.shape[0]
    are_applied = is_stack and bool(product.axes) and product.axes[number] in ((1,), (2,))
    return parameter.path if is_matrix or is_kernel or are_applied else ""


def parameters_behind(graph: Graph) -> dict[Node, frozenset[str]]:
    """{value: the paths of the parameters that act on what is computed from it}

    relu(h @ up) @ down             # {h: {"up", "down"}, h @ up: {"down"}, relu(h @ up): {"down"}, ...}

    What a scan over blocks hands on meets the body again, in the next step.
    """
    result = dict[Node, frozenset[str]]()
    for _ in range(2):  # in the second, what stands behind the carries of a body is known
        onward = {node: result[node] | graph.parameters_of(node) for node in result if node.op == "carry"}
        for node in reversed(graph.nodes):
            later = (*node.consumers, *(carry for carry in node.handed_to if carry in onward))
            result[node] = union(onward[consumer] for consumer in later)
            onward[node] = result[node] | graph.parameters_of(node)
    return result


def unseen(graph: Graph) -> list[Node]:
    """The operations on activations that the graph evaluates without seeing what they do."""
    return [node for node in graph.nodes if node.place and node.op not in KNOWN and node in graph.fed]


def attentions(graph: Graph) -> Iterator[tuple[Node, Node, Node]]:
    """(queries, keys, product) of every product of two activations that goes into a softmax, or into a sigmoid
    or ReLU that weighs other activations; through a tanh or a mask, but not through weights, as gates do.

        softmax(q @ k.T) @ v            # (q, k.T, q @ k.T)
        sigmoid(h @ gate) * v           # nothing
    """
    products = set[Node]()
    for node in graph.nodes:
        if node.op in SOFTMAX or (node.op in GATES and _products_next_to(graph, node, "consumers")):
            for product in _products_next_to(graph, node, "operands"):
                if product not in products:
                    products.add(product)
                    query, key = factors_of(graph, product)
                    yield query, key, product


def bilinear(graph: Graph) -> Iterator[tuple[Node, Node, Node]]:
    """(left, right, product) of every product of two activations that goes into no softmax, as linear attention has.

    Logits that are such products are none of them, nor are averages by weights that add up to 1, sums of squares, and
    products whose size does not matter."""
    of_softmax = {product for *_, product in attentions(graph)}
    later, matrices = parameters_behind(graph), weights(graph)
    for node in graph.nodes:
        factors = factors_of(graph, node) if node.is_last_copy and node not in of_softmax else ()
        compared = all(map(_is_comparison, node.consumers))  # as x.sum() > 0
        if not factors or compared or later[node].isdisjoint(matrices) or any(map(_averages, factors)):
            continue
        left, right = factors
        squares = np.array_equal(as_stored(left).value, as_stored(right).value)
        if not squares and not _divided_by_its_size(graph, node):
            yield left, right, node


def _divided_by_its_size(graph: Graph, product: Node) -> bool:
    """Whether the size of a product does not matter: in front of a norm (RetNet), or where a sum divides it, as in
    normalized linear attention. The logits do not change if the product doubles, or one of its factors does, or a
    factor of another product that is part of one.

    The change is compared with that by random numbers, since a product may add little to the logits."""
    factors = factors_of(graph, product)
    layers = filter(None, (last_layer(graph, factor) for factor in factors))
    outside = set[Node]().union(*map(graph.ancestors, layers))
    inside = set[Node]().union(*map(graph.ancestors, factors)) - outside
    products = [product, *(node for node in inside if node.summed == product.summed)]
    values = {product}.union(as_stored(factor) for node in products for factor in factors_of(graph, node))
    rng, nodes = np.random.default_rng(0), set(graph.nodes)

    def effect(value: Node, factor: Any) -> float:
        changed = graph.changed({value: factor * value.value}, nodes)
        return float(np.linalg.norm(changed.get(graph.output, graph.output.value) - graph.output.value))

    return any(
        effect(value, 2) < 0.01 * effect(value, rng.uniform(0.5, 1.5, value.shape).astype(value.value.dtype))
        for value in values & graph.fed
    )


def _averages(node: Node) -> bool:
    """Whether a value is weights that add up to 1 along an axis."""
    value = np.abs(node.value)
    return any(np.allclose(value.sum(axis), 1) for axis, size in enumerate(value.shape) if size > 1)


def _products_next_to(graph: Graph, node: Node, side: str) -> list[Node]:
    """The products of two activations that a value comes from ("operands") or goes into ("consumers") with no other
    product in between. A sum over the positions of one, which normalizes it, is no product of its own. What is compared
    alone, as the predicate of a cond is, is none."""
    products, todo, passed = [], [node], {node}
    while todo:
        for neighbour in getattr(todo.pop(), side):
            if neighbour in passed or neighbour not in graph.fed or _is_comparison(neighbour):
                continue
            passed.add(neighbour)
            if factors_of(graph, neighbour):
                inner = _products_next_to(graph, neighbour, "operands") if neighbour.op == "reduce_sum" else []
                products += inner or [neighbour]
            elif neighbour.op not in PRODUCTS:
                todo.append(neighbour)
    return products


def factors_of(graph: Graph, node: Node) -> tuple[Node, ...]:
    """The two activations whose product is summed over by one of CONTRACTIONS; nothing for other operations.

    In attention of several heads one of the two may be what a layer makes of parameters, such as learned queries. With
    one head such a product looks like that of a weight, and does not count."""
    factors = _factors(node)
    activations = [factor in graph.fed or (node.heads and _is_made(graph, factor)) for factor in factors]
    return factors if all(activations) and any(factor in graph.fed for factor in factors) else ()


def _is_comparison(node: Node) -> bool:
    return getattr(node.value, "dtype", None) == np.bool_


def _is_made(graph: Graph, node: Node) -> bool:
    """Whether a value is what a layer makes of parameters, and no parameter itself."""
    return any(ancestor.op in PRODUCTS for ancestor in graph.ancestors(node)) and bool(node.paths)


def _factors(node: Node) -> tuple[Node, ...]:
    """The two values whose product is summed over by one of CONTRACTIONS; nothing for other operations."""
    if node.op == "reduce_sum":  # (q * k).sum(-1), but not the x * x of a norm
        (node,) = node.operands
        while node.op == "convert_element_type":
            (node,) = node.operands
        contracts = node.op == "mul" and node.operands[0] is not node.operands[1]
    else:
        contracts = node.op == "dot_general"
    return node.operands if contracts else ()


def readouts(graph: Graph) -> list[tuple[Node, Parts | None]]:
    """(logits of a head without the bias that is added last, the parameters in which they are homogeneous) of each
    head: the output factor multiplies neither biases nor what becomes of logits, as in a soft cap. A cosine needs
    no factor, and has no parameters.

        h @ head + bias                 # [(h @ head, {"head": None})]
    """
    heads = _heads(graph, graph.output)
    places = [(head, {}) if cosine(graph, head) else _before_caps(graph, head) for head in heads]
    if len(heads) > 1 and any(parts is None for _, parts in places):
        return [(graph.output, homogeneous_in(graph, graph.output))]
    return places


def cosine(graph: Graph, node: Node) -> tuple[Node, ...]:
    """The two factors of a value that is a product of vectors of norm 1, up to numbers that multiply it; nothing
    for other values."""
    while node.op in ("mul", "div", "add", "sub", *COPIES):
        fed = graph.activations(node)
        if len(fed) != 1:
            return ()
        (node,) = fed
    factors = node.operands if node.op == "dot_general" else factors_of(graph, node)
    if len(factors) != 2 or not is_cosine(graph, *factors):
        return ()
    return tuple(_unscaled(graph, factor) for factor in factors)


def is_cosine(graph: Graph, left: Node, right: Node) -> bool:
    """Whether two factors of a product are vectors of norm 1, up to what multiplies all entries of each."""
    return _has_unit_norm(_unscaled(graph, left)) and _has_unit_norm(_unscaled(graph, right))


def one_has_unit_norm(left: Node, right: Node) -> bool:
    """Whether one factor of a product is a vector of norm 1, and the other is not."""
    return _has_unit_norm(as_stored(left)) != _has_unit_norm(as_stored(right))


def _unscaled(graph: Graph, node: Node) -> Node:
    """Vectors without the numbers that multiply them: those of the program, and parameters of each vector."""
    while node.op in ("mul", "div", "convert_element_type", "transpose"):
        vectors = []
        for operand in node.operands:
            axis = -1 if node in graph.fed and operand not in graph.fed else None
            numbers = 1 * np.atleast_1d(operand.value)  # of a mask, 0 and 1
            if np.ptp(numbers, axis).any():
                vectors.append(operand)
        if len(vectors) != 1:
            break
        (node,) = vectors
    return node


def _heads(graph: Graph, node: Node) -> list[Node]:
    operands = graph.activations(node)
    if node.op in ("add", "sub"):  # a network that predicts noise returns x - network(x)
        operands = [operand for operand in operands if operand.paths]
    if node.op == "concatenate" and operands:
        return [head for operand in operands for head in _heads(graph, operand)]
    chosen = operands == [node.operands[0]] and node.op in ("slice", "dynamic_slice", "gather")  # as in logits[:, 0]
    if chosen or (len(operands) == 1 and node.op in ("add", "sub", *COPIES)):
        return _heads(graph, operands[0])
    return [node]


def _before_caps(graph: Graph, node: Node) -> tuple[Node, Parts | None]:
    """(logits, the parameters in which they are homogeneous), None if there are none.

    The model may return a function of its logits, such as a soft cap or log probabilities: then the logits are the
    value that this function is applied to. A square or a sum of features is no such function."""
    parts, before = homogeneous_in(graph, node), source(graph, node)
    while parts is None and before is not None and np.size(before.value) == np.size(node.value):
        if _is_power(graph, node, before):
            break
        node, parts, before = before, homogeneous_in(graph, before), source(graph, before)
    return node, parts


def _is_power(graph: Graph, node: Node, value: Node) -> bool:
    """Whether a value is proportional to a power of another one, but not to the other one itself."""
    values = graph.changed({value: 2 * value.value}, graph.ancestors(node))
    return any(np.array_equal(values.get(node, node.value), 2.0**k * node.value) for k in (-1, 0, 2, 3, 4))


def source(graph: Graph, node: Node) -> Node | None:
    """The last value that all of a value is computed from without weights and products, and without statistics of the
    inputs (RevIN); None if there is none.

        tanh(h @ head)                  # h @ head, whose source is None
        h / sqrt(mean(h * h))           # h
    """
    values = {node}
    while True:
        last = max(values, key=lambda value: value.order)
        if last.op in PRODUCTS:
            return None
        values = (values - {last}).union(operand for operand in graph.activations(last) if operand.paths)
        if len(values) < 2:
            return next(iter(values), None)


def last_layer(graph: Graph, node: Node) -> Node | None:
    """The last operation that applies weights to activations, going back from a value."""
    todo, visited = [node], set[Node]()
    while todo:
        node = todo.pop(0)
        fed = graph.activations(node)
        if graph.weighs(node) and len(fed) == 1:
            return node
        todo += [operand for operand in fed if operand not in visited]
        visited.update(fed)
    return None


def weights(graph: Graph) -> frozenset[str]:
    """The paths of the parameters that products alone apply to activations: matrices and kernels, but no norms, no
    biases and no embeddings, whose rows are looked up."""
    products = map(graph.parameters_of, _layers(graph))
    tables = (graph.parameters_of(node) for node in graph.nodes if node.op == "gather" and node in graph.fed)
    return union(products) - union(tables)


def _layers(graph: Graph) -> Iterator[Node]:
    """The products that apply weights to activations, or to what a network makes of parameters alone."""
    for node in graph.nodes:
        if graph.weighs(node) or (node.op in PRODUCTS and all(operand.paths for operand in node.operands)):
            yield node


def normalized(graph: Graph, paths: Collection[str]) -> frozenset[str]:
    """Of these weights those whose size does not matter to the logits, since a norm takes it away.

        norm(relu(x @ embed @ up)) @ down @ head        # {"embed", "up"}

    Sizes are large in the test, so that biases and the curvature of activation functions (GELU) do not count."""
    result, allowed = set[str](), graph.ancestors(graph.output)
    for leaf in (node for node in graph.nodes if node.path in paths):
        norms = (node for node in graph.descendants([leaf]) if graph.normed(node))
        inputs = {operand for node in norms for operand in graph.activations(node)}
        if not inputs:
            continue
        values, doubled = (graph.changed({leaf: size * leaf.value}, allowed) for size in (LARGE, 2 * LARGE))
        # What goes into the norm grows: it is no norm of weights, and behind no gate, which is 0 or 1 then.
        if _grows(graph.output, 1, values, doubled) and any(_grows(node, 2, values, doubled) for node in inputs):
            result.add(leaf.path)
    return frozenset(result)


def _grows(node: Node, factor: float, before: Mapping[Node, Any], after: Mapping[Node, Any]) -> bool:
    """Whether a value grows by a factor, up to 1%, between two changes, {value that changes: its new number}."""
    old, new = (np.asarray(numbers.get(node, node.value)) for numbers in (before, after))
    return bool(np.linalg.norm(new - factor * old) < 0.01 * np.linalg.norm(factor * old))


def _has_unit_norm(node: Node) -> bool:
    norms = (np.linalg.norm(np.asarray(node.value), axis=a) for a, size in enumerate(node.shape) if size > 1)
    return any(np.allclose(norm, 1, rtol=1e-3) for norm in norms)
