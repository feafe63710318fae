uv run -m skyrl.train.entrypoints.main_base \
  trainer.algorithm.advantage_estimator=grpo \
  trainer.algorithm.policy_loss_type=gspo \
  trainer.algorithm.eps_clip_low=0.0003 \
  trainer.algorithm.eps_clip_high=0.0004 \
  trainer.algorithm.loss_reduction=sequence_mean \
  trainer.algorithm.use_kl_loss=false \
  generator.n_samples_per_prompt=8
