"""An honest stand-in for IceCube: tracks and cascades in the format of the Kaggle files."""
