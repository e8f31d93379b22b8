"""Families of models that are known to work, by `model_type`; others are served where the check at load passes."""

DENSE = (
    *("apertus", "arcee", "biogpt", "cohere", "cohere2", "ctrl", "cwm", "ernie4_5", "exaone4", "gemma", "gemma2"),
    *("gemma3_text", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neox", "granite", "helium", "hunyuan_v1_dense"),
    *("llama", "ministral", "mistral", "nemotron", "olmo", "olmo2", "olmo3", "opt", "persimmon", "phi", "phi3"),
    *("qwen2", "qwen3", "seed_oss", "smollm3", "stablelm", "starcoder2", "vaultgemma"),
)
EXPERTS = (
    *("afmoe", "cohere2_moe", "ernie4_5_moe", "exaone_moe", "flex_olmo", "glm4_moe", "granitemoe", "minimax_m2"),
    *("mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"),
)
"""Mixtures of experts, whose rows depend on the batch."""
ADVICE = (
    f"{len(DENSE + EXPERTS)} families are known to work, such as llama, qwen3 and gemma3_text:  lmtool docs serving"
)
