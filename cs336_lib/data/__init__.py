"""Corpora, tokenizers, token shards and batches."""
