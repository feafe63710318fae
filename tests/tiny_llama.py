"""A Hugging Face model and its tokenizer, small enough to be made in a test; imports what only the extra [hf] has."""

import tokenizers
import torch
import transformers

WORDS = ["<pad>", "<s>", "</s>", *"0123456789+="]


def made(folder, **how):
    torch.manual_seed(0)
    vocabulary = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    vocabulary.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    vocabulary.decoder = tokenizers.decoders.Fuse()
    tokens = transformers.PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes, **how
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokens.save_pretrained(folder)
    return folder
