"""Tokens: what ships, documents, tokenizers, shards on disk, and batches."""
