"""One file per named pass; `pipeline` puts them in order."""
