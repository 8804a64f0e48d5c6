"""Other packages' factors of every parameter against ours.

Each rule is restated from the code of the commit that its section names, over names and shapes of a model of that
package; ours follow from the same shapes by `infer_specs`. Where we differ on purpose, the test has the difference and
says why. docs/rules.md sections 1 to 4 have these rules in words.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup as dm
from depthmup.rules.optim import families_of
from tests.foreign.roles import by_path

BASE, WIDTH, M = 8, 32, 4  # base width, width, their ratio
BASE_L, DEPTH, M_L = 1, 3, 3  # base depth, depth, their ratio
VOCABULARY, CONTEXT, HEADS = 50, 12, 2


def tree_of(shapes):
    return {name: jnp.zeros(shape) for name, shape in shapes.items()}


def specs_of(model, width=WIDTH, depth=DEPTH, **options):
    """{name: ParamSpec} of a model with weights (out, in), as PyTorch's are, and embeddings (vocabulary, width)."""
    embeddings = {name: "input" for name in model(width, depth) if re.search(r"embed\w*\.(weight|embedding)$", name)}
    options["overrides"] = embeddings | options.get("overrides", {})
    specs = dm.infer_specs(lambda w, d: tree_of(model(w, d)), width=width, depth=depth, layout="out_in", **options)
    assert by_path(specs) == specs
    return specs


def parameterization(name, **options):
    return dm.parameterization(name, base_width=BASE, base_depth=BASE_L, **options)


def factors_of(p, specs, family):
    """{name: its factors}; family: a name, or a tree of names."""
    families = dict.fromkeys(specs, family) if isinstance(family, str) else family
    return {name: spec.factors(p, families[name]) for name, spec in specs.items()}


def assert_equal(factors, published):
    assert factors.keys() == published.keys()
    for name, value in factors.items():
        assert value == pytest.approx(published[name], rel=1e-12), name


def norms(width, *names):
    return {f"{name}.{kind}": (width,) for name in names for kind in ("weight", "bias")}


# --- microsoft/mup 1981497: mup/optim.py, init.py, infshape.py, layer.py, shape.py; the models of examples/


def mlp(width, depth):
    del depth
    return {"fc_1.weight": (width, 3072), "fc_2.weight": (width, width), "fc_3.weight": (10, width)}


def resnet(width, depth):
    """Basic blocks in four stages, as ResNet18 at depth 2."""
    shapes = {"conv1.weight": (width, 3, 3, 3), **norms(width, "bn1")}
    inputs = width
    for stage in range(4):
        planes = width * 2**stage
        for i in range(depth):
            block = f"layer{stage + 1}.{i}"
            shapes[f"{block}.conv1.weight"] = (planes, inputs, 3, 3)
            shapes[f"{block}.conv2.weight"] = (planes, planes, 3, 3)
            shapes |= norms(planes, f"{block}.bn1", f"{block}.bn2")
            if inputs != planes:
                shapes[f"{block}.shortcut.0.weight"] = (planes, inputs, 1, 1)
                shapes |= norms(planes, f"{block}.shortcut.1")
            inputs = planes
    return shapes | {"linear.weight": (10, inputs), "linear.bias": (10,)}


def transformer(width, depth, tied=False):
    """Post-LN; --bias but where the readout is tied, whose bias has the size of the wrong fan there."""
    shapes = {"encoder.weight": (VOCABULARY, width)}
    for i in range(depth):
        layer = f"transformer_encoder.layers.{i}"
        shapes |= {
            f"{layer}.self_attn.in_proj_weight": (3 * width, width),
            f"{layer}.self_attn.out_proj.weight": (width, width),
            f"{layer}.linear1.weight": (2 * width, width),
            f"{layer}.linear2.weight": (width, 2 * width),
            **norms(width, f"{layer}.norm1", f"{layer}.norm2"),
        }
        if not tied:
            shapes |= {
                f"{layer}.self_attn.in_proj_bias": (3 * width,),
                f"{layer}.self_attn.bias_k": (1, 1, width),
                f"{layer}.self_attn.bias_v": (1, 1, width),
                f"{layer}.self_attn.out_proj.bias": (width,),
                f"{layer}.linear1.bias": (2 * width,),
                f"{layer}.linear2.bias": (width,),
            }
    return shapes if tied else shapes | {"decoder.weight": (VOCABULARY, width), "decoder.bias": (VOCABULARY,)}


