"""What the files of a prediction need beyond rows: other formats, and checks."""
