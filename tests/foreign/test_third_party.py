"""Models of other packages, unedited: `pip install -e .[foreign]` has the packages."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import depthmup as dm

TOKENS = jnp.arange(16).reshape(2, 8)
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

    where = jnp.broadcast_to(jnp.arange(8), TOKENS.shape)
    m = dm.setup("depth_mup", factory, TOKENS, jnp.ones_like(TOKENS), where, output=lambda out: out.logits, **SHAPE)
    block = "transformer/h/*/"
    assert places(m) == {
        "attention": f"{block}attn/c_attn/bias [0:64 of axis 0], {block}attn/c_attn/kernel [0:64 of axis 0]",
        "branch": ", ".join(f"{block}{name}/{part}" for name in ("attn/c_proj", "mlp/c_proj") for part in
                            ("bias", "kernel")),
        "output": "transformer/ln_f/bias, transformer/ln_f/scale",
    }  # fmt: skip
    variables = m.init(jax.random.key(0))
    assert m.apply(variables, TOKENS, jnp.ones_like(TOKENS), where).logits.shape == (2, 8, 50)
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
