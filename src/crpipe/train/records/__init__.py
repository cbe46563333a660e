"""What a training job measures and writes about itself: metrics, loggers, a profile."""
