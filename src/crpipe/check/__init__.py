"""`crpipe check`: proves a campaign from its files alone, and names all that is wrong."""
