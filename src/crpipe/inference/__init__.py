"""What a trained checkpoint is used for: evaluate, predict, export."""
