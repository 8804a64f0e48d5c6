"""Every model of the table: right, or right with what the error prints, or refused with the edit to make."""

import re
import warnings

import jax
import optax
import pytest
from flax import nnx

import depthmup as dm
from tests.foreign.models import MODELS
from tests.foreign.table import REFUSALS, ones, printed, wrong

RIGHT = [name for name, model in MODELS.items() if model.roles]
SAMPLE = RIGHT[::5]  # `make test` has these, `make test-slow` all others
REFUSED = [name for name, model in MODELS.items() if model.error]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SAMPLE else pytest.mark.slow) for name in RIGHT]
)
def test_roles(name):
    assert wrong(MODELS[name]) == []


@pytest.mark.parametrize("name", ["moe", "ensemble", "t5_heads_grow", "mamba"])
def test_roles_of_the_base_are_those_of_a_larger_width(name):
    m, _ = MODELS[name].setup
    specs = m.source._widened(64, m.source.shallow(4))
    assert specs == m.source._inferred(64, m.source.shallow(4))


def test_more_blocks_of_one_size_are_inferred_at_each_width():
    m, _ = MODELS["griffin"].setup
    assert m.source._widened(64, m.source.shallow(4)) is None


@pytest.mark.parametrize("width", [64, 128])
def test_heads_of_a_fixed_size_need_no_factor(width):
    """q k is a sum over as many terms at any width, however many heads there are."""
    m, _ = MODELS["gpt_heads_grow"].setup
    assert "attention factor 1" in str(m.at(width, 4).explain())


def test_a_stream_of_fixed_size_has_no_output_factor():
    m, _ = MODELS["fixed_stream"].setup
    assert "output factor 0.5 inside" not in str(m.explain())
    assert not m.specs["head"]["kernel"].absorbs


def test_what_needs_no_factor_is_explained_without_places():
    """Under `sp` nothing is stored times a factor: logits without a place for one are no error."""
    model = MODELS["link_prediction"]
    m = dm.setup("sp", model.factory, *model.inputs, width=64, depth=4, fan_in_init=False, **model.options)
    assert "inside" not in str(m.explain())


def test_a_head_that_a_norm_follows_has_no_output_factor():
    m, _ = MODELS["embedded_head"].setup
    assert "output factor 0.5 inside" not in str(m.explain())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("stacked_in_a_loop", "branch factor 0.3536 inside layers/down"),
        ("stacked_split", "branch factor 0.3536 inside layers/down"),
        ("stacked_in_pairs", "branch factor 0.3536 inside layers/down"),
        ("lambdas_of_the_embedding", "branch factor 0.3536 inside block_*_down/kernel, x0_lambdas"),
        (
            "time_inside_the_branch",
            "branch factor 0.3536 inside block_*_down/bias, block_*_down/kernel, block_*_fed/bias, block_*_fed/kernel",
        ),
        (
            "time_behind_the_branch",
            "branch factor 0.3536 inside block_*_down/bias, block_*_down/kernel, block_*_fed/bias, block_*_fed/kernel",
        ),
        (
            "fused_qkv_cast_before_the_scan",
            "attention factor 0.7071 inside layers/qkv [0:64 of axis 2]",
        ),
        (
            "edges_and_nodes",
            "branch factor 0.3536 inside block_*_edge_down/bias, block_*_edge_down/kernel, block_*_node_down/bias, "
            "block_*_node_down/kernel",
        ),
        (
            "several_updates_of_edges",
            "branch factor 0.3536 inside block_*_again_down/bias, block_*_again_down/kernel, block_*_edge_down/bias, "
            "block_*_edge_down/kernel, block_*_node_down/bias, block_*_node_down/kernel",
        ),
        ("wide_and_deep", "output factor 0.5 inside head/kernel"),
        ("n_beats", "output factor 0.5 inside block_*_forecast/kernel"),
        ("outer_skip", "branch factor 0.3536 inside block_*_down/bias, block_*_down/kernel"),
        (
            "parallel_blocks",
            "branch factor 0.3536 inside stack_a_*_down/bias, stack_a_*_down/kernel, stack_b_*_down/bias, "
            "stack_b_*_down/kernel",
        ),
        ("carried_scores", "output factor 0.5 inside head/kernel"),
        (
            "dense_before_experts",
            "branch factor 0.3536 inside block_0_dense_down/bias, block_0_dense_down/kernel, block_*_experts_down, "
            "block_*_shared_down/bias, block_*_shared_down/kernel",
        ),
        ("normalized_head", "output factor 0.5 inside norms/head/kernel/scale"),
        ("picked_tokens", "branch factor 0.3536 inside block_*_down/bias, block_*_down/kernel"),
        ("scaled_logits", "output factor 0.5 inside scale"),
        ("fixed_head", "output factor 0.5 inside hidden/kernel"),
        (
            "multi_query",
            "attention factor 1 inside block_*_qkv/bias [64:72 of axis 0], block_*_qkv/kernel [64:72 of axis 1]",
        ),
        (
            "set_transformer",
            "branch factor 0.3536 inside block_*_write/out/bias, block_*_write/out/kernel",
        ),
        (
            "attention_pooling",
            "attention factor 0.7071 inside pool/query/bias, pool/query/kernel",
        ),
        (
            "transformer_xl",
            "attention factor 0.7071 inside block_*_k/kernel, block_*_r/kernel",
        ),
        ("mlstm", "attention factor 0.7071 inside block_*_q/bias, block_*_q/kernel"),
        ("two_stacks_by_number", "attention factor 0.7071 inside attentions/qkv [0:64 of axis 2]"),
        ("two_stacks_by_number", "branch factor 0.3536 inside attentions/out, layers/down"),
        ("attention_in_each_step", "attention factor 0.7071 inside cell/query/bias, cell/query/kernel"),
        ("linear_attention", "attention factor 0.7071 inside block_*_q/kernel"),
        (
            "alibi",
            "branch factor 0.3536 inside block_*_down/bias, block_*_down/kernel, block_*_out/bias, block_*_out/kernel",
        ),
        (
            "graph_distances",
            "branch factor 0.3536 inside block_*_down/bias, block_*_down/kernel, block_*_out/bias, block_*_out/kernel",
        ),
        (
            "carried_scores",
            "branch factor 0.3536 inside block_*_down/bias, block_*_down/kernel, block_*_out/bias, block_*_out/kernel, "
            "block_*_q/bias, block_*_q/kernel",
        ),
        ("cosine_attention", "branch factor 0.3536 inside block_*_out/bias, block_*_out/kernel"),
        ("dueling", "output factor 0.5 inside pi/kernel, v/kernel"),
        ("bottlenecks", "output factor 0.5 inside few/kernel, policy_few/kernel"),
        ("two_towers", "output factor 0.5 inside image_proj/bias, image_proj/kernel"),
        ("pointer_generator", "output factor 0.5 inside gate/kernel, words/kernel"),
        ("gated_logits", "output factor 0.5 inside gate/kernel, words/kernel"),
        (
            "fused_qkv_along_the_second_axis",
            "attention factor 0.7071 inside layers/qkv/kernel [0:64 of axis 2]",
        ),
    ],
)
def test_factors_of_all_blocks(name, place):
    """In a network deeper than the one whose forward pass is computed, whose arrays have more blocks."""
    m, _ = MODELS[name].setup
    notes = str(m.at(64, 16).explain()).splitlines()
    assert place in notes, notes


