"""Models as folders: any causal LM of transformers, loaded, made anew, exported."""
