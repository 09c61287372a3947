"""Measurements of GPUs that others have published, to compare with the roofline."""

# FLOP/s of an (n, n) @ (n, n) matmul in bf16 on a Hopper GPU (sm_90), by n. From OpenXLA's table of
# matmul speeds (2025), xla/service/gpu/model/matmul_interpolator_data.h in github.com/openxla/xla.
HOPPER_MATMULS = {256: 6.45e12, 512: 40.7e12, 1024: 236.3e12, 2048: 632.0e12, 4096: 783.3e12}

# Shares of the FLOPs and of the time of operators in training an encoder layer of BERT-large with
# PyTorch on a V100, from table 1 of "Data Movement Is All You Need" (Ivanov et al. 2021,
# arXiv 2007.00072).
BERT_ON_V100 = {
    "matmuls": (0.9980, 0.610),
    "norms, softmax": (0.0017, 0.255),
    "element-wise": (0.0003, 0.135),
}

# GPU hours of an H100-80GB for pretraining, from Meta's model card of Llama 3 (April 2024).
LLAMA3_HOURS = {"llama3-8b": 1.3e6, "llama3-70b": 6.4e6}
