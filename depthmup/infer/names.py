"""Names of parameters decide where shapes do not. Only conventions that several libraries share are here."""

from __future__ import annotations

import re

from depthmup.infer.paths import parent_and_name

# Vectors of any shape: an attention bias is (heads, head_dim), a norm's scale may be (width, 1).
_VECTOR = re.compile(r"(\w*_)?(bias|scale|offset|gain|gamma|beta)(_\w+)?|b(_?[a-z]{1,3})?")
_BIAS = re.compile(r"(\w*_)?bias(_\w+)?|b(_?[a-z]{1,3})?")
_MATRIX = re.compile(r"w\w*|W\w*|.*(kernel|weight|proj|router|gate|down|up|out|emb|lora|to_|head|fc|dense|linear).*")
_KERNEL = re.compile(r"(kernel|weights?|[wW])(\w*)")  # and `bias`, `b` with the same ending is its bias
_WEIGHT = re.compile(r"weights?(_\w+)?")
# Projections of a shortcut, which are outside the branch wherever they stand.
_SHORTCUT = re.compile(
    r"shortcut|downsample|skip_?(conv|proj|connection)|(conv|norm|res|residual)_(proj|skip)|res_conv"
)
# A list of kernels of several experts, and the products of an einsum: their first axis is no receptive field.
_EXPERTS = re.compile(r"expert|moe", re.IGNORECASE)
_EINSUM = re.compile(r"einsum")
_CONVOLUTION = re.compile(r"conv", re.IGNORECASE)
_TO_HEADS = re.compile(r"(to_?)?(q|k|v|qk|kv|qkv|query|key|value)(_proj|_kernel|_einsum|_weight)?")
_FROM_HEADS = re.compile(r"(to_?|attn_)?(o|out|output)(_proj|_kernel|_weight)?")
_EMBEDDING = re.compile(r"emb|tok|wte|wpe|pos|vocab")
_FIRST = re.compile(r"(read_?)?in(put)?s?(_proj)?|stem|emb|tok|wte|wpe|pos|patch")
_LAST = re.compile(r"(read_?|fc_?)?out(put)?s?(_proj)?$|head|lm_head|unembed|logits|classifier")
# The state matrix of a state-space layer and its time step, diagonal in each channel; and what maps to the state (B)
# and from it (C), which multiply from the left.
_STATE = re.compile(
    r"(log_)?A_?(log|re|im|real|imag)|(log_)?A(_real|_imag)?|Lambda(_re|_im)?|(log_|inv_)?(dt|step)(_bias)?"
)
_TO_STATE = re.compile(r"[BC](_?(re|im|real|imag|tilde))?\d?")


def last(path: str) -> str:
    return parent_and_name(path)[1]


def is_vector(path: str) -> bool:
    return _VECTOR.fullmatch(last(path).rstrip("_0123456789")) is not None


def is_bias(path: str) -> bool:
    return _BIAS.fullmatch(last(path)) is not None


def is_matrix(path: str) -> bool:
    return _MATRIX.fullmatch(last(path)) is not None


def is_library_kernel(path: str) -> bool:
    """Whether it has the name that layers of Flax, Haiku, Equinox or PyTorch give to their matrix."""
    return last(path) in ("kernel", "w", "weight")


def is_weight(path: str) -> bool:
    """Whether it has a name that Equinox and PyTorch (layout (out, in)) give to matrices and Flax does not."""
    return _WEIGHT.fullmatch(last(path)) is not None


def biases_of(path: str) -> list[str]:
    """The paths at which the bias of this kernel would stand."""
    _, name = parent_and_name(path)
    kernel = _KERNEL.fullmatch(name)
    return [path[: len(path) - len(name)] + bias + kernel[2] for bias in ("bias", "b", "biases")] if kernel else []


def is_shortcut(path: str) -> bool:
    return _SHORTCUT.search(path) is not None


def is_expert(path: str) -> bool:
    return _EXPERTS.search(path) is not None


def is_einsum(path: str) -> bool:
    return _EINSUM.search(path) is not None


def is_convolution(path: str) -> bool:
    return _CONVOLUTION.search(path) is not None


def head_side(path: str) -> str | None:
    """Whether a projection's heads are its outputs ("o": query, key, value), its inputs ("i"), or None if unknown."""
    for part in reversed(re.split(r"[/.]", path)[-2:]):
        if _TO_HEADS.fullmatch(part):
            return "o"
        if _FROM_HEADS.fullmatch(part):
            return "i"
    return None


def is_embedding(path: str) -> bool:
    return any(_EMBEDDING.match(part) for part in re.split(r"[/._]", path.lower()))


def is_first(path: str) -> bool:
    return any(_FIRST.match(part) for part in re.split(r"[/.]", path.lower()))


def is_last(path: str) -> bool:
    return any(_LAST.match(part) for part in re.split(r"[/.]", path.lower()))


def is_state(path: str) -> bool:
    return _STATE.fullmatch(last(path)) is not None


def is_to_state(path: str) -> bool:
    return _TO_STATE.fullmatch(last(path)) is not None
