"""Adapters, and the references that need no second copy of the weights, or none on the device."""

import pytest
import torch
from torch import nn

from lossary import LossaryError, RecipeError, load_recipe
from lossary.models import GPT
from lossary.models.lora import Adapters, adapted, merged, without_adapters
from lossary.models.reference import Offloaded, Resident, WithoutAdapters
from lossary.trainer.loop import Trainer
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.scoring import policy_scores
from lossary.trainer.settings import Settings

RECIPE = {
    "advantage": ["gae", "whiten"], "policy_loss": "ppo-clip", "value_loss": "clipped-mse", "kl": {"use": "k3", "coef": 0.1},
    "task": {"use": "sort-letters", "letters": 2}, "model": {"d_model": 16, "layers": 1, "heads": 2, "lora_rank": 3, "lora_alpha": 6.0},
    "rollout": {"prompts": 3, "samples_per_prompt": 2}, "train": {"steps": 3, "minibatches": 2, "lr": 0.05, "checkpoint_every": 1},
    "evaluate": {"items": 4},
}  # fmt: skip
OFF = "reference.adapters_off=true"
IDS = torch.tensor([[3, 4, 5, 6]])


def made(tmp_path, *overrides):
    return Trainer(Settings.of(load_recipe(RECIPE, overrides)), RunFolder.new(tmp_path, "run", "{}\n"))


def gpt(**how):
    model = GPT(11, d_model=8, layers=2, heads=2, context=8, **how)
    Adapters(2, 6.0).into(model, seed=1)
    return model


def learned(model):
    with torch.no_grad():
        for layer in adapted(model).values():
            layer.lora_b.normal_(generator=torch.Generator().manual_seed(2))
    return model


@pytest.mark.parametrize("tied", [False, True])
def test_new_adapters_and_those_switched_off_change_no_bit(tied):
    plain, model = GPT(11, d_model=8, layers=2, heads=2, context=8, tied=tied), gpt(tied=tied)
    wanted = plain(IDS, torch.ones_like(IDS))
    assert torch.equal(model(IDS, torch.ones_like(IDS)), wanted)
    assert not torch.allclose(learned(model)(IDS, torch.ones_like(IDS)), wanted)
    with without_adapters(model):
        assert torch.equal(model(IDS, torch.ones_like(IDS)), wanted)
    assert not torch.allclose(model(IDS, torch.ones_like(IDS)), wanted)
    with pytest.raises(ZeroDivisionError), without_adapters(model):
        raise ZeroDivisionError
    assert all(layer.on for layer in adapted(model).values())


def test_merged_weights_say_what_weights_and_adapters_say():
    model = learned(gpt().double())
    plain = GPT(11, d_model=8, layers=2, heads=2, context=8).double()
    plain.load_state_dict(merged(model))
    torch.testing.assert_close(plain(IDS, torch.ones_like(IDS)), model(IDS, torch.ones_like(IDS)), rtol=1e-10, atol=1e-10)
    layer = model.blocks[1].down
    torch.testing.assert_close(plain.blocks[1].down.weight, layer.weight + 6.0 / 2 * layer.lora_b @ layer.lora_a)


def test_only_adapters_and_a_value_head_get_gradients():
    model = learned(gpt(value_head=True))
    hidden = model(IDS, torch.ones_like(IDS))
    (model.lm_head(hidden).sum() + model.value_head(hidden).sum()).backward()
    taught = {n for n, p in model.named_parameters() if p.grad is not None}
    layers = [f"blocks.{i}.{n}" for i in (0, 1) for n in ("attention.qkv", "attention.out", "up", "down")]
    assert taught == {f"{n}.lora_{x}" for n in layers for x in "ab"} | {"value_head.weight", "value_head.bias"}
    assert all((p.grad != 0).any() for n, p in model.named_parameters() if n in taught)


def test_a_model_without_linear_layers_has_no_place_for_them():
    model = nn.Module()
    model.lm_head, model.value_head = nn.Linear(2, 3), None
    with pytest.raises(LossaryError, match="no linear layer"):
        Adapters(2, 1.0).into(model, 0)


