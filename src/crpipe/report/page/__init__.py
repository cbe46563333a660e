"""The page of ``crpipe report``: what a campaign gave, in one file that can be printed and mailed."""