EMBEDDING = {"overrides": {"encoder.weight": "input"}}  # which its name does not tell
EXAMPLES = {
    "MLP": (mlp, {"residual": False}),
    "ResNet": (resnet, {"overrides": {"layer*": "branch", "layer*.shortcut.*": "trunk"}}),
    "Transformer": (transformer, EMBEDDING),
    "tied Transformer": (functools.partial(transformer, tied=True), EMBEDDING),
}


def growth(shape, base):
    """The ratios of the axes that grow, outputs before inputs: the infinite dimensions of an infshape."""
    return [n / b for n, b in zip(shape, base, strict=True) if n != b]


def mup_rate(shape, base, family):
    """The learning rate's factor of MuAdam and MuAdamW ("adam"), or of MuSGD."""
    grown = growth(shape, base)
    if len(grown) == 2:
        m_out, m_in = grown
        return 1 / m_in if family == "adam" else m_out / m_in
    return grown[0] if grown and family == "sgd" else 1.0


def shapes_of(example):
    model, options = EXAMPLES[example]
    return model(WIDTH, DEPTH), model(BASE, DEPTH), specs_of(model, **options)


@pytest.mark.parametrize("family", ["adam", "sgd"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_microsoft_mup_rates(example, family):
    """MuAdam, MuAdamW and MuSGD: learning rates, and decays that are divided by the same factor."""
    shapes, base, specs = shapes_of(example)
    published = {name: mup_rate(shape, base[name], family) for name, shape in shapes.items()}
    factors = factors_of(parameterization("mup"), specs, family)
    assert_equal({name: f.lr for name, f in factors.items()}, published)
    assert_equal({name: f.decay for name, f in factors.items()}, {name: 1 / lr for name, lr in published.items()})


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_microsoft_mup_decay_of_a_step(optimizer, decoupled, x64):
    """With decoupled_wd=True their decay has no factor, so that it follows the learning rate: our decay="coupled"."""
    shapes, base, specs = shapes_of("Transformer")
    rates = {name: mup_rate(shape, base[name], optimizer.removesuffix("w")) for name, shape in shapes.items()}
    published = {name: lr * (1.0 if decoupled else 1 / lr) for name, lr in rates.items()}
    decay = "coupled" if decoupled else "uncoupled"
    tx = dm.optimizer(parameterization("mup"), specs, optimizer, 1.0, weight_decay=1.0, decay=decay)
    weights = {name: jnp.ones(shape) for name, shape in shapes.items()}
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, weights), tx.init(weights), weights)
    assert_equal({name: -float(update.ravel()[0]) for name, update in updates.items()}, published)


def mup_eps(spec, m):
    """Ours. The package has one eps for all, beside gradients that fall with width: with a large eps the slopes of a
    coordinate check are not 0 then (docs/rules.md section 0, "eps per leaf")."""
    return 1.0 if spec.role in ("scalar", "fixed") else 1 / m


@pytest.mark.parametrize("example", EXAMPLES)
def test_microsoft_mup_never_scales_eps(example):
    _, _, specs = shapes_of(example)
    factors = factors_of(parameterization("mup"), specs, "adam")
    assert_equal({name: f.eps for name, f in factors.items()}, {name: mup_eps(spec, M) for name, spec in specs.items()})


def mup_std(init, shape, base):
    """The standard deviation of mup.init's functions, over that at the base width."""

    def fans(shape):
        receptive = np.prod(shape[2:])
        return {"fan_in": shape[1] * receptive, "fan_out": shape[0] * receptive}

    grown, before, after = growth(shape, base), fans(base), fans(shape)
    m_out, m_in = (after[fan] / before[fan] for fan in ("fan_out", "fan_in"))
    two = len(grown) == 2
    if init == "normal":
        return m_in**-0.5 if two else 1.0
    if init == "xavier_normal":
        total = sum(after.values()) / sum(before.values())
        return total**-0.5 * total**0.5 * (m_in**-0.5 if two else 1.0)
    m_fan = after[init] / before[init]  # kaiming_normal with mode fan_in or fan_out
    adjusted = ((m_out / m_in) ** 0.5 if init == "fan_out" else 1.0) if two else m_fan**0.5
    return m_fan**-0.5 * adjusted


