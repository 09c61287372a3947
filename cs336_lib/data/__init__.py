"""Corpora, tokenizers, shards of tokens on disk, and batches."""
