"""The bundled trainer: rollouts -> rewards -> estimate -> (epochs x minibatches x micro-batches) -> step, on one machine."""