@pytest.mark.parametrize("init", ["normal", "xavier_normal", "fan_in", "fan_out"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_microsoft_mup_init(example, init):
    """Every function gives our row "init variance": 1/fan_in, and constant with one growing axis."""
    shapes, base, specs = shapes_of(example)
    model, options = EXAMPLES[example]
    before = specs_of(model, width=BASE, **options)
    matrices = [name for name, shape in shapes.items() if len(shape) in (2, 4)]
    stds = {
        name: specs[name].factors(parameterization("mup"), "sgd").init
        * (before[name].fan_in / specs[name].fan_in) ** 0.5
        for name in matrices
    }
    assert_equal(stds, {name: mup_std(init, shapes[name], base[name]) for name in matrices})


READOUTS = {"MLP": "fc_3", "ResNet": "linear", "Transformer": "decoder", "tied Transformer": "encoder"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_microsoft_mup_rescaling(example):
    """`set_base_shapes` multiplies what PyTorch's default init made: a `MuReadout` by sqrt(m), and the bias of every
    linear layer by sqrt(m) of its fan-in, since PyTorch's are of the order fan_in^-1/2. We do so with the weight of the
    readout alone: in JAX biases start at 0 or at a constant. A `MuSharedReadout` is the embedding, which starts as
    N(0, 1) at every width, and should stay so."""
    shapes, base, specs = shapes_of(example)
    factors = factors_of(parameterization("mup"), specs, "sgd")
    for name in shapes:
        layer, _, kind = name.rpartition(".")
        weight = f"{layer}.weight"
        linear = kind == "bias" and len(shapes.get(weight, ())) == 2
        published = 1.0
        if linear or layer == READOUTS[example]:
            published = (shapes[weight][1] / base[weight][1]) ** 0.5
        differ = linear or (name == "encoder.weight" and example == "tied Transformer")
        assert factors[name].init == pytest.approx(published / (M**0.5 if differ else 1.0), rel=1e-12), name


@pytest.mark.parametrize("attn_mult", [1, 8])
def test_microsoft_mup_forward(attn_mult):
    """A readout's input is divided by m, attention logits in the Transformer by head_dim / sqrt(attn_mult)."""
    p = parameterization("mup", base_head_dim=attn_mult)
    forward = p.forward_factors(width=WIDTH, depth=DEPTH, head_dim=WIDTH // HEADS)
    assert forward.output == pytest.approx(BASE / WIDTH, rel=1e-12)
    assert forward.attention == pytest.approx(attn_mult**0.5 / (WIDTH // HEADS), rel=1e-12)
    assert forward.branch == 1


# --- NVIDIA/Megatron-LM d98e8a64: megatron/core/optimizer/__init__.py (get_mup_config_overrides), with the tests
# tests/unit_tests/transformer/test_mup.py; the attributes of parameters in models/common/language_module; inits and
# forward factors in transformer/transformer_config.py, models/gpt/gpt_model.py


def megatron(width, depth, tied=False):
    shapes = {
        "embedding.word_embeddings.weight": (VOCABULARY, width),
        "embedding.position_embeddings.weight": (CONTEXT, width),
    }
    for i in range(depth):
        layer = f"decoder.layers.{i}"
        shapes |= norms(width, f"{layer}.input_layernorm", f"{layer}.pre_mlp_layernorm")
        for name, outputs, inputs in (
            ("self_attention.linear_qkv", 3 * width, width),
            ("self_attention.linear_proj", width, width),
            ("mlp.linear_fc1", 4 * width, width),
            ("mlp.linear_fc2", width, 4 * width),
        ):
            shapes |= {f"{layer}.{name}.weight": (outputs, inputs), f"{layer}.{name}.bias": (outputs,)}
    shapes |= norms(width, "decoder.final_layernorm")
    return shapes if tied else shapes | {"output_layer.weight": (VOCABULARY, width)}


def is_vector_like(name, shape):
    """Embeddings, the output layer (which has an attribute of its own where it is not tied), and what is no matrix."""
    return name.startswith(("embedding.", "output_layer.")) or len(shape) == 1


def megatron_overrides(name, shape, optimizer, m):
    """(LR, eps) over the base values. Muon's own matrices and, among the others, what is vector-like have no override;
    nothing else is left in a GPT."""
    vector_like = is_vector_like(name, shape)
    if optimizer == "adam":
        return (1.0, 1.0) if vector_like else (1 / m, 1 / m)
    if optimizer == "sgd":
        return (m, 1.0) if vector_like else (1.0, 1.0)
    return 1.0, 1.0


def test_megatron_unit_tests():
    """The numbers of its unit tests: base LR 1e-3, width multiplier 4."""
    hidden, bias, embedding = ("decoder.x.weight", (10, 10)), ("decoder.x.bias", (10,)), ("embedding.x", (10, 10))
    output = ("output_layer.weight", (10, 10))
    rates = {"adam": (2.5e-4, 1e-3, 1e-3, 1e-3), "sgd": (1e-3, 4e-3, 4e-3, 4e-3), "muon": (1e-3, 1e-3, 1e-3, 1e-3)}
    for optimizer, expected in rates.items():
        rows = [megatron_overrides(*parameter, optimizer, 4.0) for parameter in (hidden, bias, embedding, output)]
        assert [1e-3 * lr for lr, _ in rows] == pytest.approx(expected, rel=1e-12)
        assert [eps for _, eps in rows] == ([0.25, 1, 1, 1] if optimizer == "adam" else [1] * 4)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "muon"])
def test_megatron_rates(optimizer, tied):
    model = functools.partial(megatron, tied=tied)
    specs, shapes = specs_of(model), model(WIDTH, DEPTH)
    factors = factors_of(parameterization("mup"), specs, families_of(optimizer, specs))
    published = {name: megatron_overrides(name, shape, optimizer, M) for name, shape in shapes.items()}
    assert_equal({name: f.lr for name, f in factors.items()}, {name: lr for name, (lr, _) in published.items()})
    if optimizer == "sgd":
        return
    # Vector-like parameters keep their eps there. Ours falls with width, since all gradients before the output factor
    # 1/m contain it. Muon's eps needs no factor where both fans grow.
    vector_like = {name: is_vector_like(name, shape) for name, shape in shapes.items()}
    differ = {name: M if vector_like[name] else 1.0 for name in shapes}
    assert_equal({name: published[name][1] / f.eps for name, f in factors.items()}, differ)
    # Its decay has no factor and follows the learning rate, which is our decay="coupled"; ours by default does not.
    assert_equal({name: f.lr * f.decay for name, f in factors.items()}, dict.fromkeys(shapes, 1.0))


# Emerging-Optimizers (NVIDIA-NeMo, 033065f9: muon.py, get_muon_scale_factor): what it multiplies orthogonal updates by.
MUON_SCALES = {
    "unit_rms_norm": lambda fan_out, fan_in: (fan_out / fan_in) ** 0.5,
    "shape_scaling": lambda fan_out, fan_in: max(1, fan_out / fan_in) ** 0.5,
    "spectral": lambda fan_out, fan_in: max(fan_out, fan_in) ** 0.5,
}


@pytest.mark.parametrize("mode", MUON_SCALES)
def test_megatron_muon_scales(mode):
    """Without an override, unit_rms_norm and shape_scaling are muP's rule. spectral, of which it warns under muP, grows
    with width; `dm.wrap` divides by such a factor (tests/test_wrap_optimizer.py)."""
    specs = specs_of(megatron)
    hidden = [spec for spec in specs.values() if spec.role == "hidden"]
    for spec in hidden:
        scale = MUON_SCALES[mode]
        megatron_lr = scale(spec.fan_out, spec.fan_in) / scale(spec.fan_out / M, spec.fan_in / M)
        depthmup_lr = spec.factors(parameterization("mup"), "muon").lr
        assert megatron_lr == pytest.approx(depthmup_lr * (M**0.5 if mode == "spectral" else 1), rel=1e-12)
    assert len(hidden) == 4 * DEPTH


@pytest.mark.parametrize("head_dim", [None, 4])
def test_megatron_init_and_forward(head_dim):
    """Hidden weights start with sigma / sqrt(m), others and the output layer with sigma; logits are times 1/m, those of
    attention sqrt(mup_base_head_dim) / head_dim (1 by default). The last layers of branches start with another
    1/sqrt(2 L), which is no depth rule of ours: at the base depth it is the user's own sigma."""
    specs, base = specs_of(megatron), specs_of(megatron, width=BASE)
    for name, spec in specs.items():
        if len(spec.shape) == 2:
            published = 1.0 if is_vector_like(name, spec.shape) else M**-0.5
            std = spec.factors(parameterization("mup"), "adam").init * (base[name].fan_in / spec.fan_in) ** 0.5
            assert std == pytest.approx(published, rel=1e-12), name
    p = parameterization("mup", base_head_dim=head_dim or 1)
    forward = p.forward_factors(width=WIDTH, depth=DEPTH, head_dim=16)
    assert forward.output == pytest.approx(1 / M, rel=1e-12)
    assert forward.attention == pytest.approx((head_dim or 1) ** 0.5 / 16, rel=1e-12)


# --- EleutherAI/nanoGPT-mup 6f8bc3b (branch completep): model.py


def nanogpt(width, depth):
    shapes = {"transformer.wte.weight": (VOCABULARY, width), "transformer.wpe.weight": (CONTEXT, width)}
    for i in range(depth):
        block = f"transformer.h.{i}"
        shapes |= norms(width, f"{block}.ln_1", f"{block}.ln_2")
        for name, outputs, inputs in (
            ("attn.c_attn", 3 * width, width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", 4 * width, width),
            ("mlp.c_proj", width, 4 * width),
        ):
            shapes |= {f"{block}.{name}.weight": (outputs, inputs), f"{block}.{name}.bias": (outputs,)}
    return shapes | norms(width, "transformer.ln_f")


def nanogpt_init(width, depth, key):
    """Hidden weights with .02 / sqrt(m), embeddings with .02; norms start at 1, biases at 0."""

    def leaf(name, shape, key):
        if len(shape) == 1:
            return jnp.ones(shape) if name.endswith("weight") else jnp.zeros(shape)
        std = 0.02 if name.endswith(("wte.weight", "wpe.weight")) else 0.02 * (BASE / width) ** 0.5
        return std * jax.random.normal(key, shape)

    shapes = nanogpt(width, depth)
    keys = jax.random.split(key, len(shapes))
    return {name: leaf(name, shape, key) for (name, shape), key in zip(shapes.items(), keys, strict=True)}


def nanogpt_logits(params, tokens, branch, output, attention):
    """tokens (batch, time) -> logits (batch, time, vocabulary), tied to the embedding."""

    def linear(name, x):
        return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]

    def norm(name, x):
        x = x - x.mean(-1, keepdims=True)
        return (
            x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * params[f"{name}.weight"]
            + params[f"{name}.bias"]
        )

    def attend(name, x):
        q, k, v = (y.reshape(*y.shape[:2], HEADS, -1) for y in jnp.split(linear(f"{name}.c_attn", x), 3, axis=-1))
        scores = attention * jnp.einsum("bthd,bshd->bhts", q, k)
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        y = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
        return linear(f"{name}.c_proj", y.reshape(x.shape))

    embedding = params["transformer.wte.weight"]
    x = embedding[tokens] + params["transformer.wpe.weight"][: tokens.shape[1]]
    for i in range(sum(name.endswith("ln_1.weight") for name in params)):
        block = f"transformer.h.{i}"
        x = x + branch * attend(f"{block}.attn", norm(f"{block}.ln_1", x))
        hidden = jax.nn.gelu(linear(f"{block}.mlp.c_fc", norm(f"{block}.ln_2", x)))
        x = x + branch * linear(f"{block}.mlp.c_proj", hidden)
    return output * (norm("transformer.ln_f", x) @ embedding.T)


TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, (3, CONTEXT))


def nanogpt_setup(alpha):
    """The model as a user has it: no factors, attention logits over sqrt(head_dim). Theirs are over head_dim."""

    def call(params, tokens):
        head_dim = params["transformer.ln_f.bias"].shape[0] // HEADS
        return nanogpt_logits(params, tokens, 1.0, 1.0, head_dim**-0.5)

    return dm.setup(
        "completep", nanogpt_init, TOKENS, width=WIDTH, depth=DEPTH, base=(BASE, BASE_L), call=call, layout="out_in",
        alpha=alpha, base_head_dim=1, fan_in_init=False,
    )  # fmt: skip


def completep_group(name, alpha, m=M, m_l=M_L):
    """(LR, weight decay) of a parameter's group over the base values."""
    depth = m_l ** (alpha - 1)
    if name.endswith(("wte.weight", "wpe.weight")):
        return 1.0, 1.0
    if name.startswith("transformer.ln_f"):
        return 1.0, 0.0
    if ".ln_" in name or name.endswith(".bias"):
        return depth, 0.0
    return depth / m, m


def completep_eps(alpha, m=M, m_l=M_L):
    """The eps of all groups over the base value."""
    return m_l**-alpha / m


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_nanogpt_groups(alpha):
    """LR, decay and eps of every group, from the unmodified model with tied embeddings: of the weights in its equation
    (the form "mup"), and of the weights that `setup` stores times the factors, by the exact rescaling rule."""
    m = nanogpt_setup(alpha)
    published = {name: completep_group(name, alpha) for name in m.specs}
    p = m.parameterization.in_form("mup")
    factors = factors_of(p, m.specs, "adam")
    assert_equal({name: f.lr for name, f in factors.items()}, {name: lr for name, (lr, _) in published.items()})
    decayed = [name for name, (_, decay) in published.items() if decay]
    assert set(decayed) == {name for name, shape in nanogpt(WIDTH, DEPTH).items() if len(shape) == 2}
    assert_equal({name: factors[name].decay for name in decayed}, {name: published[name][1] for name in decayed})
    others = published.keys() - decayed  # which have no decay there; with one, ours has no factor
    assert {factors[name].decay for name in others} == {1.0}
    # Gradients outside the blocks do not fall with depth, so that our eps there has no power of it.
    inside = {name: name.startswith("transformer.h.") for name in m.specs}
    assert_equal(
        {name: completep_eps(alpha) / f.eps for name, f in factors.items()},
        {name: 1.0 if inside[name] else M_L**-alpha for name in m.specs},
    )
    assert m.parameterization.form == "absorbed"
    for name, spec in m.specs.items():
        stored = spec.factors(m.parameterization, "adam")
        times = stored.init / factors[name].init  # an array where only the queries are stored times a factor
        np.testing.assert_allclose(stored.lr, published[name][0] * times, rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(stored.eps, factors[name].eps / times, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_nanogpt_forward(alpha):
    p = nanogpt_setup(alpha).parameterization.in_form("mup")
    forward = p.forward_factors(width=WIDTH, depth=DEPTH, head_dim=WIDTH // HEADS)
    assert forward == pytest.approx((M_L**-alpha, 1 / M, HEADS / WIDTH), rel=1e-12)
    base = p.forward_factors(width=BASE, depth=BASE_L, head_dim=BASE // HEADS)
    assert base == pytest.approx((1, 1, HEADS / BASE), rel=1e-12)


def test_nanogpt_training(x64):
    """Six steps of AdamW with its groups and its factors in the forward pass, against `setup` of the unmodified model.
    eps is so small that the one difference does not show."""
    alpha, rate, decay, eps = 1.0, 1e-2, 0.1, 1e-30
    m = nanogpt_setup(alpha)
    p, stored = m.parameterization, m.init(jax.random.key(1))
    params, _ = dm.convert(p, m.specs, p.in_form("mup"), m.specs, stored, optimizer=None)
    forward = (M_L**-alpha, 1 / M, HEADS / WIDTH)
    groups = {name: completep_group(name, alpha) for name in params}
    adam = optax.scale_by_adam(b2=0.95, eps=eps * completep_eps(alpha))

    def update(grads, state, params):
        directions, state = adam.update(grads, state)
        steps = {name: -rate * lr * (directions[name] + decay * wd * params[name]) for name, (lr, wd) in groups.items()}
        return steps, state

    published_tx = optax.GradientTransformation(adam.init, update)
    matrices = {name: len(spec.shape) == 2 for name, spec in m.specs.items()}
    depthmup_tx = m.optimizer("adamw", rate, b2=0.95, eps=eps, weight_decay=decay, mask=matrices)

    def losses(logits, tx, params):
        def loss(params):
            return optax.softmax_cross_entropy_with_integer_labels(logits(params), np.roll(TOKENS, -1, 1)).mean()

        def step(carry, _):
            params, state = carry
            value, grads = jax.value_and_grad(loss)(params)
            updates, state = tx.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), value

        return jax.lax.scan(step, (params, tx.init(params)), length=6)[1]

    expected = losses(lambda params: nanogpt_logits(params, TOKENS, *forward), published_tx, params)
    np.testing.assert_allclose(
        losses(lambda params: m.apply(params, TOKENS), depthmup_tx, stored), expected, rtol=1e-11
    )
    assert expected[-1] < expected[0] - 0.3


# --- graphcore-research/unit-scaling a7b5b3c: unit_scaling/optim.py, functional.py, core/functional.py, _modules.py


def unit_scaled(width, depth):
    """TransformerDecoder, with the norms' weights that it can have."""
    shapes = {"embedding.weight": (VOCABULARY, width)}
    for i in range(depth):
        shapes |= {
            f"layers.{i}.mhsa_norm.weight": (width,),
            f"layers.{i}.mhsa.linear_qkv.weight": (3 * width, width),
            f"layers.{i}.mhsa.linear_o.weight": (width, width),
            f"layers.{i}.mlp_norm.weight": (width,),
            f"layers.{i}.mlp.linear_1.weight": (4 * width, width),
            f"layers.{i}.mlp.linear_gate.weight": (4 * width, width),
            f"layers.{i}.mlp.linear_2.weight": (width, 4 * width),
        }
    return shapes | {"final_norm.weight": (width,), "projection.weight": (VOCABULARY, width)}


def unit_scaled_rate(name, shape, depth, family, constraint=None):
    """lr_scale_func_adam, and lr_scale_func_sgd with the readout's constraint. The fan-in of an embedding is the width
    there."""
    scale = depth**-0.5 if name.startswith("layers.") else 1.0
    if name == "projection.weight":
        return scale
    norm = len(shape) == 1
    if family == "sgd" and constraint == "to_output_scale":
        return scale * (shape[0] if norm else shape[1] ** 0.5)
    return scale if norm else scale * shape[1] ** -0.5


def tau(index, depth):
    """The weight of a branch beside the stream, before both are divided by (1 + tau^2)^1/2: with residual_mult and
    residual_attn_ratio 1, branches counted one by one."""
    return (depth + index) ** -0.5


def unit_scaled_gradient(name, shape, width, depth, constraint):
    """What its backward pass gives over the gradient, as a function of width and depth. Weights lack the fan_in^-1/2
    of their forward pass. The readout's own gradient lacks its 1/width, and without a constraint all before it do.
    Those in a branch lack its factor tau / (1 + tau^2)^1/2."""
    if name == "projection.weight":
        return width
    ratio = 1.0 if constraint else width
    if len(shape) == 2 and name != "embedding.weight":
        ratio *= shape[1] ** 0.5
    if name.startswith("layers."):
        index = 2 * int(name.split(".")[1]) + (".mlp" in name)
        ratio *= (1 + tau(index, depth) ** 2) ** 0.5 / tau(index, depth)
    return ratio


def at_the_base(name):
    """The parameter at the base depth at the same time l / L: that of its last layer for that of the last layer."""
    return name.replace(f"layers.{DEPTH - 1}.", f"layers.{BASE_L - 1}.")


@pytest.mark.parametrize(("family", "constraint"), [("adam", None), ("sgd", None), ("sgd", "to_output_scale")])
def test_unit_scaling_rates(family, constraint):
    """Over the base, `depth_mup` in the form N(0, 1): depth^-1/2 for Adam and SGD, and fan_in^-1/2 or ^1/2.

    An SGD learning rate acts on what the backward pass gives: it is ours over the ratio of this to the gradient. MLPs
    at the end of the stack are compared, since the ratio also depends on the time l / L, and is a constant at each.
    The embedding has another width^-1/2 there, as its "fan-in" is the width, a change to muP. We keep muP's rule."""
    specs, before = specs_of(unit_scaled), specs_of(unit_scaled, BASE, BASE_L)
    names = [name for name in specs if not name.startswith("layers.") or f".{DEPTH - 1}.mlp" in name]
    p = parameterization("depth_mup").in_form("canonical")

    def published_rate(name, width, depth):
        shape = unit_scaled(width, depth)[name]
        rate = unit_scaled_rate(name, shape, depth, family, constraint)
        return rate * (unit_scaled_gradient(name, shape, width, depth, constraint) if family == "sgd" else 1.0)

    def ratio(name):
        return published_rate(name, WIDTH, DEPTH) / published_rate(at_the_base(name), BASE, BASE_L)

    rates = {
        name: specs[name].factors(p, family).lr / before[at_the_base(name)].factors(p, family).lr for name in names
    }
    expected = {name: ratio(name) * (M**0.5 if name == "embedding.weight" else 1) for name in names}
    assert_equal(rates, expected)
    assert len(names) == 3 + 4


def test_unit_scaling_rate_of_depth():
    """lr_scale_for_depth, for Adam in every layer: weights and norms."""
    specs, p = specs_of(unit_scaled), parameterization("depth_mup")
    inside = {name: spec for name, spec in specs.items() if name.startswith("layers.")}
    width = {name: f.lr for name, f in factors_of(parameterization("mup"), inside, "adam").items()}
    rates = {name: f.lr / width[name] for name, f in factors_of(p, inside, "adam").items()}
    assert_equal(rates, dict.fromkeys(inside, DEPTH**-0.5 / BASE_L**-0.5))


@pytest.mark.parametrize("depth", [BASE_L, DEPTH])
def test_unit_scaling_branches(depth):
    """Without the divisions of the stream, every branch enters it with the factor depth^-1/2."""
    stream = np.cumprod([1.0, *((1 + tau(i, depth) ** 2) ** 0.5 for i in range(2 * depth))])
    branches = [tau(i, depth) * stream[i] for i in range(2 * depth)]
    factor = dm.parameterization("depth_mup").forward_factors(width=WIDTH, depth=depth).branch
    assert branches == pytest.approx([factor] * 2 * depth, rel=1e-12)


# --- modula-systems/modula ede2ba7: modula/abstract.py (CompositeModule.dualize), atom.py, compound.py (GPT)


def modula(width, depth):
    """The shapes of its list of weights, with names; fewer outputs than the width, as in the limit."""
    shapes = {"embed.embedding": (6, width)}
    for i in range(depth):
        shapes |= {f"blocks.{i}.{name}": (width, width) for name in ("q", "k", "v", "w")}
        shapes |= {f"blocks.{i}.up": (4 * width, width), f"blocks.{i}.down": (width, 4 * width)}
    return shapes | {"out": (6, width)}


def modula_update(name, shape, depth, mass=5.0):
    """The spectral norm of a step, for the embedding the root mean square of a row: the weight's share of the mass,
    over the sensitivity of what follows, which is 1 but for the branch factor 1/(2 depth) and the attention's 1/3."""
    if name == "embed.embedding":
        return 1 / (mass + 2)
    share = 1.0
    if name.startswith("blocks."):
        share = mass / (6 * depth) * (2 * depth) * (1 if name.endswith(("w", "up", "down")) else 3)
    fan_out, fan_in = shape
    return share / (mass + 2) * (fan_out / fan_in) ** 0.5


def modula_std(name, shape):
    """Of the initial weights: orthogonal times (fan_out / fan_in)^1/2; an embedding's rows have the norm width^1/2."""
    fan_out, fan_in = shape
    return 1.0 if name == "embed.embedding" else max(fan_out, fan_in) ** -0.5 * (fan_out / fan_in) ** 0.5


def test_modula():
    """Its dual updates are those of Muon under `depth_ode`, with the output factor inside the readout: no power of
    depth beside branches of 1/depth. The embedding's have entries of order 1, as Adam's. The stream has a factor of its
    own, 1 - 1/(2 depth), which we do not have: to the power 2 depth it is a constant."""
    before, base = modula(BASE, BASE_L), specs_of(modula, BASE, BASE_L)
    specs, p = specs_of(modula), parameterization("depth_ode")
    rates, stds = {}, {}
    for name, spec in specs.items():
        small = re.sub(r"blocks\.\d+", "blocks.0", name)
        factors = (p.in_form("absorbed") if spec.role == "readout" else p).leaf(
            role=spec.role,
            in_branch=spec.in_branch,
            width=WIDTH,
            depth=DEPTH,
            fan_in=spec.fan_in,
            family="adam" if spec.role == "input" else "muon",
        )
        update = modula_update(name, spec.shape, DEPTH) / modula_update(small, before[small], BASE_L)
        rates[name] = factors.lr, update
        std = modula_std(name, spec.shape) / modula_std(small, before[small])
        stds[name] = factors.init * (base[small].fan_in / spec.fan_in) ** 0.5, std
    for pairs in (rates, stds):
        assert_equal(*({name: pair[side] for name, pair in pairs.items()} for side in (0, 1)))
    branch = p.forward_factors(width=WIDTH, depth=DEPTH).branch
    assert branch == pytest.approx((1 / (2 * DEPTH)) / (1 / (2 * BASE_L)), rel=1e-12)


# --- marin-community/marin: experiments/scaling_law_sweeps/completed_cadamc.py 68a7b8ff and c_adamc.py 054a715f at one
# batch size and number of steps; the depth rule of experiments/grug/moe, pull request 5179


MARIN = {  # (LR, eps, decay) of all parameters, over the base width
    "completed_cadamc": (1 / M, 1 / M, M),
    "c_adamc": (1 / M, 1.0, 1.0),
}


@pytest.mark.parametrize("recipe", MARIN)
def test_marin_width(recipe):
    """One learning rate for all: muP's of hidden weights. Embeddings, norms and the readout would keep theirs, as ours
    do; c_adamc, whose decay and eps have no factor, has our decay="coupled"."""
    specs = specs_of(megatron)
    lr, eps, decay = MARIN[recipe]
    for name, factors in factors_of(parameterization("mup"), specs, "adam").items():
        hidden = specs[name].role == "hidden"
        assert lr == pytest.approx(factors.lr if hidden else factors.lr / M, rel=1e-12), name
        assert eps == pytest.approx(factors.eps * (M if recipe == "c_adamc" else 1), rel=1e-12), name
        share = {"completed_cadamc": 1.0, "c_adamc": 1 / M}[recipe]
        assert decay == pytest.approx(share * factors.decay * (1 if hidden else M), rel=1e-12), name


def test_marin_depth():
    """Attention and MLP enter the stream times num_layers^-1/2, and the learning rate, a fitted power of width and
    tokens, has none of depth: our `lr_depth=0`. (AdamH's updates are relative to the weights.)"""
    p = dm.parameterization("depth_mup", lr_depth=0.0)
    assert p.forward_factors(width=WIDTH, depth=4).branch == pytest.approx(0.5, rel=1e-12)
    specs = specs_of(megatron)
    factors = factors_of(p, specs, "adam")
    assert_equal(
        {name: f.lr for name, f in factors.items()},
        {name: f.lr for name, f in factors_of(dm.parameterization("mup"), specs, "adam").items()},
    )
