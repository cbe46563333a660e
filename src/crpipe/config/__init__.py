"""The configuration: keys, their judgement, and the record of what a campaign was made with."""
