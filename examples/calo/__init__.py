"""A generator of calorimeter showers: 45 voxels for each particle, by a normalising flow."""
