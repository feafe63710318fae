"""The components that get a page, how kinds and frameworks are called in prose, and small pieces of Markdown."""

from collections.abc import Iterable
from dataclasses import dataclass

from restructured import inline

from lossary.registry import FIELDS, KINDS, Component

TITLES = {
    "policy_loss": ("Policy losses", "What the policy pays per token: the first term of every recipe."),
    "value_loss": ("Value losses", "What a critic pays for having been wrong."),
    "auxiliary_loss": ("Auxiliary losses", "Further terms of the actor: imitation, distillation, entropy."),
    "kl": ("KL estimators", "How far the policy is from the reference, estimated from the sampled token or from the whole distribution."),
    "advantage": ("Advantages", "How much better an answer, or a token, was than expected. A list in a recipe is a chain."),
    "aggregation": ("Aggregations", "How much each token counts when the losses of a step become one number."),
    "correction": ("Corrections", "Weights and rejections against the mismatch between the sampler and the trainer."),
    "reward": ("Rewards", "What changes a reward before advantages are made of it."),
    "filter": ("Filters", "Which sequences leave a step, as if they had never been sampled."),
    "coefficient": ("Coefficients", "The number that multiplies a term, where it is not a plain one."),
    "task": ("Tasks", "What the bundled trainer trains on."),
    "tracker": ("Trackers", "Where metrics go."),
}
SCOPES = {
    "token": "A token's result depends on that token alone: a batch may be cut anywhere.",
    "sequence": "A token's result depends on its sequence: a batch is cut between sequences.",
    "group": "A token's result depends on its group: the answers to one prompt stay in one micro-batch.",
    "step": "A token's result depends on the whole step: a batch is not cut, or the recipe says that an approximation will do.",
}
FRAMEWORKS = {
    "verl": "verl",
    "trl": "TRL",
    "skyrl": "SkyRL",
    "openrlhf": "OpenRLHF",
    "nemo-rl": "NeMo-RL",
    "areal": "AReaL",
    "slime": "slime",
    "roll": "ROLL",
    "prime-rl": "prime-rl",
    "ms-swift": "ms-swift",
    "trinity-rft": "Trinity-RFT",
    "tinker": "Tinker",
    "liger-kernel": "Liger-Kernel",
    "unsloth-zoo": "Unsloth",
    "torchrl": "TorchRL",
    "tunix": "Tunix",
    "rlax": "RLax",
    "verl-recipe": "verl-recipe",
    "stable-rl": "Stable-RL",
    "torchforge": "torchforge",
    "MM-EUREKA": "MM-EUREKA",
    "Archer2.0": "Archer2.0",
    "BAPO": "BAPO's own code",
}


@dataclass(frozen=True)
class Zoo:
    """The components of this distribution, and where their pages lie."""

    components: tuple[Component, ...]

    @classmethod
    def of(cls, components: Iterable[Component]) -> "Zoo":
        """Keep our own, in the order of kinds and names."""
        order = list(KINDS)
        ours = (c for c in components if c.distribution == "lossary")
        return cls(tuple(sorted(ours, key=lambda c: (order.index(c.kind.name), c.name))))

    @property
    def kinds(self) -> list[str]:
        """The kinds that have a component."""
        return list(dict.fromkeys(c.kind.name for c in self.components))

    def family(self, kind: str) -> list[Component]:
        """Return the components of a kind."""
        return [c for c in self.components if c.kind.name == kind]

    def named(self, text: str, near: Component | None = None) -> Component | None:
        """Return the component that a literal means: one of the same kind, or the only one of that name."""
        name = text.replace("_", "-")
        found = [c for c in self.components if name in (c.name, *c.aliases)]
        if near is not None:
            if same := [c for c in found if c.kind == near.kind and c.name != near.name]:
                return same[0]
            if text in near.params.model_fields or text == near.name:
                return None
        return found[0] if len(found) == 1 and text not in FIELDS and found[0].kind.name != "task" else None


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; its cells are Markdown."""
    head = list(head)
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(['---'] * len(head))}|"]
    return "\n".join((*lines, *(f"| {' | '.join(row)} |" for row in rows)))


def paper(text: str) -> str:
    """Return where a component comes from, arXiv numbers as links, for a cell of a table too."""
    return inline(text, table=True)


def markdown(text: str) -> str:
    """Escape prose that marks code with single backticks, as the vocabulary does, for a cell of a table too."""
    return inline(text, table=True)
