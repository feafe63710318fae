"""What became of a run of a language model, told by its own files and by transformers alone: `python examples/check_demo_lm.py RUN`.

The mean sampled reward of the first five steps and of the last ten, and the held-out questions of its task, answered greedily by the model
as it was read and by the folder that the run left. Exits with 1 unless the reward has become twice as high and the answers better.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

from lossary import load_recipe
from lossary.models.hugging_face import in_wheel
from lossary.trainer.settings import Settings

FIRST, LAST, TIMES, MOST = 5, 10, 2.0, 256


def rewards(metrics: Path) -> tuple[float, float]:
    """Return the mean reward of the run's first and of its last steps."""
    found = [line["reward"] for line in map(json.loads, metrics.read_text("utf-8").splitlines()) if "reward" in line]
    if len(found) < FIRST + LAST:
        raise SystemExit(f"{metrics} has {len(found)} steps with a reward; the first {FIRST} and the last {LAST} are compared")
    return sum(found[:FIRST]) / FIRST, sum(found[-LAST:]) / LAST


def before(settings: Settings) -> tuple[Path, dict[str, str]]:
    """Return where the run's model was read from, as transformers calls it."""
    m = settings.model
    folder, gguf = in_wheel(m.wheel) if m.wheel else (Path(m.path or m.gguf or ""), None)
    return (folder.parent, {"gguf_file": folder.name}) if m.gguf else (folder, {"gguf_file": gguf} if gguf else {})


@torch.no_grad()
def score(settings: Settings, folder: Path, how: dict[str, str]) -> float:
    """Return the mean reward of the greedy answers of the model in a folder."""
    tokens = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left", local_files_only=True, **how)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True, **how).eval()
    items = settings.task.eval_items(MOST)
    asked = [settings.model.template.replace("{prompt}", item.prompt) for item in items]
    if settings.model.chat:
        turns = [[{"role": "user", "content": text}] for text in asked]
        asked = [tokens.apply_chat_template(turn, add_generation_prompt=True, tokenize=False) for turn in turns]
    tokens.pad_token = tokens.pad_token or tokens.eos_token
    read = tokens(asked, return_tensors="pt", padding=True, add_special_tokens=not settings.model.chat)
    plain = transformers.GenerationConfig(
        max_new_tokens=settings.task.max_new_tokens, do_sample=False, eos_token_id=tokens.eos_token_id, pad_token_id=tokens.pad_token_id
    )
    said = model.generate(read["input_ids"], attention_mask=read["attention_mask"], generation_config=plain)[
        :, read["input_ids"].shape[1] :
    ]
    ended = [ids[: ids.index(tokens.eos_token_id)] if tokens.eos_token_id in ids else ids for ids in said.tolist()]
    texts = [tokens.decode(ids, skip_special_tokens=False) for ids in ended]
    return sum(settings.task.reward(item, text) for item, text in zip(items, texts, strict=True)) / len(items)


def main(run: Path) -> int:
    """Print both comparisons; returns 0 if both came out as promised."""
    settings = Settings.of(load_recipe(run / "recipe.yaml"))
    first, last = rewards(run / "metrics.jsonl")
    was, now = score(settings, *before(settings)), score(settings, run / "model", {})
    print(f"mean reward of the first {FIRST} steps {first:.3f}, of the last {LAST} {last:.3f}: {last / max(first, 1e-9):.2f} times as high")
    print(f"held-out questions, by transformers: {was:.3f} before, {now:.3f} after")
    return 0 if last >= TIMES * first and now > was else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
