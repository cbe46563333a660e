"""The jobs of every verb, composed once from one configuration: below here nothing asks it again."""
