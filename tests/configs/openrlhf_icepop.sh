#!/bin/bash
# ProRL's recipe in the words of OpenRLHF 0.11: a baseline by prompt, dynamic filtering, ICEPOP against vLLM's own probabilities
set -x
SAVE_PATH="./exp/prorl"
N_SAMPLES=16
MAX_NEW_TOKENS=$((1024 * 8))

ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"working_dir": "."}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --actor.num_nodes 1 \
   --actor.num_gpus_per_node 8 \
   --vllm.num_engines 8 \
   --train.colocate_all \
   --algo.advantage.estimator reinforce_baseline \
   --algo.advantage.gamma 1.0 \
   --algo.kl.init_coef 0 \
   --algo.dynamic_filtering_enable \
   --algo.dynamic_filtering_range 0 1 \
   --algo.advantage.is_correction_level token \
   --algo.advantage.is_correction_mode mask \
   --algo.advantage.is_correction_threshold 0.5 5.0 \
   --actor.eps_clip_low_high 0.2 0.2 \
   --reward.overlong_buffer_len 1024 \
   --reward.stop_properly_penalty_coef 0.0 \
   --rollout.max_new_tokens ${MAX_NEW_TOKENS} \
   --rollout.n_samples_per_prompt ${N_SAMPLES} \
   --actor.adam.lr 1e-6 \
   --ckpt.output_dir ${SAVE_PATH}
