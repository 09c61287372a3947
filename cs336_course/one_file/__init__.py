"""Build train_gpt2.py from the parts that a learner has written in notebooks 07 to 10."""
