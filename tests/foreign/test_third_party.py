"""Models of other packages, unedited: `pip install -e .[foreign]` has the packages."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import depthmup as dm
from tests.foreign.table import REFUSALS, Foreign, blocks, ones, trunk, wrong

TOKENS = jnp.arange(16).reshape(2, 8)
ALL, WHERE = jnp.ones_like(TOKENS), jnp.broadcast_to(jnp.arange(8), TOKENS.shape)
LOGITS = {"output": lambda out: out.logits}
VMAP = {"call": lambda model, x: jax.vmap(model)(x)}
SHAPE = {"width": 64, "depth": 4, "base": (32, 2), "fan_in_init": False}


def places(m):
    """{kind of factor: the words on where it is}"""
    lines = str(m.explain()).splitlines()
    return {line.split()[0]: line.split(" inside ")[1] for line in lines if " factor " in line and " inside " in line}


def test_gpt2_of_hugging_face():
    """Kernels (out, in), one for queries, keys and values, and logits by the embedding."""
    pytest.importorskip("transformers")
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_flax_gpt2 import FlaxGPT2LMHeadModule

    def factory(width, depth):
        return FlaxGPT2LMHeadModule(GPT2Config(n_embd=width, n_layer=depth, n_head=4, vocab_size=50, n_positions=16))

    m = dm.setup("depth_mup", factory, TOKENS, ALL, WHERE, **LOGITS, **SHAPE)
    block = "transformer/h/*/"
    assert places(m) == {
        "attention": f"{block}attn/c_attn/bias [0:64 of axis 0], {block}attn/c_attn/kernel [0:64 of axis 0]",
        "branch": ", ".join(f"{block}{name}/{part}" for name in ("attn/c_proj", "mlp/c_proj") for part in
                            ("bias", "kernel")),
        "output": "transformer/ln_f/bias, transformer/ln_f/scale",
    }  # fmt: skip
    variables = m.init(jax.random.key(0))
    assert m.apply(variables, TOKENS, ALL, WHERE).logits.shape == (2, 8, 50)
    assert isinstance(m.model.made, nn.Module)


def test_vit_of_equimo():
    """An Equinox model of single images."""
    models = pytest.importorskip("equimo.models")

    def factory(width, depth, key):
        return models.VisionTransformer(
            img_size=16, in_channels=3, dim=width, patch_size=4, num_heads=[4], depths=[depth], num_classes=5, key=key
        )

    def call(model, images):
        return jax.vmap(lambda image: model(image, key=jax.random.key(0), inference=True))(images)

    m = dm.setup("depth_mup", factory, jnp.ones((2, 3, 16, 16)), call=call, **SHAPE)
    block = "blocks/0/blocks/*/"
    assert places(m) == {
        "attention": f"{block}attn/qkv/weight [0:64 of axis 0], {block}attn/qkv/bias [0:64 of axis 0]",
        "branch": ", ".join(f"{block}{name}/{part}" for name in ("attn/proj", "mlp/fc2") for part in
                            ("weight", "bias")),
        "output": "head/weight",
    }  # fmt: skip
    assert call(m.init(jax.random.key(0)), jnp.ones((2, 3, 16, 16))).shape == (2, 5)


def t5(heads_grow):
    """Encoder and decoder share the embedding; each has the relative position bias of its first block."""
    modeling = pytest.importorskip("transformers.models.t5.modeling_flax_t5")
    from transformers import T5Config

    def factory(width, depth):
        heads = width // 8 if heads_grow else 4
        sizes = {"d_model": width, "d_ff": 2 * width, "num_heads": heads, "d_kv": width // heads}
        config = T5Config(num_layers=depth, num_decoder_layers=depth, vocab_size=50, dropout_rate=0.0,
                          tie_word_embeddings=False, **sizes)  # fmt: skip
        return modeling.FlaxT5ForConditionalGenerationModule(config)

    bias = {"*/relative_attention_bias/*": "input" if heads_grow else "fixed"}
    roles = blocks("*coder/block/*") | {"*coder/final_layer_norm/*": "vector"} | bias
    return Foreign(factory, (TOKENS, ALL, TOKENS, ALL), roles | trunk(shared="input", lm_head="readout"), LOGITS)


def bert():
    """Norms after the sums."""
    modeling = pytest.importorskip("transformers.models.bert.modeling_flax_bert")
    from transformers import BertConfig

    def factory(width, depth):
        config = BertConfig(hidden_size=width, num_hidden_layers=depth, num_attention_heads=4, num_labels=3,
                            intermediate_size=2 * width, vocab_size=50, max_position_embeddings=16)  # fmt: skip
        return modeling.FlaxBertForSequenceClassificationModule(config)

    roles = blocks("bert/encoder/layer/*") | trunk(classifier="readout")
    roles |= {"bert/pooler/dense/bias": "vector", "bert/pooler/dense/kernel": "hidden", "*/LayerNorm/*": "vector",
              "*/layer/*/LayerNorm/*": "stream/vector",
              "bert/embeddings/*/embedding": "input"}  # fmt: skip
    return Foreign(factory, (TOKENS, ALL, 0 * TOKENS, WHERE, None), roles, LOGITS)


def bart():
    """Norms after the sums, in the encoder too; one embedding for source, target and logits."""
    modeling = pytest.importorskip("transformers.models.bart.modeling_flax_bart")
    from transformers import BartConfig

    def factory(width, depth):
        sizes = {f"{part}_{name}": size for part in ("encoder", "decoder")
                 for name, size in (("layers", depth), ("attention_heads", 4), ("ffn_dim", 2 * width))}  # fmt: skip
        config = BartConfig(d_model=width, vocab_size=50, max_position_embeddings=16, **sizes)
        return modeling.FlaxBartForConditionalGenerationModule(config)

    roles = blocks("model/*coder/layers/*") | {"model/*norm*": "vector", "model/*/embed_positions/*": "input"}
    roles |= {"model/shared/embedding": "input", "final_logits_bias": "scalar", "model/*layers/*norm*": "stream/vector"}
    return Foreign(factory, (TOKENS, ALL, TOKENS, ALL, WHERE, WHERE), roles, LOGITS)


def attnax_encoder():
    """A table of positions in an attribute."""
    attnax = pytest.importorskip("attnax")

    class Classifier(nnx.Module):
        def __init__(self, width, depth, rngs):
            config = attnax.TransformerConfig(
                vocab_size=50,
                d_model=width,
                num_heads=4,
                num_layers=depth,
                d_ff=2 * width,
                max_len=16,
                dropout_rate=0.0,
            )
            self.encoder = attnax.TransformerEncoder(rngs, config)
            self.head = nnx.Linear(width, 3, rngs=rngs)

        def __call__(self, tokens):
            return self.head(self.encoder(tokens))

    roles = blocks("encoder/layers/*") | {"encoder/final_ln/*": "vector", "encoder/token_embed/*": "input"}
    return Foreign(Classifier, (TOKENS,), roles | trunk(head="readout"))


def dantinox(**kinds):
    """A module that is no pytree, with tables for RoPE in its blocks; it also makes layers that it does not call."""
    package = pytest.importorskip("dantinox")

    def factory(width, depth, rngs):
        config = package.Config(dim=width, n_heads=4, head_size=width // 4, kv_heads=2, num_blocks=depth, vocab_size=50,
                                max_context=8, dropout_rate=0.0, **kinds)  # fmt: skip
        return package.Transformer(config, rngs)

    def call(model, tokens):
        return model(tokens, use_cache=False, kv_caches=None, cache_index=0).logits

    roles = blocks("blocks/*") | trunk(wte="input", ln_f="vector")
    # Of what nothing calls shapes alone say the role.
    roles |= {"*/down_*[qv]/kernel": "output", "*/down_*[qv]/bias": "scalar"}
    roles |= {"*/up_[qkv]/kernel": "input", "*/up_[qkv]/bias": "vector"}
    roles |= {"*/router/kernel": "branch/output"} if "use_moe" in kinds else {}
    return Foreign(factory, (TOKENS,), roles, {"call": call})


def simple_dit():
    """The embeddings of time and text reach the logits through the blocks alone."""
    models = pytest.importorskip("flaxdiff.models.simple_dit")

    def factory(width, depth):
        return models.SimpleDiT(patch_size=2, emb_features=width, num_layers=depth, num_heads=4, mlp_ratio=2)

    roles = blocks("dit_block_*") | trunk(final_norm="vector", final_proj="readout", text_context_proj="input")
    roles |= {"patch_embed/*/bias": "vector", "patch_embed/*/kernel": "input"}
    roles |= {"time_embed/*/bias": "vector", "time_embed/*/kernel": "hidden"}  # on as many waves as the width
    return Foreign(factory, (ones(2, 4, 4, 3), ones(2), ones(2, 3, 7)), roles)


def pde(name, **expected):
    """One channel in and one out."""
    arch = pytest.importorskip("pdequinox").arch

    def factory(width, depth, key):
        return getattr(arch, name)(1, 1, 1, hidden_channels=width, num_blocks=depth, key=key)

    roles = {"blocks/*": "branch/vector", "blocks/*/conv_?/weight": "branch/hidden"}
    return Foreign(factory, (ones(2, 1, 32),), roles | trunk(lifting="input", projection="readout"), VMAP, **expected)


def convnext():
    models = pytest.importorskip("equimo.models")

    def factory(width, depth, key):
        dims = [width, 2 * width, 2 * width, 2 * width]
        return models.ConvNeXt(3, depths=[depth] * 4, dims=dims, num_classes=5, key=key)

    def call(model, images):
        return jax.vmap(lambda image: model(image, key=jax.random.key(0), inference=True))(images)

    roles = {
        "blocks/*/blocks/*": "branch/vector",
        "*/pwconv?/weight": "branch/hidden",
        "*/dwconv/weight": "branch/input",
    }
    roles |= {"blocks/*/downsample/*": "vector", "*/downsample/conv/weight": "hidden"}
    roles |= {"blocks/0/downsample/conv/weight": "input"} | trunk(norm="vector", head="readout")
    return Foreign(factory, (ones(2, 3, 32, 32),), roles, {"call": call})


def tunix(module, name):
    model = pytest.importorskip(f"tunix.models.{module}.model")

    def factory(width, depth, rngs):
        config = model.ModelConfig(num_layers=depth, vocab_size=50, embed_dim=width, hidden_dim=2 * width, num_heads=4,
                                   head_dim=width // 4, num_kv_heads=2, rope_theta=10000, norm_eps=1e-5)  # fmt: skip
        return getattr(model, name)(config, rngs=rngs)

    inputs = (TOKENS, WHERE, None, jnp.tril(jnp.ones((2, 8, 8), bool)))
    roles = blocks("layers/*") | {"layers/*_proj/w": "branch/hidden"}
    roles |= {"embedder/input_embedding": "input", "final_norm/w": "vector", "lm_head/w": "readout"}
    return Foreign(factory, inputs, roles, {"output": lambda outputs: outputs[0]})


MODELS = {
    "t5": functools.partial(t5, heads_grow=False),
    "t5_heads_grow": functools.partial(t5, heads_grow=True),
    "bert": bert,
    "bart": bart,
    "attnax": attnax_encoder,
    "dantinox": dantinox,
    "dantinox_moe": functools.partial(dantinox, use_moe=True, gradient_checkpointing=False),
    "simple_dit": simple_dit,
    "modern_res_net": functools.partial(pde, "ModernResNet"),
    "classic_res_net": functools.partial(pde, "ClassicResNet"),
    "convnext": convnext,
    "llama3": functools.partial(tunix, "llama3", "Llama3"),
    "qwen3": functools.partial(tunix, "qwen3", "Qwen3"),
}


@pytest.fixture
def clip_of_old_jax(monkeypatch):
    """Transformers calls its end by a name that jax 0.10 no longer has."""
    clip = jnp.clip
    monkeypatch.setattr(jnp, "clip", lambda x, *ends, a_max=None: clip(x, *ends, **({"max": a_max} if a_max else {})))


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("clip_of_old_jax")
def test_roles(name):
    assert wrong(MODELS[name]()) == []


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
@pytest.mark.usefixtures("clip_of_old_jax")
def test_t5_multiplies_by_the_root_that_flax_divides_by():
    (line,) = (line for line in str(t5(heads_grow=False).setup[0].explain()).splitlines() if "attention factor" in line)
    assert line.startswith("attention factor 0.5 inside ")  # at twice the head size, 1/2 of no number at all


def test_fourier_neural_operator():
    """Its blocks have no skip connection around them."""
    with pytest.raises(REFUSALS, match="residual=False"):
        pde("ClassicFNO").set_up()


def hugging_face(family, name, config, **sizes):
    """A factory of a Flax module of transformers and a tiny config; its heads grow with width."""
    transformers = pytest.importorskip("transformers")
    module = pytest.importorskip(f"transformers.models.{family}.modeling_flax_{family}")
    names = {"width": "hidden_size", "depth": "num_hidden_layers", "heads": "num_attention_heads", **sizes}

    def factory(width, depth):
        settings = {names["width"]: width, names["depth"]: depth, names["heads"]: 4, "vocab_size": 50}
        made = {key: value for key, value in names.items() if key not in ("width", "depth", "heads")}
        if "intermediate_size" in made:
            made["intermediate_size"] = 4 * width
        return getattr(module, name)(getattr(transformers, config)(**settings, **made))

    return factory


def test_bloom_of_hugging_face():
    """Each block adds the causal mask and one table of positions to its attention logits."""
    factory = hugging_face("bloom", "FlaxBloomForCausalLMModule", "BloomConfig", depth="n_layer", heads="n_head")
    m = dm.setup("depth_mup", factory, TOKENS, ALL, **LOGITS, **SHAPE)
    block = "transformer/h/*/"
    assert places(m)["branch"] == ", ".join(
        f"{block}{name}/{part}" for name in ("mlp/dense_4h_to_h", "self_attention/dense") for part in ("bias", "kernel")
    )


def test_gemma_of_hugging_face():
    """Norms with 1 + weight, which starts as 1; in the last one is the output factor 1/2 of the tied embedding."""
    factory = hugging_face(
        "gemma", "FlaxGemmaForCausalLMModule", "GemmaConfig", intermediate_size=0, num_key_value_heads=2, head_dim=8,
        hidden_activation="gelu",
    )  # fmt: skip
    with pytest.warns(dm.SetupWarning, match="embed_tokens/embedding by 5.6"):
        m = dm.setup("depth_mup", factory, TOKENS, ALL, WHERE, **LOGITS, **SHAPE)
    assert places(m)["output"] == "1 + model/norm/weight"
    np.testing.assert_allclose(m.init(jax.random.key(0))["params"]["model"]["norm"]["weight"], 2 / 2 - 1)


def test_electra_of_hugging_face():
    """A norm stands behind the head, in front of embeddings of fixed size: no output factor."""
    factory = hugging_face(
        "electra", "FlaxElectraForMaskedLMModule", "ElectraConfig", intermediate_size=0, embedding_size=16
    )
    m = dm.setup("depth_mup", factory, TOKENS, ALL, 0 * TOKENS, WHERE, None, **LOGITS, **SHAPE)
    assert "output" not in places(m)
    assert m.specs["generator_predictions"]["dense"]["kernel"].role == "output"
