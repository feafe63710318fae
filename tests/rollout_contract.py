"""What every rollout backend keeps to, as a class to inherit: give ``backend()`` and ``prompts``, and its tests are yours."""

import math


class RolloutContract:
    """A subclass gives ``backend()`` -> (backend, the weights it began with), ``prompts`` of unequal lengths, and ``sampling``."""

    prompts: list
    sampling: object

    def backend(self):
        raise NotImplementedError

    def said(self, seed=1, n=2):
        return self.backend()[0].generate(self.prompts, n, self.sampling, seed)

    def test_completions_come_prompt_by_prompt(self):
        assert [r.prompt_ids for r in self.said(n=3)] == [p for p in self.prompts for _ in range(3)]

    def test_every_token_has_the_log_prob_it_was_drawn_with(self):
        for r in self.said():
            assert 1 <= len(r.completion_ids) == len(r.log_probs) <= self.sampling.max_new_tokens
            assert all(math.isfinite(p) and p <= 0 for p in r.log_probs)

    def test_length_is_the_reason_only_where_tokens_ran_out(self):
        for r in self.said():
            assert r.finish_reason == "stop" or len(r.completion_ids) == self.sampling.max_new_tokens

    def test_the_seed_decides(self):
        assert self.said(seed=3) == self.said(seed=3)

    def test_rollouts_carry_the_version_of_the_weights(self):
        backend, weights = self.backend()
        backend.update_weights(weights, 7)
        assert {r.policy_version for r in backend.generate(self.prompts, 1, self.sampling, 0)} == {7}
