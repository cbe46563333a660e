"""What a sample of events says: errors by group, distances, classifiers, verdicts. Knows no campaign."""