@pytest.mark.parametrize("name", ["cross_covariance", "mamba2", "two_towers", "retention", "linear_transformer"])
def test_products_that_take_no_attention_factor(name):
    """Averages over channels, products that sum over a state of the same size at every width, logits, and products in
    front of a norm or divided by their sum."""
    assert "attention factor" not in str(MODELS[name].setup[0].explain())


@pytest.mark.parametrize("name", REFUSED)
def test_errors_name_the_edit(name):
    """The first one, or where it prints overrides the one after they were pasted."""
    model = MODELS[name]
    with pytest.raises(REFUSALS) as caught:
        model.set_up()
    message = str(caught.value)
    if not re.search(model.error, message):
        with pytest.raises(REFUSALS, match=model.error):
            model.set_up(overrides=printed(message))


@pytest.mark.parametrize("name", ["dit_adaln_zero", "branches_from_zero"])
def test_zero_initialised_kernels_are_no_wrong_slope(name):
    """The init is 0 at every width, and right."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        MODELS[name].set_up(fan_in_init=None)
    assert [warning for warning in caught if issubclass(warning.category, dm.SetupWarning)] == []


@pytest.mark.parametrize("made", [lambda m: m.optimizer("adam", 1e-3), lambda m: m.wrap(optax.adam(1e-3))])
@pytest.mark.parametrize("wrt", [nnx.Param, nnx.LoRAParam])
def test_part_of_a_module_is_trained(wrt, made):
    """Fine-tuning: the optimizer is given the adapters alone."""
    m, _ = MODELS["lora"].setup
    model = m.init(jax.random.key(0))
    optimizer = nnx.Optimizer(model, made(m), wrt=wrt)
    grads = nnx.grad(lambda model: optax.l2_loss(model(ones(4, 5))).sum(), argnums=nnx.DiffState(0, wrt))(model)
    adapted, kernel = model.blocks[0].up, model.blocks[0].up.kernel[...]
    optimizer.update(model, grads)
    assert adapted.lora.lora_b[...].any()  # it starts at 0
    assert (adapted.kernel[...] != kernel).any() == (wrt is nnx.Param)