# ── in a run ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_after_steps_the_policy_without_adapters_is_the_initial_one_to_the_bit(tmp_path):
    trainer = made(tmp_path, OFF)
    before = {n: p.detach().clone() for n, p in trainer.policy.named_parameters()}
    copy = trainer._frozen()
    trainer.run()
    moved = {n for n, p in trainer.policy.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {n for n in before if ".lora_" in n}
    inputs, batch, _ = trainer._rollout()
    initial = policy_scores(copy, inputs, batch, 1.0)[0]
    with trainer.reference.at_hand() as reference:
        assert torch.equal(policy_scores(reference, inputs, batch, 1.0)[0], initial)
    assert not torch.allclose(policy_scores(trainer.policy, inputs, batch, 1.0)[0], initial)


@pytest.mark.parametrize("kl", ["k3", "full"])
@pytest.mark.parametrize("how", [OFF, "reference.param_offload=true"])
def test_every_reference_makes_the_same_run(kl, how, tmp_path):
    held, other = (made(tmp_path, f"kl.use={kl}", *more) for more in ([], [how]))
    kinds = {OFF: WithoutAdapters, "reference.param_offload=true": Offloaded}
    lines = [[{k: v for k, v in line.items() if not k.startswith("time/")} for line in t.run()] for t in (held, other)]
    assert (type(held.reference), type(other.reference)) == (Resident, kinds[how])
    assert lines[0] == lines[1]
    assert abs(lines[0][-1]["actor/kl_loss"]) > 1e-6
    assert all(torch.equal(a, b) for a, b in zip(held.policy.parameters(), other.policy.parameters(), strict=True))


@pytest.mark.parametrize("how", [[], [OFF]], ids=["copy", "adapters off"])
def test_a_resumed_run_with_adapters_is_the_run_in_one_piece(how, tmp_path):
    whole, begun = made(tmp_path, *how), made(tmp_path, *how, "train.steps=1", "evaluate.every=99")
    whole.run(), begun.run()
    again = Trainer(Settings.of(load_recipe(RECIPE, how)), begun.folder)
    again.resume()
    assert again.step == 1
    again.run()
    mine, theirs = (f.metrics.read_text().splitlines()[-1] for f in (again.folder, whole.folder))
    assert mine.split('"time/')[0] == theirs.split('"time/')[0]
    assert all(torch.equal(a, b) for a, b in zip(again.policy.parameters(), whole.policy.parameters(), strict=True))


def test_offloaded_weights_are_on_the_device_only_while_at_hand():
    """Of the devices that a machine without an accelerator has, ``meta`` is the other one."""
    model = GPT(11, d_model=8, layers=1, heads=2, context=8)
    kept = {n: x.clone() for n, x in model.state_dict().items()}
    reference = Offloaded(model, torch.device("meta"))

    def a_pass_that_breaks():
        with reference.at_hand() as there:
            assert {x.device.type for x in there.state_dict().values()} == {"meta"}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        a_pass_that_breaks()
    assert all(x.device.type == "cpu" and torch.equal(x, kept[n]) for n, x in reference.state_dict().items())


@pytest.mark.parametrize(
    ("overrides", "say"),
    [
        ([OFF, "model.lora_rank=0", "model.lora_alpha=16"], "reference.adapters_off: the policy has no adapters to switch off: say model.lora_rank"),
        ([OFF, "warm_up.steps=1"], "reference.adapters_off: the warm-up teaches the adapters"),
        ([OFF, "reference.param_offload=true"], "reference.param_offload: with adapters_off the reference is the policy itself"),
        (["model.lora_rank=0"], "model.lora_alpha: it scales adapters, and there are none"),
        (["model.lora_rank=-1"], "model.lora_rank: -1 is out of bounds"),
        (["reference.offload=true"], "reference.offload: unknown key"),
    ],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(overrides, say):
    with pytest.raises(RecipeError) as caught:
        Settings.of(load_recipe(RECIPE, overrides))
    assert [say in str(f) for f in caught.value.faults] == [True]
