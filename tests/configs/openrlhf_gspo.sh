# GSPO with the option names of OpenRLHF 0.9
python3 -m openrlhf.cli.train_ppo_ray \
   --vllm_num_engines 4 \
   --colocate_all_models \
   --policy_loss_type gspo \
   --advantage_estimator group_norm \
   --eps_clip_low_high 3e-4 4e-4 \
   --gamma 1.0 \
   --init_kl_coef 0 \
   --n_samples_per_prompt 8 \
   --zero_stage 3 \
   --bf16
