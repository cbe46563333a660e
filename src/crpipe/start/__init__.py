"""The first hour: a folder to work in, and what this machine and the source of the files are fit for."""
